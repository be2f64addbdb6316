"""A TCP proxy that understands enough of Kafka's protocol to hold back requests, or to answer them itself."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

END_TXN, WRITE_TXN_MARKERS = 26, 27  # API keys


class Request(NamedTuple):
    """A request: which one, and its bytes behind the length."""

    api: int
    version: int
    frame: bytes


# Is called with every request; returns the bytes of an answer, or None to pass the request on. It may wait.
OnRequest = Callable[[Request], bytes | None]


class KafkaProxy:
    """Listens on a port of 127.0.0.1, and passes on what it gets to `target`, which may be set later."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target = 0
        self.on_request: OnRequest = lambda request: None
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._pass_requests, args=(client, server), daemon=True).start()
                threading.Thread(target=_pass_answers, args=(server, client), daemon=True).start()

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError, EOFError), client.makefile("rb") as requests:
            while head := requests.read(4):
                frame = requests.read(struct.unpack(">i", head)[0])
                answer = self.on_request(Request(*struct.unpack_from(">hh", frame), frame))
                if answer is None:
                    server.sendall(head + frame)
                else:
                    client.sendall(struct.pack(">i", len(answer)) + answer)


def _pass_answers(server: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):
        while data := server.recv(1 << 16):
            client.sendall(data)
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def pretend_markers_written(request: Request) -> bytes:
    """The answer to WriteTxnMarkers (from version 1 on) that says that all were written."""
    frame, at = request.frame, 8
    (length,) = struct.unpack_from(">h", frame, at)
    at += 2 + max(length, 0) + 1  # the client's id, and no tagged fields

    def number() -> int:
        nonlocal at
        found, shift = 0, 0
        while True:
            byte, at = frame[at], at + 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return frame[at - size : at]

    markers = number() - 1
    answer = frame[4:8] + b"\0" + _number(markers + 1)
    for _ in range(markers):
        answer += take(8)
        take(3)  # epoch and result
        topics = number() - 1
        answer += _number(topics + 1)
        for _ in range(topics):
            size = number()
            answer += _number(size) + take(size - 1)
            partitions = number() - 1
            answer += _number(partitions + 1)
            for _ in range(partitions):
                answer += take(4) + b"\0\0\0"  # no error
            number()
            answer += b"\0"
        take(4 + (request.version >= 2))
        number()
        answer += b"\0"
    return answer + b"\0"


def _number(value: int) -> bytes:
    """A varint.

    >>> _number(300)
    b'\\xac\\x02'
    """
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])
