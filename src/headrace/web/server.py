"""The web server: uvicorn in a thread, which listens on this machine only unless it is told otherwise."""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.errors import ConfigError, StreamsError
from headrace.model.windows import milliseconds
from headrace.web import dashboard, prometheus, stores
from headrace.web.access import AccessPolicy, check_address
from headrace.web.dashboard_json import ApplicationView
from headrace.web.responses import error_response, handle_error

HEAD = 64 * 1024  # bytes of the request line and the headers, which httptools does not limit


class HttpProtocol(HttpToolsProtocol):
    """A connection parsed by httptools, which is four times as fast as h11, with a limit on the size of headers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head = 0  # bytes received of a request whose headers are incomplete

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._head > HEAD and not self.transport.is_closing():
            self.send_400_response("The headers of a request may have at most 64 KiB.")

    def on_headers_complete(self) -> None:
        self._head = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head = 0
        super().on_body(body)


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
        routes=[*stores.routes(view), *prometheus.routes(view), *pages],
        exception_handlers={StreamsError: handle_error, 404: _not_found, 405: _not_allowed, Exception: handle_error},
    )
    return AccessPolicy(
        stores.KeyFastPath(app, view), host=host, hosts=hosts, token=token, body_bytes=view.limits.body_bytes
    )


class Server:
    """A web server in a thread, which runs inside a `with` block; `url` is its address.

    A host that other machines can reach needs a token, or `insecure=True`. The follower refreshes every `follow`,
    and the dashboard every `interval` (ms or a timedelta). `options` are uvicorn's, such as `ssl_certfile`.
    """

    def __init__(
        self,
        view: ApplicationView,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        hosts: Collection[str] = (),
        token: str | None = None,
        insecure: bool = False,
        interval: int | timedelta = 1000,
        follow: int | timedelta = 100,
        options: dict[str, Any] | None = None,
    ) -> None:
        check_address(host, token, insecure=insecure)
        self._view, self._follow = view, follow
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        is_secure = bool(options and options.get("ssl_certfile"))
        self.url = f"http{'s' * is_secure}://{f'[{host}]' if ':' in host else host}:{self.port}"
        settings: dict[str, Any] = {
            "http": HttpProtocol, "timeout_graceful_shutdown": 1, "limit_concurrency": 256, **(options or {})
        }  # fmt: skip
        self._stop = threading.Event()
        app = web_application(view, host=host, hosts=hosts, token=token, interval=interval, stop=self._stop)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, lifespan="off", access_log=False, server_header=False, log_level="warning", ws="none", **settings
            )
        )
        self._thread = threading.Thread(target=self._run, name="headrace web", daemon=True)

    def _run(self) -> None:
        with self._view.follower.following(self._follow):
            self._server.run(sockets=[self._socket])

    def __enter__(self) -> Self:
        with suppress(StreamsError):  # `freshness` has the error, and a later refresh may succeed
            self._view.follower.refresh()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


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
