"""Connections between the driver and the slots, and between slots: frames of bytes over TCP, both ends authenticated.

    endpoint = Endpoint(secret, received, closed)      # one thread; calls `received(connection, frame)`
    connection = endpoint.connect(host, port)          # or the other end connects to `endpoint.port`
    connection.send(b"...")                            # from any thread

    | length u64, big-endian | bytes |      with `encrypts`: the bytes are sealed by AES-256-GCM

The endpoint's thread reads all connections, so receiving never waits for processing, and `send`, which blocks while the
buffer of the other end is full, cannot deadlock. When a connection opens, each end proves to the other that it knows
the secret: it returns the HMAC-SHA256 of a nonce that the other end has chosen. A connection that does not do so within
five seconds is closed. A connection whose other end does not answer for five seconds, because a network is cut, is
closed, too.

Encrypted frames have a key for each direction of each connection, which both ends derive from the secret and both
nonces. The nonce of a frame is its number on the connection, so that frames cannot be left out, repeated or reordered.

Why not Arrow Flight: a round trip of a small message takes 0.03 ms here and 0.3 to 0.4 ms there, and a batch with
two repartitions makes eight of them one after the other.
"""

from __future__ import annotations

import hmac
import logging
import os
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from headrace.errors import MissingExtraError
from headrace.extras import import_extra

_log = logging.getLogger(__name__)
_LENGTH = struct.Struct(">Q")
_NONCE, _PROOF = 32, 32
_HANDSHAKE_SECONDS = 5.0
_UNANSWERED = 5  # seconds without an acknowledgement of the other host after which a connection is closed
_READ = 1 << 20
MAX_FRAME = 1 << 31  # bytes; a longer frame does not come from Headrace
Frame = bytes | bytearray


class _Cipher:
    """Seals the frames of one connection, and opens those of the other end."""

    def __init__(self, mine: bytes, theirs: bytes) -> None:
        self._mine, self._theirs = _make_aes(mine), _make_aes(theirs)
        self._sealed = self._opened = 0

    def seal(self, frame: bytes) -> bytes:
        self._sealed += 1
        return self._mine.encrypt(self._sealed.to_bytes(12, "big"), frame, None)

    def open(self, frame: Frame) -> bytes:
        """Raises EOFError if the frame is not the next one that the other end has sealed."""
        self._opened += 1
        try:
            return self._theirs.decrypt(self._opened.to_bytes(12, "big"), bytes(frame), None)
        except Exception:  # noqa: BLE001 - InvalidTag, which cannot be imported without the package
            raise EOFError("a frame was changed on its way") from None


def _make_aes(key: bytes) -> Any:
    try:
        return import_extra("cryptography.hazmat.primitives.ciphers.aead", "encryption").AESGCM(key)
    except MissingExtraError as error:
        error.add_note(
            "Spark encrypts its connections, so the driver and the slots have to encrypt theirs, on all hosts."
        )
        raise


class TrafficCounter:
    """Counts the frames of an endpoint, and their bytes. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames_sent = self._bytes_sent = self._frames_received = self._bytes_received = 0

    def add_sent(self, size: int) -> None:
        with self._lock:
            self._frames_sent += 1
            self._bytes_sent += size

    def add_received(self, frames: Sequence[Frame]) -> None:
        with self._lock:
            self._frames_received += len(frames)
            self._bytes_received += sum(map(len, frames))

    @property
    def total(self) -> tuple[int, int, int, int]:
        """Frames and bytes sent, frames and bytes received."""
        with self._lock:
            return self._frames_sent, self._bytes_sent, self._frames_received, self._bytes_received


class Connection:
    """One end of a connection. `send` may be called from any thread, and raises ConnectionError once it is closed."""

    def __init__(self, channel: socket.socket, traffic: TrafficCounter, cipher: _Cipher | None = None) -> None:
        self._socket, self._lock, self._traffic, self._cipher = channel, threading.Lock(), traffic, cipher
        self._received = bytearray()
        self._large: bytearray | None = None  # a frame of which `_done` bytes have arrived
        self._done = 0
        self._is_closed = False
        self.peer: object = None  # set by the owner of the endpoint, to identify the other end

    def send(self, *parts: bytes) -> None:
        """Sends one frame; it consists of the parts, joined."""
        with self._lock:
            if self._cipher is not None:
                parts = (self._cipher.seal(b"".join(parts)),)
            size = sum(map(len, parts))
            head = _LENGTH.pack(size)
            self._traffic.add_sent(size)
            try:
                # One call for a small frame: two packets would wait for each other's acknowledgement.
                if size < _READ:
                    self._socket.sendall(b"".join((head, *parts)))
                else:
                    self._socket.sendall(head)
                    for part in parts:
                        self._socket.sendall(part)
            except (OSError, ValueError) as error:
                raise ConnectionError(f"the connection to {self.peer} is closed: {error}") from error

    def close(self) -> None:
        """Closes the connection; the endpoint's thread then calls `closed`."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        return self._socket.fileno()

    def read_frames(self) -> list[Frame]:
        """Reads what has arrived, and returns the whole frames. Raises EOFError at the end of the connection."""
        frames = self._read_frames()
        return [*frames] if self._cipher is None else [self._cipher.open(frame) for frame in frames]

    def _read_frames(self) -> list[bytearray]:
        try:
            if self._large is not None:
                return self._read_large(self._large)
            some = self._socket.recv(_READ)
        except OSError:
            some = b""
        if not some or self._is_closed:
            raise EOFError
        buffer = self._received
        buffer += some
        frames: list[bytearray] = []
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            end = _LENGTH.size + length
            if length > MAX_FRAME:
                raise EOFError
            if len(buffer) < end:
                if length > _READ:
                    # The rest of a large frame is read into a buffer of its own: no byte of it is copied twice.
                    self._large, self._done = bytearray(length), len(buffer) - _LENGTH.size
                    self._large[: self._done] = buffer[_LENGTH.size :]
                    buffer.clear()
                break
            frames.append(buffer[_LENGTH.size : end])
            del buffer[:end]
        return frames

    def _read_large(self, frame: bytearray) -> list[bytearray]:
        with memoryview(frame) as view:
            count = self._socket.recv_into(view[self._done :])
        if count == 0:
            raise EOFError
        self._done += count
        if self._done < len(frame):
            return []
        self._large = None
        return [frame]

    def release(self) -> None:
        """Frees the socket. Only the endpoint's thread calls it."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.close()


class Endpoint:
    """Accepts and opens connections, and reads all of them in one thread.

    `received(connection, frame)` and `closed(connection)` are called in that thread: they must not block. `host` is the
    address to bind to, `ports` the ports to try, in order; 0 is any free one. Both ends of a connection encrypt, or
    none does.
    """

    def __init__(
        self,
        secret: bytes,
        received: Callable[[Connection, Frame], None],
        closed: Callable[[Connection], None],
        *,
        host: str = "127.0.0.1",
        ports: range | None = None,
        encrypts: bool = False,
        name: str = "headrace endpoint",
    ) -> None:
        if encrypts:
            _make_aes(bytes(32))  # raises an error if the package is missing
        self._encrypts = encrypts
        self._secret, self._received, self._closed = secret, received, closed
        self.traffic = TrafficCounter()
        self._listener = _listen(host, ports)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._todo, self._is_over = deque[Callable[[], None]](), False
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def connect(self, host: str, port: int, timeout: float = _HANDSHAKE_SECONDS) -> Connection:
        """Opens a connection. Raises ConnectionError if the other end does not answer, or does not know the secret."""
        try:
            channel = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise ConnectionError(f"{host}:{port} cannot be reached: {error}") from error
        try:
            theirs = _exactly(channel, _NONCE)
            mine = os.urandom(_NONCE)
            channel.sendall(self._proof(b"client", theirs) + mine)
            if not hmac.compare_digest(_exactly(channel, _PROOF), self._proof(b"server", mine)):
                raise ConnectionError(f"{host}:{port} does not know the secret of this application")
        except (OSError, EOFError) as error:
            channel.close()
            raise ConnectionError(f"{host}:{port} did not let us in: {error}") from error
        nonces = bytes(theirs) + mine
        return self._add(channel, self._cipher(b"to the server", b"to the client", nonces))

    def close(self) -> None:
        """Closes all connections, and ends the thread."""
        self._is_over = True
        self._call(lambda: None)
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    # ------------------------------------------------------------------------------------------------- in the thread
    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    with suppress(BlockingIOError):
                        self._woken.recv(4096)
                    while self._todo:
                        self._todo.popleft()()
                elif isinstance(key.fileobj, Connection):
                    self._read(key.fileobj)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, Connection):
                key.fileobj.release()
        self._listener.close()
        self._selector.close()
        self._wake.close()
        self._woken.close()

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError:
            return
        # A client that says nothing must not keep the others waiting.
        threading.Thread(target=self._let_in, args=(channel,), name="headrace handshake", daemon=True).start()

    def _let_in(self, channel: socket.socket) -> None:
        try:
            channel.settimeout(_HANDSHAKE_SECONDS)
            mine = os.urandom(_NONCE)
            channel.sendall(mine)
            answer = _exactly(channel, _PROOF + _NONCE)
            if not hmac.compare_digest(answer[:_PROOF], self._proof(b"client", mine)):
                raise ConnectionError
            channel.sendall(self._proof(b"server", answer[_PROOF:]))
        except (OSError, EOFError):
            _log.warning("a connection without the secret of this application was closed")
            channel.close()
            return
        self._add(channel, self._cipher(b"to the client", b"to the server", mine + bytes(answer[_PROOF:])))

    def _cipher(self, mine: bytes, theirs: bytes, nonces: bytes) -> _Cipher | None:
        return _Cipher(self._proof(mine, nonces), self._proof(theirs, nonces)) if self._encrypts else None

    def _add(self, channel: socket.socket, cipher: _Cipher | None) -> Connection:
        channel.settimeout(None)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _close_when_unanswered(channel)
        connection = Connection(channel, self.traffic, cipher)

        def register() -> None:
            self._selector.register(connection, selectors.EVENT_READ)

        self._call(register)
        return connection

    def _call(self, function: Callable[[], None]) -> None:
        self._todo.append(function)
        with suppress(OSError):
            self._wake.send(b"\0")

    def _read(self, connection: Connection) -> None:
        try:
            frames = connection.read_frames()
            self.traffic.add_received(frames)
            for frame in frames:
                self._received(connection, frame)
        except (EOFError, ConnectionError) as error:
            if isinstance(error, ConnectionError):
                _log.warning("a connection was closed: %s", error)
            self._selector.unregister(connection)
            connection.release()
            self._closed(connection)

    def _proof(self, role: bytes, nonce: bytes | bytearray) -> bytes:
        mode = b"encrypted " if self._encrypts else b""  # ends of different modes do not understand each other
        return hmac.digest(self._secret, mode + role + bytes(nonce), sha256().name)


def port_range(ports: tuple[int, int] | None) -> range | None:
    """The ports of a setting, from the first to the last one; None: any."""
    return None if ports is None else range(ports[0], ports[1] + 1)


def _listen(host: str, ports: range | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried: OSError | None = None
    for port in ports or (0,):
        try:
            return socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            tried = error
    some = f"no port of {ports[0]} to {ports[-1]}" if ports else "no port"
    raise ConnectionError(f"{some} on {host} is free: {tried}")


def _close_when_unanswered(channel: socket.socket) -> None:
    """Has the system close a connection that the network has cut, also one on which nothing is sent."""
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _UNANSWERED - 3)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _UNANSWERED)


def _exactly(channel: socket.socket, size: int) -> bytearray:
    found = bytearray()
    while len(found) < size:
        some = channel.recv(size - len(found))
        if not some:
            raise EOFError("the other end has closed the connection")
        found += some
    return found
