"""Access: the checks that every request passes before a handler sees it, and the headers of every response.

An error that no handler expects is logged without its message, which may quote a record of a store.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import math
import secrets
import socket
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import add_summary, summarize
from headrace.secrets import mask_secrets
from headrace.web.connections import group_address
from headrace.web.responses import error_response

_log = logging.getLogger(__name__)
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
COOKIE = "headrace_session"  # a server appends its port: cookies of a host belong to all of its ports
PUBLIC = {"/", "/health", "/ready", "/session"}  # and /static/: the page without data, on which the user enters a token
HEADERS = {
    # No inline scripts, no other origins, no frames: the content of a record can only be text.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


def is_loopback(host: str) -> bool:
    return host in LOOPBACK or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def make_token() -> str:
    """Return a token that nobody guesses, of characters that a link can have."""
    return secrets.token_hex(24)


def derive_session(token: str) -> str:
    """Return the value of the cookie that a browser keeps instead of the token."""
    return hmac.new(token.encode(), b"headrace session", sha256).hexdigest()


@dataclass(slots=True)
class _Guesses:
    """The wrong tokens of a client: how many count at a time, and which was the last one."""

    count: float
    at: float
    last: bytes


class LoginLimit:
    """Limits the wrong tokens of each client: `TRIES` at once, then one every `INTERVAL` seconds.

    A token that is the same as the last one is not another guess: a program with an old token locks nobody out.
    """

    TRIES = 10
    INTERVAL = 6.0
    CLIENTS = 10_000  # remembered at most, the last ones

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guesses: dict[str, _Guesses] = {}  # the client that failed last comes last

    def seconds_left(self, client: str) -> float:
        """Return how long a client has to wait until it may try again; 0 if it may."""
        return max(0.0, (self._count(client) - self.TRIES + 1) * self.INTERVAL)

    def add_failure(self, client: str, token: str) -> None:
        digest = sha256(token.encode(errors="surrogatepass")).digest()
        known = self._guesses.pop(client, None)
        is_new = known is None or known.last != digest
        self._guesses[client] = _Guesses(self._count_of(known) + is_new, self._clock(), digest)
        while len(self._guesses) > self.CLIENTS:
            del self._guesses[next(iter(self._guesses))]

    def _count(self, client: str) -> float:
        return self._count_of(self._guesses.get(client))

    def _count_of(self, known: _Guesses | None) -> float:
        return 0.0 if known is None else max(0.0, known.count - (self._clock() - known.at) / self.INTERVAL)


class Authenticator:
    """Checks tokens, and the cookies that browsers keep instead of them. Without a token everybody may read."""

    def __init__(self, token: str | None, *, cookie: str = COOKIE, limit: LoginLimit | None = None) -> None:
        self.has_token, self.cookie = token is not None, cookie
        self._token, self._limit = (token or "").encode(), limit or LoginLimit()
        self.session = derive_session(token or "")  # the value of the cookie

    def check_token(self, entered: str, client: str) -> Response | None:
        """Return None for the right token, else the response that rejects it."""
        client = group_address(client)
        if left := self._limit.seconds_left(client):
            response = error_response(429, "TooManyAttempts", "too many wrong tokens came from your address: wait")
            response.headers["retry-after"] = str(math.ceil(left))
            return response
        if self.has_token and hmac.compare_digest(entered.encode(errors="surrogatepass"), self._token):
            return None
        self._limit.add_failure(client, entered)
        return error_response(401, "Unauthorized", "that is not the token")

    def check_request(self, headers: Headers, client: str) -> Response | None:
        """Return None for a request with the token or the cookie, else the response that rejects it."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.check_token(token.strip(), client)
        if self._has_session(headers):
            return None
        return error_response(401, "Unauthorized", "give the token in the header `Authorization: Bearer TOKEN`")

    def _has_session(self, headers: Headers) -> bool:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.session.encode())


class AccessPolicy:
    """Middleware that checks the host, the origin, the token and the size of the body of a request."""

    def __init__(
        self, app: ASGIApp, *, host: str, hosts: Collection[str], authenticator: Authenticator, body_bytes: int
    ) -> None:
        self._app, self._authenticator, self._body_bytes = app, authenticator, body_bytes
        self._hosts = {host.lower(), *LOOPBACK, *(name.lower() for name in hosts)}
        self._is_exposed = not is_loopback(host)
        if self._is_exposed:
            self._hosts.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rejection = self._reject(scope, Headers(scope=scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                names = {name for name, _ in headers}
                message["headers"] = [*headers, *(header for header in _HEADERS if header[0] not in names)]
            await send(message)

        try:
            await (rejection or self._app)(scope, receive, send_with_headers)
        except Exception as error:  # noqa: BLE001 - the client has its answer; uvicorn would log the message, too
            add_summary(error)
            frames = "".join(traceback.format_tb(error.__traceback__))
            _log.error("a request to the web server failed: %s\n%s", summarize(error), frames)
            _log.debug("%s", mask_secrets(str(error)))

    def _reject(self, scope: Scope, headers: Headers) -> Response | None:
        if not self._is_known_host(headers.get("host", "")):
            return error_response(421, "UnknownHost", "this server does not serve that host name")
        size = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not size.isdecimal() or int(size) > self._body_bytes:
            return error_response(413, "TooLarge", f"a body needs a content-length of at most {self._body_bytes} bytes")
        path, method = scope["path"], scope["method"]
        if method == "POST" and not self._is_same_origin(headers):
            return error_response(403, "OtherOrigin", "a page of another origin cannot act here")
        if path in PUBLIC or path.startswith("/static/"):
            return None
        if self._authenticator.has_token:
            return self._authenticator.check_request(headers, client_address(scope))
        if path.startswith("/actions/"):
            return error_response(403, "NoToken", "actions need a token: start the server with one")
        return None

    def _is_known_host(self, host: str) -> bool:
        name = _strip_port(host)
        return name in self._hosts or (self._is_exposed and _is_address(name))

    def _is_same_origin(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        return origin is None or origin.partition("://")[2] == headers.get("host")


def client_address(scope: Scope) -> str:
    """Return the address that a request comes from."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _strip_port(host: str) -> str:
    """Return a host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
