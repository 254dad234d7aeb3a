//! The web's side of the recipe: keys, problems, responses.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::coordinator::CallFailed;
use crate::pb;
use crate::request_hash::request_hash;

/// What a message of 4 MiB takes together with its headers.
const BODY_MAX: usize = 3 << 20;
/// Of one connection, not of the operation: they are not recorded.
const HOP_BY_HOP: [HeaderName; 5] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    header::SERVER,
    header::TRANSFER_ENCODING,
];

/// The key in Idempotency-Key, a string of RFC 8941 or a bare token as most
/// clients send it; or what is wrong with it.
pub fn parse_key(headers: &HeaderMap) -> Result<String, &'static str> {
    let mut values = headers.get_all("idempotency-key").iter();
    let value = values.next().ok_or("key-missing")?;
    let value = value.to_str().map_err(|_| "key-malformed")?.trim();
    if values.next().is_some() {
        return Err("key-malformed");
    }
    let bare = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | ',' | ';');
    let Some(quoted) = value.strip_prefix('"') else {
        let whole = !value.is_empty() && value.chars().all(bare);
        return if whole { Ok(value.to_owned()) } else { Err("key-malformed") };
    };
    let mut key = String::new();
    let mut rest = quoted.chars();
    while let Some(c) = rest.next() {
        match c {
            '"' if rest.as_str().is_empty() && !key.is_empty() => return Ok(key),
            '"' => break,
            '\\' => match rest.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => break,
            },
            _ => key.push(c),
        }
    }
    Err("key-malformed")
}

/// Of what the user sent, before anything parses it.
pub fn hash(head: &Parts, body: &Bytes) -> Vec<u8> {
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    request_hash(&[head.method.as_str().as_bytes(), target.as_bytes(), kind, body])
}

/// An answer of RFC 9457.
pub fn problem(status: u16, kind: &str) -> Response {
    failed_problem(status, kind, &CallFailed::default())
}

pub fn come_back_after(status: u16, kind: &str, retry_after: Duration) -> Response {
    failed_problem(status, kind, &CallFailed { retry_after, ..Default::default() })
}

pub fn failed_problem(status: u16, kind: &str, failed: &CallFailed) -> Response {
    let (name, title) = (format!("urn:idempotency:{kind}"), kind.replace('-', " "));
    let mut body = json!({"type": name, "title": title, "status": status});
    for (name, value) in [("reason", &failed.reason), ("field", &failed.field)] {
        if !value.is_empty() {
            body[name] = json!(value);
        }
    }
    let mut response = answer(status, Bytes::from(body.to_string()));
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    if !failed.retry_after.is_zero() {
        let seconds = failed.retry_after.as_secs_f64().ceil() as u64;
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// The user's fault, or else the program's own.
pub fn unacceptable(failed: &CallFailed) -> Response {
    match failed.field.as_str() {
        "key" => failed_problem(400, "key-malformed", failed),
        _ => failed_problem(500, "misconfigured", failed),
    }
}

fn answer(status: u16, body: Bytes) -> Response {
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, Body::from(body)).into_response()
}

/// The response as it is recorded. A body too long for a message is left out:
/// what was done must not be done again because its answer was long.
pub fn to_message(status: StatusCode, headers: &HeaderMap, body: &Bytes) -> pb::Response {
    let body_omitted = body.len() > BODY_MAX;
    pb::Response {
        status_code: status.as_u16().into(),
        headers: headers
            .iter()
            .filter(|(name, _)| !HOP_BY_HOP.contains(name))
            .map(|(name, value)| pb::Header {
                name: name.to_string(),
                value: value.as_bytes().to_vec(),
            })
            .collect(),
        body: if body_omitted { Vec::new() } else { body.to_vec() },
        body_omitted,
        headers_omitted: false,
    }
}

/// What was recorded, marked as such.
pub fn replayed(recorded: Option<pb::Response>) -> Response {
    let recorded = recorded.unwrap_or_default();
    let status = recorded.status_code.try_into().unwrap_or(0);
    let bodiless = matches!(status, 204 | 205 | 304);
    if recorded.body_omitted && !bodiless || !(200..=599).contains(&status) {
        return problem(410, "response-not-kept");
    }
    let mut response = answer(status, Bytes::from(recorded.body));
    response.headers_mut().clear(); // Not the content type that axum thinks of.
    for header in recorded.headers {
        if let (Ok(name), Ok(value)) =
            (header.name.parse::<HeaderName>(), HeaderValue::from_bytes(&header.value))
        {
            response.headers_mut().append(name, value);
        }
    }
    let mark = HeaderValue::from_static("true");
    response.headers_mut().insert("idempotent-replayed", mark.clone());
    if recorded.headers_omitted {
        response.headers_mut().insert("idempotent-headers-omitted", mark);
    }
    response
}
