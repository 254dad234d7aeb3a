"""The sidecar before a Go gRPC service that knows nothing of it (shop/)."""

import concurrent.futures
import json
import os
import time
import uuid

import grpc
from google.protobuf.wrappers_pb2 import StringValue

from processes import Process, free_port

_RULES = {"grpc": {"routes": [{
    "methods": "/interop.Shop/*", "scope": "interop/shop", "claim_timeout": "1s"}]}}
_PATIENCE_SECONDS = 20


class Sidecar:
    """The sidecar and the shop behind it, with the steps that are played."""

    def __init__(self, build, folder, coordinator, log):
        rules = os.path.join(folder, "rules.json")
        with open(rules, "w", encoding="utf-8") as file:
            json.dump(_RULES, file)
        port = free_port()
        self._shop = Process(
            "the shop", [os.path.join(build, "interop", "go", "shop-service"),
                         f"--listen=127.0.0.1:{port}"], port, log("shop"), folder)
        own = free_port()
        self._sidecar = Process(
            "the sidecar",
            [os.path.join(build, "client", "idempotency-proxy"),
             f"--grpc_listen=127.0.0.1:{own}", f"--grpc_upstream=127.0.0.1:{port}",
             f"--coordinator={coordinator}", f"--config={rules}"],
            own, log("sidecar"), folder)

    def start(self):
        for process in (self._shop, self._sidecar):
            process.start()
            process.wait_until_listening()

    def stop(self):
        self._sidecar.stop()
        self._shop.stop()

    def steps(self):
        return [self.once_and_replayed, self.another_request,
                self.lost_answer_is_told]

    def steps_without_coordinator(self):
        return [self.nobody_is_charged]

    def once_and_replayed(self):
        """a key is charged once, and replayed"""
        key, before = new_key(), self._begun()
        first, replayed = self._ask(key, "pay")
        assert "idempotency-attempt: 1" in first and not replayed, first
        assert self._ask(key, "pay") == (first, True)
        assert self._begun() == before + 1

    def another_request(self):
        """another request with the key is refused"""
        key = new_key()
        self._ask(key, "pay")
        before = self._begun()
        assert self._code_of(key, "slow") == grpc.StatusCode.FAILED_PRECONDITION
        assert self._begun() == before

    def lost_answer_is_told(self):
        """after a service that died, the next attempt is told"""
        key, before = new_key(), self._begun()
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            first = thread.submit(self._code_of, key, "slow")
            wait_until(lambda: self._begun() > before)
            self._shop.stop()
            assert first.result() == grpc.StatusCode.UNAVAILABLE, first.result()
        self._shop.start()
        self._shop.wait_until_listening()
        wait_until(lambda: self._code_of(key, "slow") is None)
        second, _ = self._ask(key, "slow")
        assert "idempotency-abandoned: attempt=" in second, second
        assert "reason=outcome-unknown" in second, second

    def nobody_is_charged(self):
        """without a coordinator nobody is charged"""
        before = self._begun()
        assert self._code_of(new_key(), "pay") == grpc.StatusCode.UNAVAILABLE
        assert self._begun() == before

    def _begun(self):
        return int(call(self._shop.port, "begun")[0])

    def _ask(self, key, value):
        return call(self._sidecar.port, value, (("idempotency-key", key),))

    def _code_of(self, key, value):
        """None: it was answered."""
        try:
            self._ask(key, value)
        except grpc.RpcError as error:
            return error.code()
        return None


def call(port, value, metadata=()):
    """The answer, and whether it was replayed."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(
            "/interop.Shop/Charge", request_serializer=StringValue.SerializeToString,
            response_deserializer=StringValue.FromString)
        reply, done = method.with_call(
            StringValue(value=value), metadata=metadata, timeout=_PATIENCE_SECONDS)
        trailers = dict(done.trailing_metadata() or ())
        return reply.value, trailers.get("idempotent-replayed") == "true"


def new_key():
    return str(uuid.uuid4())


def wait_until(reached):
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not reached():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.05)
