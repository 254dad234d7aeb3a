"""A coordinator between the services and the real one, for what a real one does
only on a bad day: lost replies, refusals, and an outcome of a later version.
"""

import collections
import concurrent.futures
import threading
import time
import uuid

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from idempotency.v1 import idempotency_pb2 as pb
from idempotency.v1 import idempotency_pb2_grpc

_PREFIX = "/idempotency.v1.IdempotencyService/"
_DETAILS = "grpc-status-details-bin"
_REQUESTS = {"Claim": pb.ClaimRequest, "Finalize": pb.FinalizeRequest,
             "Lookup": pb.LookupRequest, "Release": pb.ReleaseRequest}
# ClaimResponse with a field 15, which holds an empty message.
_UNKNOWN_OUTCOME = bytes([15 << 3 | 2, 0])


class _Seen:
    """What came for one key, and what is to go wrong with it."""

    def __init__(self):
        self.faults = {}  # call: list of faults; one with a * stays
        self.calls = collections.Counter()
        self.claim_tokens = set()
        self.claimed_at = []

    def next_fault(self, call):
        faults = self.faults.get(call)
        if not faults:
            return ""
        return faults[0][:-1] if faults[0].endswith("*") else faults.pop(0)


class Gate(grpc.GenericRpcHandler):
    """Listens on `address`; passes bytes on, unless a key's faults say other."""

    def __init__(self, target):
        self._channel = grpc.insecure_channel(target)
        self._stub = idempotency_pb2_grpc.IdempotencyServiceStub(self._channel)
        self._lock = threading.Lock()
        self._seen = collections.defaultdict(_Seen)
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(64))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self):
        self._server.stop(None).wait()
        self._channel.close()

    def set_faults(self, key, faults):
        """From now on, for this key, in place of what was set before."""
        with self._lock:
            self._seen[key].faults = {call: list(names) for call, names in faults.items()}

    def calls(self, key):
        """Calls by name, renewals as Renew; claim_tokens, the number of
        different ones; ms_apart, from the first Claim to the last."""
        with self._lock:
            seen = self._seen[key]
            apart = seen.claimed_at[-1] - seen.claimed_at[0] if seen.claimed_at else 0
            return {**seen.calls, "claim_tokens": len(seen.claim_tokens),
                    "ms_apart": int(apart * 1000)}

    def service(self, handler_call_details):
        call = handler_call_details.method.removeprefix(_PREFIX)
        if call not in _REQUESTS:
            return None  # UNIMPLEMENTED, as of a server without Bulk
        return grpc.unary_unary_rpc_method_handler(
            lambda message, context: self._answer(call, message, context))

    def _answer(self, call, message, context):
        request = _REQUESTS[call].FromString(message)
        if call == "Claim" and request.renew_fencing_token:
            call = "Renew"
        with self._lock:
            seen = self._seen[request.key]
            seen.calls[call] += 1
            if call == "Claim":
                seen.claimed_at.append(time.monotonic())
                seen.claim_tokens.add(request.claim_token)
            fault = seen.next_fault(call)
        if fault == "unknown_outcome":
            return _UNKNOWN_OUTCOME
        if fault == "refuse":
            context.abort(grpc.StatusCode.UNAVAILABLE, "refused by the gate")
        if fault.startswith("busy-"):
            _abort_busy(context, int(fault.removeprefix("busy-")))
        if fault.endswith("_first"):
            self._be_first(fault, request)
        if fault == "without_hash":
            request.ClearField("request_hash")
            message = request.SerializeToString()
        answer = self._pass_on(call, message, context)
        if fault == "lose_reply":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the gate lost the reply")
        return answer

    def _pass_on(self, call, message, context):
        method = _PREFIX + ("Claim" if call == "Renew" else call)
        try:
            return self._channel.unary_unary(method)(
                message, timeout=context.time_remaining())
        except grpc.RpcError as error:
            context.set_trailing_metadata(tuple(
                (name, value) for name, value in error.trailing_metadata()
                if name in (_DETAILS, "grpc-retry-pushback-ms")))
            return context.abort(error.code(), error.details())

    def _be_first(self, fault, finalize):
        """Does something to the record before its owner's Finalize arrives."""
        operation = {"scope": finalize.scope, "key": finalize.key}
        owner = {**operation, "claim_token": finalize.claim_token}
        if fault == "finalize_first":
            self._stub.Finalize(pb.FinalizeRequest(**owner, response=pb.Response(
                status_code=299, body=b"recorded first")))
        elif fault == "release_first":
            self._stub.Release(pb.ReleaseRequest(
                **owner, disposition="DISPOSITION_NEVER_EXECUTED"))
        elif fault == "take_over_first":
            record = self._stub.Lookup(pb.LookupRequest(**operation)).record
            self._stub.Release(pb.ReleaseRequest(
                **owner, disposition="DISPOSITION_OUTCOME_UNKNOWN"))
            reply = self._stub.Claim(pb.ClaimRequest(
                **operation, request_hash=record.request_hash,
                claim_token=str(uuid.uuid4()), resolve_in_doubt=True))
            if not reply.HasField("claimed"):
                raise AssertionError(f"the gate could not take over: {reply}")


def _abort_busy(context, pushback_ms):
    """As an overloaded server refuses."""
    status = status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message="busy")
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(max(pushback_ms, 0))
    for detail in (error_details_pb2.ErrorInfo(reason="OVERLOADED",
                                               domain="idempotency.v1"), retry):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    context.set_trailing_metadata(((_DETAILS, status.SerializeToString()),
                                   ("grpc-retry-pushback-ms", str(pushback_ms))))
    context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
