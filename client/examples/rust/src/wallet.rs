//! The other side.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use crate::execution::Execution;

/// Status and body; or nothing happened.
pub type Said = Option<(u16, Value)>;

#[derive(Default)]
pub struct Wallet {
    asked: Mutex<HashMap<String, u64>>,
}

impl Wallet {
    pub fn asked(&self, account: &str) -> u64 {
        self.asked.lock().unwrap().get(account).copied().unwrap_or(0)
    }

    /// The order says what to do: slow-MS, throw, nothing-happened, decline-402,
    /// error-500, long-BYTES, receipts-N; empty: charge.
    pub async fn charge(&self, mut payment: Value, execution: &Execution, order: &str) -> Said {
        let account = payment["account"].as_str().unwrap_or("").to_owned();
        *self.asked.lock().unwrap().entry(account).or_default() += 1;
        let (what, number) = order.split_once('-').unwrap_or((order, ""));
        let number: usize = number.parse().unwrap_or(0);
        match what {
            "nothing" => return None,
            "throw" => panic!("the wallet hung up"),
            "slow" => tokio::time::sleep(Duration::from_millis(number as u64)).await,
            "decline" | "error" => return Some((number as u16, json!({"error": what}))),
            "receipts" => payment["receipts"] = json!(number),
            "long" => payment["receipt"] = json!("x".repeat(number)),
            _ => {}
        }
        // Before a step that cannot be undone.
        assert!(execution.permitted(), "the claim was lost while the wallet was slow");
        payment["payment"] = json!(uuid::Uuid::new_v4().to_string());
        payment["wallet_key"] = json!(execution.downstream_key);
        Some((201, payment))
    }
}
