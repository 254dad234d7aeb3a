//! Makes POST and PATCH of any axum router idempotent:
//!
//!     let once = Idempotent { client: connect("127.0.0.1:50051")?, terms: ClaimRequest {
//!         scope: "payments".into(), policy: "payment".into(), ..Default::default() } };
//!     router.layer(middleware::from_fn_with_state(once, idempotent));
//!
//! The handler finds its Execution in the request's extensions, and puts
//! NothingHappened into the response's when it is certain to have done nothing.
//! If it panics, the outcome is unknown, and the next attempt is told.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::coordinator::{Client, call, settle, to_std};
use crate::execution::{Execution, NothingHappened, run};
use crate::pb::{self, claim_response::Outcome, record, release_request::Disposition};
use crate::web::{
    come_back_after, failed_problem, hash, parse_key, problem, replayed, to_message, unacceptable,
};

const PATIENCE: Duration = Duration::from_secs(3); // of a user, with the coordinator
const REQUEST_MAX: usize = 1 << 20;

#[derive(Clone)]
pub struct Idempotent {
    pub client: Client,
    pub terms: pb::ClaimRequest, // scope, policy, lease
}

pub async fn idempotent(once: State<Idempotent>, request: Request, next: Next) -> Response {
    if ![Method::POST, Method::PATCH].contains(request.method()) {
        return next.run(request).await;
    }
    // A task, as this future is dropped when the user hangs up: the work goes on.
    let answer = tokio::spawn(async move { once.0.answer(request, next).await });
    answer.await.unwrap_or_else(|_| problem(500, "outcome-unknown"))
}

impl Idempotent {
    async fn answer(self, request: Request, next: Next) -> Response {
        let key = match parse_key(request.headers()) {
            Ok(key) => key,
            Err(wrong) => return problem(400, wrong),
        };
        let (head, body) = request.into_parts();
        let Ok(body) = to_bytes(body, REQUEST_MAX).await else {
            return problem(413, "request-too-long");
        };
        // One token for this attempt, the same on every call and every retry:
        // the coordinator knows the sender of a call whose reply was lost.
        let claim = pb::ClaimRequest {
            key,
            claim_token: Uuid::new_v4().to_string(),
            request_hash: hash(&head, &body),
            ..self.terms.clone()
        };
        let sent_at = Instant::now();
        let reply = match call(&self.client, &claim, PATIENCE).await {
            Ok(reply) => reply,
            Err(failed) if failed.is_invalid() => return unacceptable(&failed),
            Err(failed) => {
                // It may have been granted all the same, and nothing was done.
                tokio::spawn(self.release(claim, Disposition::NotExecuted, PATIENCE));
                return failed_problem(503, "unavailable", &failed);
            }
        };
        match reply.outcome {
            Some(Outcome::Claimed(claimed)) => {
                let request = Request::from_parts(head, Body::from(body));
                self.execute(request, next, claim, Execution::new(claimed, sent_at)).await
            }
            Some(Outcome::Replay(replay)) => replayed(replay.response),
            Some(Outcome::InProgress(other)) => {
                come_back_after(409, "in-progress", to_std(other.retry_after))
            }
            Some(Outcome::Mismatch(_)) => problem(422, "key-reused"),
            Some(Outcome::InDoubt(_)) => problem(409, "in-doubt"), // ask the payment channel
            None => {
                // A newer server says what is not known here: never execute.
                tokio::spawn(self.release(claim, Disposition::NotExecuted, PATIENCE));
                problem(503, "unavailable")
            }
        }
    }

    async fn execute(
        self,
        mut request: Request,
        next: Next,
        claim: pb::ClaimRequest,
        execution: Execution,
    ) -> Response {
        request.extensions_mut().insert(execution.clone());
        let renewal = tokio::spawn(execution.clone().renew(self.client.clone(), claim.clone()));
        let (ran, lease) = (run(next, request).await, execution.lease);
        renewal.abort();
        let Some((head, body)) = ran else {
            self.release(claim, Disposition::OutcomeUnknown, lease).await;
            return problem(500, "outcome-unknown"); // It panicked: money may have moved.
        };
        if head.extensions.get::<NothingHappened>().is_some() {
            self.release(claim, Disposition::NotExecuted, lease).await;
            return Response::from_parts(head, Body::from(body));
        }
        let response = to_message(head.status, &head.headers, &body);
        let finalize = tokio::spawn(self.clone().finalize(claim.clone(), response, lease));
        match timeout(PATIENCE, finalize).await {
            Ok(Ok(false)) => self.winner(claim).await,
            // Recorded, or not known yet: the user need not wait.
            _ => Response::from_parts(head, Body::from(body)),
        }
    }

    /// Goes on for a lease: what was done must become known. False if refused.
    async fn finalize(self, claim: pb::ClaimRequest, with: pb::Response, lease: Duration) -> bool {
        let pb::ClaimRequest { scope, key, claim_token, .. } = claim.clone();
        let request = pb::FinalizeRequest { scope, key, claim_token, response: Some(with) };
        match settle(&self.client, &request, lease, PATIENCE).await {
            Err(failed) if failed.is_refused() => return false,
            Err(_) => self.release(claim, Disposition::OutcomeUnknown, PATIENCE).await,
            Ok(_) => {}
        }
        true
    }

    /// What everybody else is told counts, never a response that was refused.
    async fn winner(&self, claim: pb::ClaimRequest) -> Response {
        let request = pb::LookupRequest { scope: claim.scope, key: claim.key };
        let found = call(&self.client, &request, PATIENCE).await.ok().and_then(|it| it.record);
        let counts = |it: &pb::Record| {
            it.state() == record::State::Finalized && it.request_hash == claim.request_hash
        };
        found.filter(counts).map_or(problem(409, "superseded"), |it| replayed(it.response))
    }

    /// The user waits no longer than PATIENCE; the sending goes on.
    async fn release(self, claim: pb::ClaimRequest, what: Disposition, longest: Duration) {
        let pb::ClaimRequest { scope, key, claim_token, .. } = claim;
        let request = pb::ReleaseRequest { scope, key, claim_token, disposition: what.into() };
        let settled = async move { settle(&self.client, &request, longest, PATIENCE).await };
        let _ = timeout(PATIENCE, tokio::spawn(settled)).await;
    }
}
