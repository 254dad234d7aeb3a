//! A payment service: POST /payments, once for each Idempotency-Key.
//!
//!     cargo run -- --listen 127.0.0.1:8080 --coordinator 127.0.0.1:50051
//!
//! The wallet is played, so that a test can say what it does: header X-Wallet.

mod coordinator;
mod execution;
mod idempotent;
mod request_hash;
mod wallet;
mod web;

/// The generated stubs.
mod pb {
    tonic::include_proto!("idempotency.v1");
}

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router, middleware};
use serde_json::{Value, json};

use execution::{Execution, NothingHappened};
use idempotent::{Idempotent, idempotent};
use wallet::Wallet;

/// The handlers, which know nothing of claims.
async fn pay(
    State(wallet): State<Arc<Wallet>>,
    Extension(execution): Extension<Execution>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Ok(payment) = serde_json::from_slice(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let order = headers.get("x-wallet").map_or("", |order| order.to_str().unwrap_or(""));
    let Some((status, answer)) = wallet.charge(payment, &execution, order).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, Extension(NothingHappened)).into_response();
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // Some of one name, to be replayed as they are.
    let receipts = (0..answer["receipts"].as_u64().unwrap_or(2)).map(|n| ("x-receipt", n));
    (status, AppendHeaders(receipts), Json(answer)).into_response()
}

async fn asked(
    State(wallet): State<Arc<Wallet>>,
    Query(query): Query<HashMap<String, String>>,
) -> Json<Value> {
    Json(json!({"asked": wallet.asked(query.get("account").map_or("", String::as_str))}))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flags: HashMap<&str, &str> =
        arguments.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    if let Some(path) = flags.get("--check_vectors") {
        println!("{} vectors", request_hash::check_vectors(path)?);
        return Ok(());
    }
    let lease = flags.get("--lease_ms").map(|ms| ms.parse::<i64>()).transpose()?;
    let terms = pb::ClaimRequest {
        scope: "payments".into(),
        policy: "payment".into(),
        lease: lease.map(|ms| prost_types::Duration {
            seconds: ms / 1000,
            nanos: (ms % 1000) as i32 * 1_000_000,
        }),
        ..Default::default()
    };
    let client = coordinator::connect(flags.get("--coordinator").unwrap_or(&"127.0.0.1:50051"))?;
    let once = Idempotent { client, terms };
    let router = Router::new()
        .route("/payments", get(asked).post(pay))
        .layer(middleware::from_fn_with_state(once, idempotent))
        .with_state(Arc::new(Wallet::default()));
    let listen = flags.get("--listen").unwrap_or(&"127.0.0.1:8080");
    axum::serve(tokio::net::TcpListener::bind(listen).await?, router).await?;
    Ok(())
}
