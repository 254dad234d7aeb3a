"""A way to PostgreSQL's unix socket on which it seems several times as slow.

Each answer is held back until as much time has passed since its request as a
database that slow would have taken. Answers keep their order, and a connection
asks one thing at a time, so this bounds what the database does in a second as
slow disks would, however large the statements are.
"""

import argparse
import os
import socket
import threading
import time

_SOCKET = ".s.PGSQL.5432"
_CHUNK = 64 * 1024


class Connection:
    """One client's, with a thread for each direction."""

    def __init__(self, client, folder, slowness):
        self._client = client
        self._slowness = slowness
        self._database = socket.socket(socket.AF_UNIX)
        self._database.connect(os.path.join(folder, _SOCKET))
        self._asked = None  # when; None: it has begun to answer
        for work in (self._pass_requests, self._pass_answers):
            threading.Thread(target=work, daemon=True).start()

    def _pass_requests(self):
        try:
            while data := self._client.recv(_CHUNK):
                if self._asked is None:
                    self._asked = time.monotonic()
                self._database.sendall(data)
        except OSError:
            pass
        self._hang_up()

    def _pass_answers(self):
        try:
            while data := self._database.recv(_CHUNK):
                asked, self._asked = self._asked, None
                if asked is not None:
                    taken = time.monotonic() - asked
                    time.sleep(taken * (self._slowness - 1))
                self._client.sendall(data)
        except OSError:
            pass
        self._hang_up()

    def _hang_up(self):
        for end in (self._client, self._database):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True, metavar="FOLDER")
    parser.add_argument("--target", required=True, metavar="FOLDER")
    parser.add_argument("--slowness", type=float, required=True)
    arguments = parser.parse_args()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.join(arguments.listen, _SOCKET))
        listener.listen(64)
        while True:
            client, _ = listener.accept()
            Connection(client, arguments.target, arguments.slowness)


if __name__ == "__main__":
    main()
