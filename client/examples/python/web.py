"""The web's side of the recipe: keys, problems, responses."""

import json
import math
import re
from urllib.parse import quote

from idempotency.v1 import idempotency_pb2 as pb

# What a message of 4 MiB takes together with its headers.
_BODY_MAX = 3 * 1024 * 1024
# Of one connection, not of the operation: they are not recorded.
_HOP_BY_HOP = {"connection", "content-length", "date", "keep-alive", "server",
               "transfer-encoding"}
# A string of RFC 8941, or a bare token as most clients send it. A repeated
# header arrives joined with a comma and is neither.
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE = re.compile(r"[!#-+\--:<-~]+")


def parse_key(header):
    """The key in an Idempotency-Key header, or None."""
    quoted = _QUOTED.fullmatch(header.strip())
    if quoted:
        return re.sub(r"\\(.)", r"\1", quoted[1]) or None
    return header.strip() if _BARE.fullmatch(header.strip()) else None


def target(environ):
    """Path and query as they were sent, which WSGI itself does not keep."""
    query = environ.get("QUERY_STRING", "")
    return (environ.get("REQUEST_URI") or environ.get("RAW_URI")
            or quote(environ.get("PATH_INFO", "")) + ("?" + query if query else ""))


def problem(status, kind, failure=None, retry_after=0.0):
    """An answer of RFC 9457. `failure` is a CallFailed."""
    body = {"type": "urn:idempotency:" + kind, "title": kind.replace("-", " "), "status": status}
    headers = [("Content-Type", "application/problem+json")]
    if failure:
        body.update({name: value for name, value in (
            ("reason", failure.reason), ("field", failure.field)) if value})
        retry_after = failure.retry_after
    if retry_after > 0:
        headers.append(("Retry-After", str(math.ceil(retry_after))))
    return status, headers, json.dumps(body).encode()


def unacceptable(failure):
    """The user's fault, or else the program's own."""
    if failure.field == "key":
        return problem(400, "key-malformed", failure)
    return problem(500, "misconfigured", failure)


def run(application, environ):
    """The application's whole response."""
    started = []
    result = application(environ, lambda *response: started.append(response))
    try:
        body = b"".join(result)
    finally:
        getattr(result, "close", lambda: None)()
    status, headers = started[-1][:2]
    return int(status.split()[0]), headers, body


def to_message(response):
    """The response as it is recorded. A body too long for a message is left
    out: what was done must not be done again because its answer was long."""
    status, headers, body = response
    fits = len(body) <= _BODY_MAX
    return pb.Response(
        status_code=status, body=body if fits else b"", body_omitted=not fits,
        headers=[pb.Header(name=name, value=value.encode("latin-1"))
                 for name, value in headers
                 if name.lower() not in _HOP_BY_HOP])


def replayed(recorded):
    """What was recorded, marked as such."""
    status = recorded.status_code
    without_body = recorded.body_omitted and status not in (204, 205, 304)
    if without_body or not 200 <= status <= 599:
        return problem(410, "response-not-kept")
    headers = [(header.name, header.value.decode("latin-1"))
               for header in recorded.headers]
    headers.append(("Idempotent-Replayed", "true"))
    if recorded.headers_omitted:
        headers.append(("Idempotent-Headers-Omitted", "true"))
    return status, headers, recorded.body
