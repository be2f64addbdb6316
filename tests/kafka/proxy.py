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


# ---------------------------------------------------------------------------------------------- ends of transactions
class TxnMarker(NamedTuple):
    """The end of one transaction in a WriteTxnMarkers request (from version 1 on)."""

    producer: bytes  # its id
    result: bytes  # epoch, and whether it is committed
    topics: list[tuple[bytes, list[bytes]]]  # names, and partitions
    coordinator: bytes  # its epoch, and what later versions have

    @property
    def is_commit(self) -> bool:
        return self.result[-1] == 1


def read_markers(request: Request) -> list[TxnMarker]:
    """Returns the ends of transactions in a request."""
    frame, at = request.frame, 0

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

    at = len(_header(request))
    found: list[TxnMarker] = []
    for _ in range(number() - 1):
        producer, result, topics = take(8), take(3), list[tuple[bytes, list[bytes]]]()
        for _ in range(number() - 1):
            name = take(number() - 1)
            topics.append((name, [take(4) for _ in range(number() - 1)]))
            number()  # tagged fields, of which there are none
        found.append(TxnMarker(producer, result, topics, take(4 + (request.version >= 2))))
        number()
    return found


def pretend_markers_written(request: Request) -> bytes:
    """The answer that says that all ends of transactions were written."""
    markers = read_markers(request)
    answer = request.frame[4:8] + b"\0" + _number(len(markers) + 1)
    for marker in markers:
        answer += marker.producer + _number(len(marker.topics) + 1)
        for name, partitions in marker.topics:
            answer += _text(name) + _number(len(partitions) + 1)
            answer += b"".join(partition + b"\0\0\0" for partition in partitions) + b"\0"  # no error
        answer += b"\0"
    return answer + b"\0"


def choose_markers(request: Request, is_chosen: Callable[[bytes], bool]) -> bytes:
    """The frame of a request with the topics of another one that are chosen by their names."""
    markers = read_markers(request)
    frame = _header(request) + _number(len(markers) + 1)
    for marker in markers:
        topics = [(name, partitions) for name, partitions in marker.topics if is_chosen(name)]
        frame += marker.producer + marker.result + _number(len(topics) + 1)
        for name, partitions in topics:
            frame += _text(name) + _number(len(partitions) + 1) + b"".join(partitions) + b"\0"
        frame += marker.coordinator + b"\0"
    return frame + b"\0"


def ask_broker(port: int, frame: bytes) -> bytes:
    """Sends a request over a connection of its own, and returns the answer."""
    with socket.create_connection(("127.0.0.1", port)) as broker, broker.makefile("rb") as answers:
        broker.sendall(struct.pack(">i", len(frame)) + frame)
        return answers.read(struct.unpack(">i", answers.read(4))[0])


def _header(request: Request) -> bytes:
    (length,) = struct.unpack_from(">h", request.frame, 8)
    return request.frame[: 10 + max(length, 0) + 1]  # with the client's id, and no tagged fields


def _text(value: bytes) -> bytes:
    return _number(len(value) + 1) + value


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
