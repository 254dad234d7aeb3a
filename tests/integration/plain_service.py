#!/usr/bin/env python3
"""A service of Python's http.server that knows nothing of idempotency keys.

usage: plain_service.py PORT

What is asked of it, it does: 201 and {"paid": N}, N counting from 1 what was
asked. For the test beside it:
  PUT /control  a JSON list of what to do with the next requests, one each:
                {"do": "answer", "status": 200, "body": "...", "headers": {},
                 "framing": "length" | "chunked" | "close", "repeat": 1}
                {"do": "close"}    reads the request and hangs up
                {"do": "half"}     hangs up within its answer
                {"do": "garbage"}  answers what is no HTTP
                {"do": "hold"}     begins a chunked answer when PUT /release
                                   comes, or {"do": "hold", "after": "head"}
                                   sends "first" before that
                {"do": "refuse"}   answers 413 before it reads the body
  PUT /release  lets what is held go on
  GET /seen     what was asked, as a JSON list, and forgets it
"""

import hashlib
import http.server
import json
import sys
import threading


class Service(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port):
        super().__init__(("127.0.0.1", port), Handler)
        self.lock = threading.Lock()
        self.plans = []
        self.seen = []
        self.paid = 0
        self.released = threading.Semaphore(0)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def read_body(self):
        """The size and the digest of it, and its beginning."""
        digest = hashlib.sha256()
        size = 0
        begin = b""
        for part in self.body_parts():
            digest.update(part)
            size += len(part)
            begin += part[:max(0, 4096 - len(begin))]
        return size, digest.hexdigest(), begin

    def body_parts(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            while True:
                length = int(self.rfile.readline(), 16)
                if length > 0:
                    yield self.rfile.read(length)
                self.rfile.readline()
                if length == 0:
                    return
        left = int(self.headers.get("Content-Length", 0))
        while left > 0:
            part = self.rfile.read(min(left, 65536))
            if not part:
                return
            left -= len(part)
            yield part

    def serve(self):
        server = self.server
        if self.command == "PUT" and self.path == "/control":
            plans = json.loads(self.read_body()[2])
            with server.lock:
                server.plans = plans
            return self.answer(204, b"")
        if self.command == "PUT" and self.path == "/release":
            self.read_body()
            server.released.release()
            return self.answer(204, b"")
        if self.command == "GET" and self.path == "/seen":
            with server.lock:
                seen, server.seen = server.seen, []
            return self.answer(200, json.dumps(seen).encode())
        with server.lock:
            plan = server.plans.pop(0) if server.plans else {"do": "pay"}
        if plan["do"] == "refuse":
            self.close_connection = True
            return self.answer(413, b"too long")
        size, digest, begin = self.read_body()
        with server.lock:
            server.paid += 1
            paid = server.paid
            server.seen.append({
                "method": self.command, "target": self.path, "size": size,
                "sha256": digest, "body": begin.decode("latin-1"),
                "headers": [[n, v] for n, v in self.headers.items()]})
        self.carry_out(plan, paid)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = serve
    do_OPTIONS = serve

    def carry_out(self, plan, paid):
        what = plan["do"]
        if what == "pay":
            return self.answer(201, b'{"paid": %d}' % paid,
                               {"Content-Type": "application/json"})
        if what == "answer":
            body = plan.get("body", "").encode() * plan.get("repeat", 1)
            return self.answer(plan["status"], body, plan.get("headers", {}),
                               plan.get("framing", "length"))
        self.close_connection = True
        if what == "half":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"half")
        elif what == "garbage":
            self.wfile.write(b"what is this?\r\n\r\n")
        elif what == "hold":
            first = plan.get("after") == "head"
            if first:
                self.begin_chunks()
            self.server.released.acquire()
            if not first:
                self.begin_chunks()
            self.wfile.write(b"4\r\nlast\r\n0\r\n\r\n")
        return None

    def begin_chunks(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n")
        self.wfile.flush()

    def answer(self, status, body, headers=None, framing="length"):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if framing == "length" and status != 204:
            self.send_header("Content-Length", str(len(body)))
        elif framing == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        elif framing == "close":
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        if framing == "chunked":
            for at in range(0, len(body), 10000):
                part = body[at:at + 10000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.wfile.write(body)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    service = Service(int(sys.argv[1]))
    print("listening", flush=True)
    service.serve_forever()
