"""The coordinator's calls: sent again where that may help, their errors read.
"""

import itertools
import random
import time

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from idempotency.v1 import idempotency_pb2_grpc

BACKOFF_FIRST, BACKOFF_MAX = 0.05, 2.0  # seconds
REFUSED = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND)


class CallFailed(Exception):
    """A call that got no answer, with what the error's details say."""

    def __init__(self, error):
        super().__init__(error.code().name)
        self.code = error.code()
        self.reason = self.field = ""
        self.retry_after = 0.0  # seconds
        self.may_retry = self.code == grpc.StatusCode.UNAVAILABLE
        self.pushback = None
        for name, value in error.trailing_metadata() or ():
            if name == "grpc-retry-pushback-ms":
                self.pushback = int(value) / 1000 if value.isdigit() else None
                # Negative or malformed: the server forbids another try.
                self.may_retry = self.may_retry and self.pushback is not None
        status = rpc_status.from_call(error)
        for detail in status.details if status else ():
            self._read(detail)

    def _read(self, detail):
        info = error_details_pb2.ErrorInfo()
        retry = error_details_pb2.RetryInfo()
        bad = error_details_pb2.BadRequest()
        if detail.Unpack(info) and info.domain == "idempotency.v1":
            self.reason = info.reason
        elif detail.Unpack(retry):
            self.retry_after = retry.retry_delay.ToTimedelta().total_seconds()
        elif detail.Unpack(bad) and bad.field_violations:
            self.field = bad.field_violations[0].field

    @property
    def refused(self):
        """The service, not a proxy, said that the record is another's."""
        return self.code in REFUSED and bool(self.reason)

    def wait(self, attempt):
        """Seconds until the call may be sent again; None: it may not."""
        if not self.may_retry:
            return None
        if self.pushback is not None:
            return self.pushback
        # All of it random: callers that failed together come back apart.
        most = min(BACKOFF_MAX, BACKOFF_FIRST * 2 ** min(attempt, 10))
        return self.retry_after + random.uniform(0, most)


class Coordinator:
    """Thread-safe; one for the process."""

    def __init__(self, target):
        # After an outage gRPC would wait up to two minutes before it connects.
        options = [("grpc.max_reconnect_backoff_ms", 1000)]
        self._channel = grpc.insecure_channel(target, options=options)
        self.stub = idempotency_pb2_grpc.IdempotencyServiceStub(self._channel)

    def call(self, method, request, patience):
        """Sends the request, the same one each time, until it is answered.
        Raises CallFailed when that cannot help or takes longer than `patience`
        seconds."""
        deadline = time.monotonic() + patience
        for attempt in itertools.count():
            try:
                return method(request, timeout=deadline - time.monotonic())
            except grpc.RpcError as error:
                failure = CallFailed(error)
                wait = failure.wait(attempt)
                if wait is None or time.monotonic() + wait >= deadline:
                    raise failure from error
                time.sleep(wait)

    def settle(self, method, request, seconds, patience):
        """For what must become known, however long it takes: call() again and
        again for `seconds`, unless the service decides against it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.call(method, request, patience)
            except CallFailed as failure:
                if (failure.refused or time.monotonic() > deadline
                        or failure.code == grpc.StatusCode.INVALID_ARGUMENT):
                    raise
                time.sleep(random.uniform(0.25, 0.5))
