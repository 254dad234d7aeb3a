//! What a handler and the middleware tell each other.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use axum::http::response::Parts;
use axum::middleware::Next;
use tokio::time::{Instant, sleep};

use crate::coordinator::{Client, call, to_std};
use crate::pb::{ClaimRequest, Claimed, claim_response::Outcome};

/// A handler that hangs does not hold its key for ever.
const LEASES_MAX: u32 = 10;

/// In the response's extensions: the handler did nothing, the key is free again.
#[derive(Clone)]
pub struct NothingHappened;

/// In the request's extensions: what the attempt was granted.
#[derive(Clone)]
pub struct Execution {
    pub downstream_key: String, // for the payment channel, as its idempotency key
    pub fencing_token: i64,
    pub lease: Duration,
    ends: Arc<Mutex<Instant>>,
}

impl Execution {
    /// The lease counts from the sending, so that it never ends after the
    /// coordinator's.
    pub fn new(claimed: Claimed, sent_at: Instant) -> Self {
        let lease = to_std(claimed.lease);
        Self {
            downstream_key: claimed.downstream_key,
            fencing_token: claimed.fencing_token,
            lease,
            ends: Arc::new(Mutex::new(sent_at + lease)),
        }
    }

    /// False once the claim may be another's: to be asked before each step that
    /// cannot be undone.
    pub fn permitted(&self) -> bool {
        Instant::now() < *self.ends.lock().unwrap()
    }

    /// Keeps the claim until this is dropped.
    pub async fn renew(self, client: Client, claim: ClaimRequest) {
        // With a fencing token it never acquires: a lost claim stays lost.
        let renewal = ClaimRequest { renew_fencing_token: self.fencing_token, ..claim };
        let third = self.lease / 3;
        for _ in 0..3 * LEASES_MAX {
            sleep(third).await;
            let sent_at = Instant::now();
            let ends = match call(&client, &renewal, third).await {
                Ok(reply) => match reply.outcome {
                    Some(Outcome::Claimed(claimed)) => sent_at + to_std(claimed.lease),
                    _ => continue,
                },
                Err(failed) if failed.is_refused() => sent_at,
                Err(_) => continue,
            };
            *self.ends.lock().unwrap() = ends;
            if ends == sent_at {
                return;
            }
        }
    }
}

/// The handler's whole response; None if it panicked, which only ends a task.
pub async fn run(next: Next, request: Request) -> Option<(Parts, Bytes)> {
    let ran = tokio::spawn(async move {
        let (head, body) = next.run(request).await.into_parts();
        to_bytes(body, usize::MAX).await.ok().map(|body| (head, body))
    });
    ran.await.ok().flatten()
}
