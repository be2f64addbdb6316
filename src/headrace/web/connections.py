"""Connections: how many a server keeps, how many of one client, and how long a request may take to arrive.

    accept ── TlsHandshake, if there is a certificate ──▶ HttpProtocol ──▶ the ASGI application
                  │                                          │
                  └───────────── ConnectionTable ────────────┘   every open connection, by client

A connection is busy while the server answers a complete request. All others wait for the client: they are idle, in the
middle of a request, or in that of a TLS handshake. When a limit is reached, the table closes the connection that has
waited longest, so that connections that do nothing never keep out one that does. If every connection is busy, a new
one gets a place in the reserve, which has limits of its own: `/health` and `/ready` are answered there, and all else
gets the status 503.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = 64 * 1024  # bytes of the request line and the headers, which httptools does not limit
HEALTH_PATHS = {"/health", "/ready"}
TOO_MANY = "Too many connections are open."


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of the connections of one listener."""

    connections: int = 256  # open at once
    per_client: int = 64  # open at once, of one address
    receive_seconds: float = (
        10.0  # from the first byte of a request to its last, and from a connect to the first request
    )
    send_seconds: float = 30.0  # for which a client may leave a response unread


class Connection(Protocol):
    """An open connection, as the table sees it."""

    @property
    def is_busy(self) -> bool: ...
    def abort(self) -> None: ...


class ConnectionTable:
    """The open connections of a listener, by client, the oldest first."""

    def __init__(self, limits: ConnectionLimits, reserve: ConnectionTable | None = None) -> None:
        self.limits, self.reserve = limits, reserve
        self._by_client: dict[str, dict[Connection, None]] = {}  # a dict keeps the order of arrival
        self._clients: dict[Connection, str] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def admit(self, connection: Connection, client: str) -> bool:
        """Add a connection, in the place of one that waits for its client if need be. False if there is no place."""
        if len(self._by_client.get(client, ())) >= self.limits.per_client and not self._evict(client):
            return False
        if len(self) >= self.limits.connections and not any(map(self._evict, self._by_size())):
            return False
        self._by_client.setdefault(client, {})[connection] = None
        self._clients[connection] = client
        return True

    def find_place(self, connection: Connection, client: str) -> ConnectionTable | None:
        """Add a connection here or else to the reserve. Return the table that has it; None if there is no place."""
        if self.admit(connection, client):
            return self
        return None if self.reserve is None else self.reserve.find_place(connection, client)

    def release(self, connection: Connection) -> None:
        """Remove a connection that is closed, if it is in the table."""
        client = self._clients.pop(connection, None)
        if client is not None:
            del self._by_client[client][connection]
            if not self._by_client[client]:
                del self._by_client[client]

    def _evict(self, client: str) -> bool:
        """Close the oldest connection of a client that is not busy. False if all are."""
        found = next((each for each in self._by_client[client] if not each.is_busy), None)
        if found is None:
            return False
        self.release(found)
        found.abort()
        return True

    def _by_size(self) -> list[str]:
        """Return the clients, those with the most connections first."""
        return sorted(self._by_client, key=lambda client: -len(self._by_client[client]))


def client_of(transport: asyncio.BaseTransport) -> str:
    """Return the client that a connection counts for: its address."""
    peer = transport.get_extra_info("peername")
    return group_address(str(peer[0])) if peer else ""


def group_address(address: str) -> str:
    """Return an address as limits count it. Of IPv6 it is the network, of which a client has every address.

    >>> group_address("10.0.0.7"), group_address("2001:db8:0:1:aaaa::7"), group_address("::ffff:10.0.0.7")
    ('10.0.0.7', '2001:db8:0:1::/64', '10.0.0.7')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


async def answer_health(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application of a connection in the reserve."""
    if scope["path"] not in HEALTH_PATHS:
        app = PlainTextResponse(TOO_MANY, 503, {"retry-after": "1"})
    await app(scope, receive, send)


class HttpProtocol(HttpToolsProtocol):
    """A connection parsed by httptools, which is four times as fast as h11, with limits of size and time."""

    def __init__(self, table: ConnectionTable, **options: Any) -> None:
        super().__init__(**options)
        self._table = table
        self._head = 0  # bytes received of a request whose headers are incomplete
        self._is_receiving = False  # a request has begun to arrive
        self._is_reserve = False  # it is there for one request, to /health or /ready
        self._arrival: asyncio.TimerHandle | None = None  # runs until the request has arrived
        self._departure: asyncio.TimerHandle | None = None  # runs while the client does not read

    @property
    def is_busy(self) -> bool:
        return not self._is_receiving and self.cycle is not None and not self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def abort(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as in uvicorn
        super().connection_made(transport)
        found = self._table.find_place(self, client_of(transport))
        if found is None:
            self._refuse(b"503 Service Unavailable", b"retry-after: 1\r\n", TOO_MANY.encode())
            return
        if found is not self._table:
            self._table, self._is_reserve = found, True
            self.app = partial(answer_health, self.app)
        self._start_arrival()

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.release(self)
        self._stop_arrival()
        self.resume_writing()
        super().connection_lost(exc)

    # ------------------------------------------------------------------------------------------------------- arrival
    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        self._is_receiving = True
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head > HEAD:
            self.send_400_response("The headers of a request may have at most 64 KiB.")
        elif self._is_receiving and self._arrival is None:
            self._start_arrival()

    def on_message_begin(self) -> None:
        self._is_receiving = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = 0
        super().on_headers_complete()
        if self._is_reserve:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_receiving = False
        self._stop_arrival()
        super().on_message_complete()

    def _start_arrival(self) -> None:
        self._arrival = self.loop.call_later(self._table.limits.receive_seconds, self._expire)

    def _stop_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _expire(self) -> None:
        """Close a connection whose request did not arrive in time."""
        if self.cycle is not None and not self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            self.abort()  # the response may have begun
        else:
            self._refuse(b"408 Request Timeout", b"", b"The request did not arrive in time.")

    def _refuse(self, status: bytes, header: bytes, message: bytes) -> None:
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\n%bcontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (status, header, len(message), message)
        )
        self.transport.close()

    # ----------------------------------------------------------------------------------------------------- departure
    def pause_writing(self) -> None:
        super().pause_writing()
        if self._departure is None:
            self._departure = self.loop.call_later(self._table.limits.send_seconds, self.abort)

    def resume_writing(self) -> None:
        if self._departure is not None:
            self._departure.cancel()
            self._departure = None
        super().resume_writing()


class TlsHandshake(asyncio.Protocol):
    """A connection that is not encrypted yet. It is in the table, and becomes an `HttpProtocol` after the handshake.

    asyncio's own TLS servers give a connection to its protocol after the handshake only, so that no limit would count
    those that never begin one.
    """

    def __init__(self, table: ConnectionTable, context: ssl.SSLContext, **options: Any) -> None:
        self._table, self._context, self._options = table, context, options
        self._place: ConnectionTable | None = None  # the table that has it
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._early, self._is_lost = bytearray(), False

    is_busy = False

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._transport = transport
        self._place = self._table.find_place(self, client_of(transport))
        if self._place is None:
            transport.abort()
            return
        transport.pause_reading()  # the first bytes belong to the handshake
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        self._early += data  # decrypted, and sent together with the end of the handshake

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._release()

    def _release(self) -> None:
        if self._place is not None:
            self._place.release(self)

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        loop, seconds = asyncio.get_running_loop(), (self._place or self._table).limits.receive_seconds
        encrypted: asyncio.Transport | None = None
        with suppress(OSError, TimeoutError):  # the client does not speak TLS, or has gone
            encrypted = await loop.start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=1
            )
        self._release()
        if encrypted is None or self._is_lost:
            transport.abort()
            return
        http = HttpProtocol(self._table, **self._options)
        encrypted.set_protocol(http)
        http.connection_made(encrypted)
        if self._early and not encrypted.is_closing():
            http.data_received(bytes(self._early))
