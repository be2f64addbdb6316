"""Access: the checks that every request passes before a handler sees it, and the headers of every response."""

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
from headrace.web.responses import error_response

LOOPBACK = {"localhost", "127.0.0.1", "::1"}
COOKIE = "headrace_session"
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


def check_address(host: str, token: str | None, *, insecure: bool) -> None:
    """Reject an address that other machines can reach, unless a token protects it."""
    if is_loopback(host) or token or insecure:
        return
    raise ConfigError(
        f"on {host} anybody who reaches this machine could read the stores: give a token, listen on 127.0.0.1, "
        "or allow it (insecure=True, --insecure)"
    )


def derive_session(token: str) -> str:
    """Return the value of the cookie that a browser keeps instead of the token."""
    return hmac.new(token.encode(), b"headrace session", sha256).hexdigest()


class AccessPolicy:
    """Middleware that checks the host, the origin, the token and the size of the body of a request."""

    def __init__(self, app: ASGIApp, *, host: str, hosts: Collection[str], token: str | None, body_bytes: int) -> None:
        self._app, self._token, self._body_bytes = app, token, body_bytes
        self._session = derive_session(token) if token else None
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

        await (rejection or self._app)(scope, receive, send_with_headers)

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
        is_action = path.startswith("/actions/")
        if is_action and self._token is None:
            return error_response(403, "NoToken", "actions need a token: start the server with one")
        if self._token is not None and not self._has_token(headers):
            return error_response(401, "Unauthorized", "give the token: Authorization: Bearer TOKEN")
        return None

    def _is_known_host(self, host: str) -> bool:
        name = _strip_port(host)
        return name in self._hosts or (self._is_exposed and _is_address(name))

    def _is_same_origin(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        return origin is None or origin.partition("://")[2] == headers.get("host")

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(token.strip().encode(), (self._token or "").encode())
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), (self._session or "").encode())


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
