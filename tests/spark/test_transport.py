"""Connections between driver and slots: frames arrive whole, and only who knows the secret gets in."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from headrace.spark.slot_messages import Heartbeat, decode_for_driver, encode_message
from headrace.spark.transport import Connection, Endpoint, Frame

PATIENCE = 30.0  # seconds


class End:
    """An endpoint that keeps what it gets."""

    def __init__(self, secret: bytes = b"secret", *, encrypts: bool = False) -> None:
        self.frames: queue.SimpleQueue[tuple[Connection, bytes]] = queue.SimpleQueue()
        self.closed: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self.endpoint = Endpoint(
            secret, lambda at, frame: self.frames.put((at, bytes(frame))), self.closed.put, encrypts=encrypts
        )

    def next(self) -> bytes:
        return self.frames.get(timeout=PATIENCE)[1]


@pytest.fixture(params=["plain", "encrypted"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[End, End]]:
    encrypts = request.param == "encrypted"
    one, other = End(encrypts=encrypts), End(encrypts=encrypts)
    yield one, other
    one.endpoint.close()
    other.endpoint.close()


def test_frames_of_all_sizes_arrive_whole_and_in_order(ends):
    one, other = ends
    connection = one.endpoint.connect("127.0.0.1", other.endpoint.port)
    frames = [os.urandom(size) for size in (0, 1, 7, 4096, 1_048_576, 1_048_577, 9_000_000, 3)]
    for frame in frames:
        connection.send(bytes(frame))
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


def test_a_connection_that_brings_what_is_no_message_is_closed_and_others_go_on(caplog):
    def received(connection: Connection, frame: Frame) -> None:
        decode_for_driver(frame)
        connection.send(bytes(frame))

    one, closed = End(), queue.SimpleQueue[Connection]()
    driver = Endpoint(b"secret", received, closed.put)
    one.endpoint.connect("127.0.0.1", driver.port).send(b"\xc1 is no message")
    closed.get(timeout=PATIENCE)
    assert "a connection was closed: 15 bytes are no message for the driver" in caplog.text
    good = encode_message(Heartbeat())
    one.endpoint.connect("127.0.0.1", driver.port).send(good)
    assert one.next() == good
    driver.close()
    one.endpoint.close()


def test_who_does_not_know_the_secret_is_not_let_in(ends):
    _, other = ends
    stranger = End(b"another secret")
    with pytest.raises(ConnectionError, match=r"did not let us in|does not know the secret"):
        stranger.endpoint.connect("127.0.0.1", other.endpoint.port)
    stranger.endpoint.close()
    assert other.frames.empty()


def test_a_silent_connection_does_not_delay_others(ends):
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


def test_an_address_without_a_server_is_an_error_that_names_it(ends):
    one, other = ends
    port = other.endpoint.port
    other.endpoint.close()
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{port}"):
        one.endpoint.connect("127.0.0.1", port)


class Wire:
    """A host between two ends, which sees and may change what they send."""

    def __init__(self, port: int, change: Callable[[bytes], bytes] = bytes) -> None:
        self.seen, self._change, self._target = bytearray(), change, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        near, _ = self._listener.accept()
        with self._listener, near, socket.create_connection(("127.0.0.1", self._target)) as far:
            back = threading.Thread(target=self._copy, args=(far, near, bytes), daemon=True)
            back.start()
            self._copy(near, far, self._change)
            back.join(PATIENCE)

    def _copy(self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with suppress(OSError):
            while some := source.recv(65536):
                self.seen += some
                target.sendall(change(some))
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def join(self) -> None:
        self._thread.join(PATIENCE)


def test_encrypted_frames_cannot_be_read_on_their_way():
    one, other = End(encrypts=True), End(encrypts=True)
    wire = Wire(other.endpoint.port)
    connection = one.endpoint.connect("127.0.0.1", wire.port)
    for _ in range(2):
        connection.send(b"the balance of Ada is 12")
        assert other.next() == b"the balance of Ada is 12"
    assert b"Ada" not in wire.seen
    one.endpoint.close()
    other.endpoint.close()
    wire.join()


def test_a_frame_that_was_changed_on_its_way_closes_the_connection():
    one, other = End(encrypts=True), End(encrypts=True)
    changed = False

    def change(some: bytes) -> bytes:
        return some[:-1] + bytes([some[-1] ^ 1]) if changed else some

    wire = Wire(other.endpoint.port, change)
    connection = one.endpoint.connect("127.0.0.1", wire.port)
    connection.send(b"one")
    assert other.next() == b"one"
    changed = True
    connection.send(b"two")
    other.closed.get(timeout=PATIENCE)
    assert other.frames.empty()
    one.endpoint.close()
    other.endpoint.close()
    wire.join()


def test_an_end_that_encrypts_and_one_that_does_not_do_not_connect():
    one, other = End(encrypts=True), End()
    with pytest.raises(ConnectionError):
        one.endpoint.connect("127.0.0.1", other.endpoint.port)
    one.endpoint.close()
    other.endpoint.close()


def test_an_endpoint_listens_on_the_first_free_port_of_its_range():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"no port of {port} to {port} on 127.0.0.1 is free"):
            Endpoint(b"secret", lambda at, frame: None, lambda at: None, ports=range(port, port + 1))
    endpoint = Endpoint(b"secret", lambda at, frame: None, lambda at: None, ports=range(port, port + 1))
    assert endpoint.port == port
    endpoint.close()
