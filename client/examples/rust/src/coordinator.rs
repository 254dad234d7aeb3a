//! The coordinator's calls: sent again where that may help, their errors read.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt;

use crate::pb::{self, idempotency_service_client::IdempotencyServiceClient};

pub type Client = IdempotencyServiceClient<Channel>;

const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// One for the process; a clone uses the same connection.
pub fn connect(coordinator: &str) -> Result<Client, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{coordinator}"))?;
    let channel = endpoint.connect_timeout(Duration::from_secs(1)).connect_lazy();
    Ok(Client::new(channel).max_decoding_message_size(4 << 20))
}

/// A call that got no answer, with what the error's details say.
#[derive(Debug, Default)]
pub struct CallFailed {
    pub code: Option<Code>,
    pub reason: String,
    pub field: String,
    pub retry_after: Duration,
    pub pushback: Option<String>, // as it came
}

impl CallFailed {
    fn new(status: &Status) -> Self {
        let info = status.get_details_error_info();
        let bad = status.get_details_bad_request();
        let retry = status.get_details_retry_info();
        let pushback = status.metadata().get("grpc-retry-pushback-ms");
        Self {
            code: Some(status.code()),
            reason: info
                .filter(|info| info.domain == "idempotency.v1")
                .map(|info| info.reason)
                .unwrap_or_default(),
            field: bad
                .and_then(|bad| bad.field_violations.into_iter().next())
                .map(|violation| violation.field)
                .unwrap_or_default(),
            retry_after: retry.and_then(|retry| retry.retry_delay).unwrap_or_default(),
            pushback: pushback.map(|value| value.to_str().unwrap_or("").to_owned()),
        }
    }

    pub fn is_invalid(&self) -> bool {
        self.code == Some(Code::InvalidArgument)
    }

    /// The service, not a proxy, said that the record is another's.
    pub fn is_refused(&self) -> bool {
        matches!(self.code, Some(Code::FailedPrecondition | Code::NotFound))
            && !self.reason.is_empty()
    }

    /// How long until the call may be sent again; None: it may not.
    fn wait(&self, attempt: u32) -> Option<Duration> {
        if self.code != Some(Code::Unavailable) {
            return None;
        }
        if let Some(pushback) = &self.pushback {
            // Negative or malformed: the server forbids another try.
            return pushback.parse::<u32>().ok().map(|ms| Duration::from_millis(ms.into()));
        }
        // All of it random: callers that failed together come back apart.
        let most = BACKOFF_MAX.min(BACKOFF_FIRST * 2_u32.pow(attempt.min(10)));
        Some(self.retry_after + most.mul_f64(rand::random()))
    }
}

/// The calls by their requests, so that each can be sent again in one place.
pub trait Call: Clone + Send + Sync {
    type Reply: Send;
    fn send(
        client: Client,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Reply>, Status>> + Send;
}

macro_rules! calls {
    ($($request:ty => $method:ident -> $reply:ty;)*) => {$(
        impl Call for $request {
            type Reply = $reply;
            async fn send(
                mut client: Client, request: Request<Self>,
            ) -> Result<Response<$reply>, Status> {
                client.$method(request).await
            }
        }
    )*};
}
calls! {
    pb::ClaimRequest => claim -> pb::ClaimResponse;
    pb::FinalizeRequest => finalize -> pb::FinalizeResponse;
    pb::LookupRequest => lookup -> pb::LookupResponse;
    pb::ReleaseRequest => release -> pb::ReleaseResponse;
}

/// Sends the request, the same one each time, until it is answered, that cannot
/// help any more, or the wait would be longer than the caller's patience.
pub async fn call<Q: Call>(
    client: &Client,
    request: &Q,
    patience: Duration,
) -> Result<Q::Reply, CallFailed> {
    let deadline = Instant::now() + patience;
    for attempt in 0.. {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut message = Request::new(request.clone());
        message.set_timeout(left);
        let late = |_| Err(Status::deadline_exceeded("no answer in time"));
        let status =
            match timeout(left, Q::send(client.clone(), message)).await.unwrap_or_else(late) {
                Ok(reply) => return Ok(reply.into_inner()),
                Err(status) => status,
            };
        let failed = CallFailed::new(&status);
        match failed.wait(attempt) {
            Some(wait) if Instant::now() + wait < deadline => sleep(wait).await,
            _ => return Err(failed),
        }
    }
    Err(CallFailed::default())
}

/// For what must become known, however long it takes: the call again and again,
/// unless the service decides against it.
pub async fn settle<Q: Call>(
    client: &Client,
    request: &Q,
    longest: Duration,
    patience: Duration,
) -> Result<Q::Reply, CallFailed> {
    let deadline = Instant::now() + longest;
    loop {
        match call(client, request, patience).await {
            Err(failed)
                if !failed.is_refused() && !failed.is_invalid() && Instant::now() < deadline => {}
            settled => return settled,
        }
        sleep(Duration::from_millis(250).mul_f64(1.0 + rand::random::<f64>())).await;
    }
}

pub fn to_std(duration: Option<prost_types::Duration>) -> Duration {
    duration.unwrap_or_default().try_into().unwrap_or_default()
}
