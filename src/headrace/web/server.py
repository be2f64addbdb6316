"""Requests as httptools reads them, four times as fast as h11 does, with a limit on what comes before a body.

Serves a board: on this machine only, unless it is said otherwise.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.errors import ConfigError, StreamsError
from headrace.web import dashboard, metrics, stores
from headrace.web.access import AccessPolicy, check_address
from headrace.web.application_view import ApplicationView
from headrace.web.responses import failed, failure

HEAD = 64 * 1024  # bytes of the first line and the headers, which httptools itself would take without end


class Http(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._head = 0  # bytes that have come of a request whose headers are not complete

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._head > HEAD and not self.transport.is_closing():
            self.send_400_response("The headers of a request have at most 64 KiB.")

    def on_headers_complete(self) -> None:
        self._head = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head = 0
        super().on_body(body)


def web_application(
    board: ApplicationView,
    *,
    host: str = "127.0.0.1",
    hosts: Collection[str] = (),
    token: str | None = None,
    interval: float = 1.0,
    over: threading.Event | None = None,
) -> ASGIApp:
    """The pages of an application, as ASGI; `interval` is that of events, in seconds, until it is `over`."""
    shown = dashboard.routes(board, token=token, interval=interval, over=over or threading.Event())
    app = Starlette(
        routes=[*stores.routes(board), *metrics.routes(board), *shown],
        exception_handlers={StreamsError: failed, 404: _not_found, 405: _not_allowed, Exception: failed},
    )
    return AccessPolicy(
        stores.Shortcut(app, board), host=host, hosts=hosts, token=token, body_bytes=board.limits.body_bytes
    )


class Server:
    """Serves in a thread of its own, from `with` on; `url` is where.

    A host that others can reach needs a token, or `insecure=True`. `options` are uvicorn's, such as `ssl_certfile`.
    """

    def __init__(
        self,
        board: ApplicationView,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        hosts: Collection[str] = (),
        token: str | None = None,
        insecure: bool = False,
        interval: float = 1.0,
        follow: float = 0.1,
        options: dict[str, Any] | None = None,
    ) -> None:
        check_address(host, token, insecure=insecure)
        self._board, self._follow = board, follow
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        is_secure = bool(options and options.get("ssl_certfile"))
        self.url = f"http{'s' * is_secure}://{f'[{host}]' if ':' in host else host}:{self.port}"
        settings: dict[str, Any] = {
            "http": Http, "timeout_graceful_shutdown": 1, "limit_concurrency": 256, **(options or {})
        }  # fmt: skip
        self._over = threading.Event()
        app = web_application(board, host=host, hosts=hosts, token=token, interval=interval, over=self._over)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, lifespan="off", access_log=False, server_header=False, log_level="warning", ws="none", **settings
            )
        )
        self._thread = threading.Thread(target=self._run, name="headrace web", daemon=True)

    def _run(self) -> None:
        with self._board.follower.following(self._follow):
            self._server.run(sockets=[self._socket])

    def __enter__(self) -> Self:
        with suppress(StreamsError):  # what is wrong is in `freshness`, and may be right a moment later
            self._board.follower.refresh()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol said, asyncio sends at once: otherwise an answer waits 40 ms for the client to acknowledge.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(f"{host}:{port} cannot be listened on: {error.strerror}. Choose another port") from error
    listening.listen(128)
    return listening


def _not_found(request: Request, error: Exception) -> Response:
    return failure(404, "NotFound", "there is nothing at this address: /stores lists the stores")


def _not_allowed(request: Request, error: Exception) -> Response:
    return failure(405, "NotAllowed", "that cannot be done here")
