"""The web server: uvicorn in a thread, which listens on this machine only unless it is told otherwise.

`/health` and `/ready` may have a listener of their own, with its own thread and limits: whatever the clients of the
stores do, an orchestrator gets an answer.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
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
from headrace.web.access import AccessPolicy, check_address
from headrace.web.connections import ConnectionLimits, ConnectionTable, HttpProtocol
from headrace.web.dashboard_json import ApplicationView
from headrace.web.responses import error_response, handle_error

HEALTH_LIMITS = ConnectionLimits(connections=64, per_client=16, receive_seconds=2.0, send_seconds=5.0)


def web_application(
    view: ApplicationView,
    *,
    host: str = "127.0.0.1",
    hosts: Collection[str] = (),
    token: str | None = None,
    interval: int | timedelta = 1000,
    stop: threading.Event | None = None,
) -> ASGIApp:
    """Return the ASGI application of a view. It sends events every `interval`, until `stop` is set."""
    seconds = milliseconds(interval, "the interval of events") / 1000
    pages = dashboard.routes(view, token=token, interval=seconds, stop=stop or threading.Event())
    app = Starlette(
        routes=[*stores.routes(view), *prometheus.routes(view), *health.routes(view), *pages],
        exception_handlers={StreamsError: handle_error, 404: _not_found, 405: _not_allowed, Exception: handle_error},
    )
    return AccessPolicy(
        stores.KeyFastPath(app, view), host=host, hosts=hosts, token=token, body_bytes=view.limits.body_bytes
    )


def health_application(view: ApplicationView, *, host: str = "127.0.0.1", hosts: Collection[str] = ()) -> ASGIApp:
    """Return the ASGI application that answers `/health` and `/ready` only."""
    app = Starlette(
        routes=health.routes(view),
        exception_handlers={StreamsError: handle_error, 404: _not_found, 405: _not_allowed, Exception: handle_error},
    )
    return AccessPolicy(app, host=host, hosts=hosts, token=None, body_bytes=0)


class Server:
    """A web server in a thread, which runs inside a `with` block; `url` is its address.

    A host that other machines can reach needs a token, or `insecure=True`. The follower refreshes every `follow`,
    and the dashboard every `interval` (ms or a timedelta). With a `health_port`, `/health` and `/ready` are answered on
    that port too, where no connection to the other port is in their way. `options` are uvicorn's.
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
        interval: int | timedelta = 1000,
        follow: int | timedelta = 100,
        limits: ConnectionLimits | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        check_address(host, token, insecure=insecure)
        self._view, self._follow, self._stop = view, follow, threading.Event()
        app = web_application(view, host=host, hosts=hosts, token=token, interval=interval, stop=self._stop)
        self._listeners = [_Listener("headrace web", app, host, port, limits or ConnectionLimits(), options or {})]
        self.url = self._listeners[0].url
        self.port: int = self._listeners[0].port
        self.health_url = self.url  # where /health and /ready are answered
        if health_port is not None:
            try:
                app = health_application(view, host=host, hosts=hosts)
                self._listeners.append(_Listener("headrace health", app, host, health_port, HEALTH_LIMITS, {}))
            except ConfigError:
                self._listeners[0].close()
                raise
            self.health_url = self._listeners[1].url
        self._following = ExitStack()

    def __enter__(self) -> Self:
        with suppress(StreamsError):  # `freshness` has the error, and a later refresh may succeed
            self._view.follower.refresh()
        self._following.enter_context(self._view.follower.following(self._follow))
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


class _Listener:
    """A socket, and the thread that serves an ASGI application on it."""

    def __init__(
        self, name: str, app: ASGIApp, host: str, port: int, limits: ConnectionLimits, options: dict[str, Any]
    ) -> None:
        self.socket = _listen(host, port)
        self.port: int = self.socket.getsockname()[1]
        is_secure = bool(options.get("ssl_certfile"))
        self.url = f"http{'s' * is_secure}://{f'[{host}]' if ':' in host else host}:{self.port}"
        self.table = ConnectionTable(limits)
        settings: dict[str, Any] = {
            "http": partial(HttpProtocol, self.table), "timeout_graceful_shutdown": 1, "lifespan": "off", "ws": "none",
            "access_log": False, "server_header": False, "log_level": "warning", **options,
        }  # fmt: skip
        self._server = uvicorn.Server(uvicorn.Config(app, **settings))
        self._thread = threading.Thread(target=self._server.run, args=([self.socket],), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin to end; `close` waits for it."""
        self._server.should_exit = True

    def close(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()
        self.socket.close()


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
