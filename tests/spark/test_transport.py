"""Connections between driver and slots: frames arrive whole, and only who knows the secret gets in."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.spark.transport import Connection, Endpoint

PATIENCE = 30.0  # seconds


class End:
    """An endpoint that keeps what it gets."""

    def __init__(self, secret: bytes = b"secret") -> None:
        self.frames: queue.SimpleQueue[tuple[Connection, bytes]] = queue.SimpleQueue()
        self.closed: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self.endpoint = Endpoint(secret, lambda at, frame: self.frames.put((at, bytes(frame))), self.closed.put)

    def next(self) -> bytes:
        return self.frames.get(timeout=PATIENCE)[1]


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    one, other = End(), End()
    yield one, other
    one.endpoint.close()
    other.endpoint.close()


def test_frames_of_all_sizes_arrive_whole_and_in_order(ends):
    one, other = ends
    connection = one.endpoint.connect("127.0.0.1", other.endpoint.port)
    frames = [os.urandom(size) for size in (0, 1, 7, 4096, 1_048_576, 1_048_577, 9_000_000, 3)]
    for frame in frames:
        connection.send(frame)
    assert [other.next() for _ in frames] == frames


def test_an_answer_goes_back_over_the_same_connection(ends):
    one, other = ends
    one.endpoint.connect("127.0.0.1", other.endpoint.port).send(b"question")
    connection, question = other.frames.get(timeout=PATIENCE)
    connection.send(question, b" and answer")
    assert one.next() == b"question and answer"


def test_both_may_send_more_than_any_buffer_holds_at_the_same_time(ends):
    one, other = ends
    there = one.endpoint.connect("127.0.0.1", other.endpoint.port)
    there.send(b"hello")
    back, _ = other.frames.get(timeout=PATIENCE)
    frame = os.urandom(30_000_000)
    sending = threading.Thread(target=back.send, args=(frame,))
    sending.start()
    there.send(frame)
    sending.join(PATIENCE)
    assert one.next() == frame
    assert other.next() == frame


def test_who_does_not_know_the_secret_is_not_let_in(ends):
    _, other = ends
    stranger = End(b"another secret")
    with pytest.raises(ConnectionError, match=r"did not let us in|does not know the secret"):
        stranger.endpoint.connect("127.0.0.1", other.endpoint.port)
    stranger.endpoint.close()
    assert other.frames.empty()


def test_who_says_nothing_keeps_nobody_waiting(ends):
    one, other = ends
    with socket.create_connection(("127.0.0.1", other.endpoint.port)):
        one.endpoint.connect("127.0.0.1", other.endpoint.port).send(b"hello")
        assert other.next() == b"hello"


def test_a_closed_connection_is_noticed_at_both_ends_and_takes_nothing(ends):
    one, other = ends
    connection = one.endpoint.connect("127.0.0.1", other.endpoint.port)
    connection.send(b"hello")
    other.next()
    connection.close()
    assert one.closed.get(timeout=PATIENCE) is connection
    other.closed.get(timeout=PATIENCE)
    with pytest.raises(ConnectionError):
        connection.send(b"more")


def test_nobody_there_is_an_error_that_names_the_address(ends):
    one, other = ends
    port = other.endpoint.port
    other.endpoint.close()
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{port}"):
        one.endpoint.connect("127.0.0.1", port)
