"""Ports of 127.0.0.1 for programs that tests start."""

import random
import socket

# Below the kernel's range for outgoing connections, which would take them.
_PORTS = range(20000, 32000)
_TRIES_MAX = 1000
_reserved = []


def _is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _reserve(port):
    """A name that is bound once on the machine, until this process ends; the
    C++ tests (port.cc) keep to it too."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0idempotency-test-port-{port}")
    except OSError:
        holder.close()
        return False
    _reserved.append(holder)
    return True


def free_port():
    for _ in range(_TRIES_MAX):
        port = random.choice(_PORTS)
        if _is_free(port) and _reserve(port):
            return port
    raise RuntimeError("no port of 127.0.0.1 is free")
