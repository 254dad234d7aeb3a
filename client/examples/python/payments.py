"""A payment service: POST /payments, once for each Idempotency-Key.

    pip install -r requirements.txt
    python -m grpc_tools.protoc -I ../../../proto --python_out=. \
        --grpc_python_out=. idempotency/v1/idempotency.proto
    python payments.py --listen 127.0.0.1:8080 --coordinator 127.0.0.1:50051

The wallet is played, so that a test can say what it does: header X-Wallet.
"""

import argparse
import collections
import json
import socketserver
import threading
import time
import urllib.parse
import uuid
from wsgiref import simple_server

from coordinator import Coordinator
from execution import NothingHappened
from google.protobuf.duration_pb2 import Duration
from idempotent import Idempotent
from request_hash import check_vectors


class Wallet:
    """The other side. `order` is what it is to do: slow-MS, throw,
    nothing-happened, decline-402, error-500, long-BYTES, receipts-N; empty:
    charge."""

    def __init__(self):
        self._lock = threading.Lock()
        self._asked = collections.Counter()

    def asked(self, account):
        with self._lock:
            return self._asked[account]

    def charge(self, payment, execution, order):
        """Status and body of the answer."""
        with self._lock:
            self._asked[payment["account"]] += 1
        what, _, number = order.partition("-")
        if order == "nothing-happened":
            raise NothingHappened("the wallet refused to begin")
        if order == "throw":
            raise RuntimeError("the wallet hung up")
        if what == "slow":
            time.sleep(int(number) / 1000)
        if not execution.permitted():  # Asked before what cannot be undone.
            raise RuntimeError("the claim was lost while the wallet was slow")
        if what in ("decline", "error"):
            return int(number), {"error": what}
        answer = {**payment, "payment": str(uuid.uuid4()),
                  "wallet_key": execution.downstream_key}
        if what == "long":
            answer["receipt"] = "x" * int(number)
        if what == "receipts":
            answer["receipts"] = int(number)
        return 201, answer


class Payments:
    """The WSGI application, which knows nothing of claims."""

    def __init__(self, wallet):
        self._wallet = wallet

    def __call__(self, environ, start_response):
        if environ["REQUEST_METHOD"] == "GET":
            query = urllib.parse.parse_qs(environ["QUERY_STRING"])
            status, answer = 200, {"asked": self._wallet.asked(query["account"][0])}
        else:
            status, answer = self._wallet.charge(
                json.load(environ["wsgi.input"]), environ["idempotency.execution"],
                environ.get("HTTP_X_WALLET", ""))
        # Some of one name, to be replayed as they are.
        receipts = answer.pop("receipts", 2)
        start_response(f"{status} -", [("Content-Type", "application/json")] + [
            ("X-Receipt", str(n)) for n in range(receipts)])
        return [json.dumps(answer).encode()]


class Handler(simple_server.WSGIRequestHandler):
    def get_environ(self):
        # As it was sent: the target, and no content type where there is none.
        return {**super().get_environ(), "REQUEST_URI": self.path,
                "CONTENT_TYPE": self.headers.get("Content-Type", "")}

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--listen", default="127.0.0.1:8080")
    flags.add_argument("--coordinator", default="127.0.0.1:50051")
    flags.add_argument("--lease_ms", type=int, help="default: the policy's")
    flags.add_argument("--check_vectors", metavar="FILE", help="and end")
    flags = flags.parse_args()
    if flags.check_vectors:
        print(check_vectors(flags.check_vectors), "vectors")
        return
    lease = Duration()
    lease.FromMilliseconds(flags.lease_ms or 0)
    application = Idempotent(
        Payments(Wallet()), Coordinator(flags.coordinator), scope="payments",
        policy="payment", lease=lease if flags.lease_ms else None)
    host, _, port = flags.listen.rpartition(":")
    simple_server.make_server(host, int(port), application, Server, Handler).serve_forever()


if __name__ == "__main__":
    main()
