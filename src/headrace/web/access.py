"""Who is let in: everything that is decided about a request before it is looked at."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Collection
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import ConfigError
from headrace.web.responses import failure

LOOPBACK = {"localhost", "127.0.0.1", "::1"}
COOKIE = "headrace_session"
OPEN = {"/", "/health", "/session"}  # and what lies under /static/: a page without any data, where a token can be given
HEADERS = {
    # No inline script, nothing from elsewhere, no frames: what is in a record can only ever be text.
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


def check_address(host: str, token: str | None, *, insecure: bool) -> None:
    """Refuses to show an application to the network without a token."""
    if is_loopback(host) or token or insecure:
        return
    raise ConfigError(
        f"on {host} anybody who reaches this machine could read the stores: give a token, stay on 127.0.0.1, "
        "or say that it is meant to be open (insecure=True, --insecure)"
    )


def session_of(token: str) -> str:
    """What a browser keeps instead of the token."""
    return hmac.new(token.encode(), b"headrace session", sha256).hexdigest()


class AccessPolicy:
    """Checks the host that was asked for, the token and the size of the body, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, *, host: str, hosts: Collection[str], token: str | None, body_bytes: int) -> None:
        self._app, self._token, self._body_bytes = app, token, body_bytes
        self._session = session_of(token) if token else None
        self._hosts = {host.lower(), *LOOPBACK, *(name.lower() for name in hosts)}
        self._by_address = not is_loopback(host)
        if self._by_address:
            self._hosts.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope, Headers(scope=scope))

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = message["headers"]
                names = {name for name, _ in given}
                message["headers"] = [*given, *(header for header in _HEADERS if header[0] not in names)]
            await send(message)

        await (refused or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if not self._is_known(headers.get("host", "")):
            return failure(421, "UnknownHost", "this server does not answer to that name")
        size = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not size.isdecimal() or int(size) > self._body_bytes:
            return failure(413, "TooLarge", f"a body may have {self._body_bytes} bytes, and must say how many it has")
        path, method = scope["path"], scope["method"]
        if method == "POST" and not self._is_own(headers):
            return failure(403, "OtherOrigin", "another site cannot act here")
        if path in OPEN or path.startswith("/static/"):
            return None
        is_action = path.startswith("/actions/")
        if is_action and self._token is None:
            return failure(403, "NoToken", "actions need a token: start the server with one")
        if self._token is not None and not self._has_token(headers):
            return failure(401, "Unauthorized", "give the token: Authorization: Bearer TOKEN")
        return None

    def _is_known(self, host: str) -> bool:
        name = _name(host)
        return name in self._hosts or (self._by_address and _is_address(name))

    def _is_own(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        return origin is None or origin.partition("://")[2] == headers.get("host")

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(given.strip().encode(), (self._token or "").encode())
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), (self._session or "").encode())


def _name(host: str) -> str:
    """A host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
