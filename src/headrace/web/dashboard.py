"""The dashboard: its files, its data, its events and its actions."""

from __future__ import annotations

import hmac
import threading
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

import anyio
import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headrace.errors import StoreNotReadyError
from headrace.web.access import COOKIE, session_of
from headrace.web.application_view import ApplicationView
from headrace.web.responses import dumps, failure, masked_settings, reply

STATIC = {
    "icon.svg": "image/svg+xml",
    "style.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "graph.js": "text/javascript; charset=utf-8",
    "node.js": "text/javascript; charset=utf-8",
    "stores.js": "text/javascript; charset=utf-8",
}
NAP = 0.1  # seconds
ACTIONS = ("pause", "resume", "snapshot", "stop")


def routes(board: ApplicationView, *, token: str | None, interval: float, over: threading.Event) -> list[Route]:
    pages = Dashboard(board, token, interval, over)
    return [
        Route("/", pages.page),
        Route("/static/{name}", pages.file),
        Route("/health", pages.health),
        Route("/session", pages.session, methods=["POST"]),
        Route("/api/status", pages.status),
        Route("/api/topology", pages.topology),
        Route("/api/nodes/{name:path}", pages.node),
        Route("/api/batches", pages.batches),
        Route("/api/durability", pages.durability),
        Route("/api/settings", pages.settings),
        Route("/events", pages.events),
        Route("/actions/{action}", pages.act, methods=["POST"]),
    ]


class Dashboard:
    """What is under the pages' addresses."""

    def __init__(self, board: ApplicationView, token: str | None, interval: float, over: threading.Event) -> None:
        self._board, self._token, self._interval, self._over, self._listeners = board, token, interval, over, 0

    async def page(self, request: Request) -> Response:
        return Response(_read("index.html"), media_type="text/html; charset=utf-8")

    async def file(self, request: Request) -> Response:
        """Only names that are known are files."""
        name = request.path_params["name"]
        if name not in STATIC:
            return failure(404, "NotFound", "there is no such file")
        return Response(_read(name), headers={"content-type": STATIC[name]})

    def health(self, request: Request) -> Response:
        try:
            status = self._board.status()
        except StoreNotReadyError:
            return reply({"healthy": False, "verdict": "There is no batch yet."}, 503)
        return reply({"healthy": status["healthy"], "verdict": status["verdict"]}, 200 if status["healthy"] else 503)

    async def session(self, request: Request) -> Response:
        """Takes the token of a browser, which keeps a cookie instead."""
        try:
            given = str(orjson.loads(await request.body())["token"])
        except (ValueError, KeyError, TypeError):
            return failure(400, "NoToken", 'send {"token": …}')
        if self._token is None or not hmac.compare_digest(given.encode(), self._token.encode()):
            return failure(401, "Unauthorized", "that is not the token")
        response = reply({"ok": True})
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, session_of(self._token), httponly=True, samesite="strict", secure=secure)
        return response

    # ------------------------------------------------------------------------------------------------------- data
    # What is not `async` runs in a thread: the log is asked for its ends, and serdes of the user's decode records.
    def status(self, request: Request) -> Response:
        return reply({**self._board.status(), "actions": list(self._actions())})

    def topology(self, request: Request) -> Response:
        return reply(self._board.graph())

    def node(self, request: Request) -> Response:
        found = self._board.node(request.path_params["name"])
        return failure(404, "NotFound", "the topology has no such node") if found is None else reply(found)

    def batches(self, request: Request) -> Response:
        return reply({"batches": self._board.batches()})

    def durability(self, request: Request) -> Response:
        return reply(self._board.durability())

    async def settings(self, request: Request) -> Response:
        return reply(masked_settings(self._board.settings))

    async def events(self, request: Request) -> Response:
        if self._listeners >= self._board.limits.listeners:
            return failure(503, "TooManyListeners", "close another page of this dashboard first")
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self._told(request), media_type="text/event-stream", headers=headers)

    async def _told(self, request: Request) -> AsyncIterator[bytes]:
        """Everything that moves, again and again; the batches since the last time."""
        self._listeners += 1
        last = -1
        try:
            while not self._over.is_set() and not await request.is_disconnected():
                try:
                    moving = await run_in_threadpool(self._moving, last)  # the log is asked for its ends
                except StoreNotReadyError:
                    yield b"event: waiting\ndata: {}\n\n"
                else:
                    last = moving["status"]["batch"]
                    yield b"event: state\ndata: " + dumps(moving) + b"\n\n"
                await self._pause()
        finally:
            self._listeners -= 1

    async def _pause(self) -> None:
        """Until the next event, or the end of the server, which waits for nobody who listens."""
        left = self._interval
        while left > 0 and not self._over.is_set():
            await anyio.sleep(min(left, NAP))
            left -= NAP

    def _moving(self, last: int) -> dict[str, Any]:
        board, seen = self._board, self._board.observe()
        return {
            "status": {**board.status(seen), "actions": list(self._actions())},
            "durability": board.durability(seen),
            "dropped": {str(number): reasons for number, reasons in board.dropped(seen).items()},
            "counts": dict(seen.nodes),
            "edges": [[*edge, count] for edge, count in seen.edges.items()],
            "batches": [batch for batch in board.batches(seen) if batch["number"] > last],
            "stores": {store["name"]: store["entries"] for store in board.stores()},
        }

    # ---------------------------------------------------------------------------------------------------- actions
    def _actions(self) -> tuple[str, ...]:
        return ACTIONS if self._token is not None and self._board.observed is not None else ()

    async def act(self, request: Request) -> Response:
        action, observed = request.path_params["action"], self._board.observed
        if observed is None or action not in ACTIONS:
            return failure(404, "NotFound", "there is no such action here")
        acts = {
            "pause": observed.pause,
            "resume": observed.resume,
            "snapshot": observed.snapshot,
            "stop": observed.stop,
        }
        await run_in_threadpool(acts[action])
        return reply({"ok": True})


def _read(name: str) -> bytes:
    return (files("headrace.web") / "static" / name).read_bytes()
