"""The web server: uvicorn in a thread, which listens on this machine only unless it is told otherwise.

`/health` and `/ready` have a reserve of connections, which no other request can use, and may have a listener of their
own, with its own thread: whatever the clients of the stores do, an orchestrator gets an answer.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Collection
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace.errors import ConfigError, StreamsError
from headrace.model.windows import milliseconds
from headrace.web import dashboard, health, prometheus, stores
from headrace.web.access import COOKIE, AccessPolicy, Authenticator, make_token
from headrace.web.connections import ConnectionLimits, ConnectionTable, HttpProtocol, TlsHandshake
from headrace.web.dashboard_json import ApplicationView
from headrace.web.openapi import openapi_route
from headrace.web.recorder import Recorder
from headrace.web.responses import error_response, handle_error

# Of the reserve of every listener with /health, and of a listener of its own.
HEALTH_LIMITS = ConnectionLimits(connections=64, per_client=16, receive_seconds=2.0, send_seconds=5.0)


def web_application(
    view: ApplicationView,
    *,
    host: str = "127.0.0.1",
    hosts: Collection[str] = (),
    token: str | None = None,
    interval: int | timedelta = 1000,
    stop: threading.Event | None = None,
    cookie: str = COOKIE,
    recorder: Recorder | None = None,
) -> ASGIApp:
    """Return the ASGI application of a view, for a server of your own. It sends events until `stop` is set.

    Without a `token` everybody may read who reaches it: `Server` makes one, and this function does not. Without a
    `recorder` the charts begin when the dashboard is opened for the first time.
    """
    authenticator, stop = Authenticator(token, cookie=cookie), stop or threading.Event()
    seconds = milliseconds(interval, "the interval of events") / 1000
    recorder = recorder or Recorder(view, seconds, stop)
    pages = dashboard.routes(view, authenticator=authenticator, recorder=recorder, interval=seconds, stop=stop)
    routes = [*stores.routes(view), *prometheus.routes(view), *health.routes(view), *pages]
    app = Starlette(
        routes=[*routes, openapi_route(routes)],
        exception_handlers={StreamsError: handle_error, 404: _not_found, 405: _not_allowed, Exception: handle_error},
    )
    return AccessPolicy(
        stores.KeyFastPath(app, view),
        host=host,
        hosts=hosts,
        authenticator=authenticator,
        body_bytes=view.limits.body_bytes,
    )


def health_application(view: ApplicationView, *, host: str = "127.0.0.1", hosts: Collection[str] = ()) -> ASGIApp:
    """Return the ASGI application that answers `/health` and `/ready` only."""
    app = Starlette(
        routes=health.routes(view),
        exception_handlers={StreamsError: handle_error, 404: _not_found, 405: _not_allowed, Exception: handle_error},
    )
    return AccessPolicy(app, host=host, hosts=hosts, authenticator=Authenticator(None), body_bytes=0)


class Server:
    """A web server in a thread, which runs inside a `with` block; `url` is its address.

    Requests need the `token`; without one the server makes one, and `link` opens the dashboard with it. `insecure=True`
    lets everybody read who reaches the address, and nobody act. A `certificate` (a PEM file, with the `private_key` in
    it or in another file) makes the server speak HTTPS only.

    The follower refreshes every `follow`, and the dashboard every `interval` (ms or a timedelta). With a `health_port`,
    `/health` and `/ready` are answered on that port too, by plain HTTP, where no connection to the other port is in
    their way. `options` are uvicorn's.
    """

    def __init__(
        self,
        view: ApplicationView,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        health_port: int | None = None,
        hosts: Collection[str] = (),
        token: str | None = None,
        insecure: bool = False,
        certificate: str | Path | None = None,
        private_key: str | Path | None = None,
        interval: int | timedelta = 1000,
        follow: int | timedelta = 100,
        limits: ConnectionLimits | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        if token and insecure:
            raise ConfigError("insecure=True lets everybody read: leave it out, or the token")
        self.is_token_generated = not token and not insecure
        self.token = None if insecure else token or make_token()
        self._view, self._follow, self._stop = view, follow, threading.Event()
        context = load_certificate(certificate, private_key)
        self._recorder = Recorder(view, milliseconds(interval, "the interval of events") / 1000, self._stop)
        main = Listener("headrace web", host, port, context, limits or ConnectionLimits(), reserve=HEALTH_LIMITS)
        self._listeners, self.port, self.url = [main], main.port, main.url
        main.serve(
            web_application(
                view, host=host, hosts=hosts, token=self.token, interval=interval, stop=self._stop,
                cookie=f"{COOKIE}_{main.port}", recorder=self._recorder,
            ),
            options or {},
        )  # fmt: skip
        self.health_url = self.url  # where /health and /ready are answered
        if health_port is not None:
            try:
                self._listeners.append(Listener("headrace health", host, health_port, None, HEALTH_LIMITS))
            except ConfigError:
                main.close()
                raise
            self._listeners[1].serve(health_application(view, host=host, hosts=hosts), {})
            self.health_url = self._listeners[1].url
        self._following = ExitStack()

    @property
    def link(self) -> str:
        """The address for people: with the token if the server has made it, without if it was given one.

        The token stands behind the `#`, which a browser sends to nobody; the dashboard's script reads it there.
        """
        return f"{self.url}/#token={self.token}" if self.is_token_generated else self.url

    def __enter__(self) -> Self:
        with suppress(StreamsError):  # `freshness` has the error, and a later refresh may succeed
            self._view.follower.refresh()
        self._following.enter_context(self._view.follower.following(self._follow))
        self._recorder.start()
        for listener in self._listeners:
            listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for listener in self._listeners:
            listener.stop()
        for listener in self._listeners:
            listener.close()
        self._following.close()


class Listener:
    """A socket, and the thread that serves an ASGI application on it.

    `reserve` has the limits of the connections that are for /health and /ready only.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        limits: ConnectionLimits,
        *,
        reserve: ConnectionLimits | None = None,
    ) -> None:
        self.socket = _listen(host, port)
        self.port: int = self.socket.getsockname()[1]
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
        self.table = ConnectionTable(limits, None if reserve is None else ConnectionTable(reserve))
        self._context = context
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def serve(self, app: ASGIApp, options: dict[str, Any]) -> None:
        """Set the application, before `start`."""
        plain = partial(HttpProtocol, self.table)
        settings: dict[str, Any] = {
            "http": plain if self._context is None else partial(TlsHandshake, self.table, self._context),
            "loop": "auto" if self._context is None else "asyncio",  # uvloop cannot pause before the first byte
            "proxy_headers": False,  # else a client on this machine says which address it has
            "timeout_graceful_shutdown": 1, "lifespan": "off", "ws": "none",
            "access_log": False, "server_header": False, "log_level": "warning", **options,
        }  # fmt: skip
        self._server = uvicorn.Server(uvicorn.Config(app, **settings))

    def _run(self) -> None:
        self._server.run([self.socket])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin to end; `close` waits for it."""
        self._server.should_exit = True

    def close(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()
        self.socket.close()


def load_certificate(certificate: str | Path | None, private_key: str | Path | None) -> ssl.SSLContext | None:
    """Return the TLS settings of a certificate; None without one."""
    if certificate is None:
        if private_key is not None:
            raise ConfigError("a private key needs its certificate: give both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a function for the password OpenSSL would ask for it on the terminal.
        context.load_cert_chain(certificate, private_key, password=lambda: "")
    except OSError as error:  # SSLError is one
        key = "" if private_key is None else f" with the key {private_key}"
        raise ConfigError(
            f"the certificate {certificate}{key} cannot be used: {error.strerror or error}. Give PEM files, the key "
            "without a password"
        ) from error
    return context


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol asyncio sets TCP_NODELAY. Otherwise a response waits 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}. Choose another port") from error
    listener.listen(128)
    return listener


def _not_found(request: Request, error: Exception) -> Response:
    return error_response(404, "NotFound", "no page has this address: /stores lists the stores")


def _not_allowed(request: Request, error: Exception) -> Response:
    return error_response(405, "NotAllowed", "this address does not allow that method")
