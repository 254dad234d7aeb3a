"""Idempotent POST and PATCH for any WSGI application: Flask, Django, your own.

    application = Idempotent(application, Coordinator("127.0.0.1:50051"),
                             scope="payments", policy="payment")

The application finds its Execution in environ["idempotency.execution"]. It
raises NothingHappened when it is certain to have done nothing; whatever else it
raises leaves the outcome unknown, and the next attempt is told.
"""

import concurrent.futures
import http.client
import io
import threading
import time
import uuid

import grpc
from coordinator import CallFailed
from execution import Execution, NothingHappened
from idempotency.v1 import idempotency_pb2 as pb
from request_hash import request_hash
from web import parse_key, problem, replayed, run, target, to_message, unacceptable

PATIENCE = 3.0   # seconds that a user waits for the coordinator
LEASES_MAX = 10  # a handler that hangs does not hold its key for ever


class Idempotent:
    def __init__(self, application, coordinator, scope, **terms):
        """`terms` are further fields of a ClaimRequest: policy, lease."""
        self._application, self._scope, self._terms = application, scope, terms
        self._coordinator, self._stub = coordinator, coordinator.stub
        self._background = concurrent.futures.ThreadPoolExecutor(64)

    def __call__(self, environ, start_response):
        if environ["REQUEST_METHOD"] not in ("POST", "PATCH"):
            return self._application(environ, start_response)
        status, headers, body = self._answer(environ)
        start_response(f"{status} {http.client.responses.get(status, '-')}",
                       [*headers, ("Content-Length", str(len(body)))])
        return [body]

    def _answer(self, environ):
        header = environ.get("HTTP_IDEMPOTENCY_KEY", "")
        if not (key := parse_key(header)):
            return problem(400, "key-malformed" if header else "key-missing")
        # The hash is of what the user sent, before anything parses it.
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        parts = environ["REQUEST_METHOD"], target(environ), environ.get("CONTENT_TYPE", "")
        hashed = request_hash(*(part.encode("latin-1") for part in parts), body)
        # One token for this attempt, the same on every call and every retry:
        # the coordinator knows the sender of a call whose reply was lost.
        operation = {"scope": self._scope, "key": key, "claim_token": str(uuid.uuid4())}
        claim = pb.ClaimRequest(**operation, **self._terms, request_hash=hashed)
        sent_at = time.monotonic()
        try:
            reply = self._coordinator.call(self._stub.Claim, claim, PATIENCE)
        except CallFailed as failure:
            if failure.code == grpc.StatusCode.INVALID_ARGUMENT:
                return unacceptable(failure)
            # It may have been granted all the same, and nothing was done.
            self._release(operation, "NOT_EXECUTED", PATIENCE, wait=0)
            return problem(503, "unavailable", failure)
        outcome = reply.WhichOneof("outcome")
        if outcome == "claimed":
            return self._execute(environ, operation, claim, Execution(reply.claimed, sent_at))
        if outcome == "replay":
            return replayed(reply.replay.response)
        if outcome == "in_progress":
            wait = reply.in_progress.retry_after.ToTimedelta().total_seconds()
            return problem(409, "in-progress", retry_after=wait)
        if outcome == "mismatch":
            return problem(422, "key-reused")
        if outcome == "in_doubt":  # somebody has to ask the payment channel first
            return problem(409, "in-doubt")
        # A newer server says what this program does not know: never execute.
        self._release(operation, "NOT_EXECUTED", PATIENCE, wait=0)
        return problem(503, "unavailable")

    def _execute(self, environ, operation, claim, execution):
        environ["idempotency.execution"] = execution
        threading.Thread(target=self._renew, args=(claim, execution), daemon=True).start()
        try:
            response = run(self._application, environ)
        except NothingHappened:
            self._release(operation, "NOT_EXECUTED", execution.lease)
            return problem(503, "nothing-happened")
        except Exception:  # pylint: disable=broad-except  # money may have moved
            self._release(operation, "OUTCOME_UNKNOWN", execution.lease)
            return problem(500, "outcome-unknown")
        finally:
            execution.done.set()
        settling = self._background.submit(self._finalize, operation, execution, response)
        try:
            refused = settling.result(PATIENCE)
        except concurrent.futures.TimeoutError:
            refused = False  # Not known yet: the user need not wait for it.
        return self._winner(claim) if refused else response

    def _renew(self, claim, execution):
        renewal = pb.ClaimRequest()
        renewal.CopyFrom(claim)  # with this it never acquires: lost stays lost
        renewal.renew_fencing_token = execution.fencing_token
        third = execution.lease / 3
        for _ in range(3 * LEASES_MAX):
            if execution.done.wait(third):
                return
            sent_at = time.monotonic()
            try:
                reply = self._coordinator.call(self._stub.Claim, renewal, third)
                if reply.HasField("claimed"):
                    execution.extend(reply.claimed, sent_at)
            except CallFailed as failure:
                if failure.refused:
                    return execution.lost()

    def _finalize(self, operation, execution, response):
        """Goes on for a lease: what was done must become known. True if the
        record is another's by now."""
        request = pb.FinalizeRequest(**operation, response=to_message(response))
        try:
            self._coordinator.settle(self._stub.Finalize, request, execution.lease, PATIENCE)
        except CallFailed as failure:
            if not failure.refused:
                self._release(operation, "OUTCOME_UNKNOWN", PATIENCE)
            return failure.refused
        return False

    def _winner(self, claim):
        """What everybody else is told counts, never a response that was refused."""
        request = pb.LookupRequest(scope=claim.scope, key=claim.key)
        try:
            record = self._coordinator.call(self._stub.Lookup, request, PATIENCE).record
            if (record.state == pb.Record.STATE_FINALIZED
                    and record.request_hash == claim.request_hash):
                return replayed(record.response)
        except CallFailed:
            pass
        return problem(409, "superseded")

    def _release(self, operation, disposition, seconds, wait=PATIENCE):
        request = pb.ReleaseRequest(**operation, disposition="DISPOSITION_" + disposition)
        settling = self._background.submit(
            self._coordinator.settle, self._stub.Release, request, seconds, PATIENCE)
        concurrent.futures.wait([settling], wait)
