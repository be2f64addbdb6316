"""The dashboard's HTTP endpoints: its files, data, events and actions. dashboard_json.py makes the JSON."""

from __future__ import annotations

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

from headrace.errors import StoreNotReadyError, StreamsError
from headrace.secrets import mask_settings
from headrace.web.access import Authenticator, client_address
from headrace.web.dashboard_json import ApplicationView
from headrace.web.recorder import Recorder
from headrace.web.responses import encode_json, error_response, json_response

STYLE, SCRIPT = "text/css; charset=utf-8", "text/javascript; charset=utf-8"
STATIC = {
    "icon.svg": "image/svg+xml",
    "style.css": STYLE,
    **dict.fromkeys(
        (
            "dashboard.js",
            "api.js",
            "charts.js",
            "format.js",
            "graph.js",
            "node.js",
            "panels.js",
            "stores.js",
            "theme.js",
        ),
        SCRIPT,
    ),
    # Libraries, unchanged: static/vendor/README.md has their versions and digests.
    "vendor/dagre.esm.js": SCRIPT,
    "vendor/panzoom.min.js": SCRIPT,
    "vendor/uPlot.iife.min.js": SCRIPT,
    "vendor/uPlot.min.css": STYLE,
}
POLL = 0.1  # seconds between two checks whether the server stops
ACTIONS = ("pause", "resume", "snapshot", "stop")  # methods of RunningApplication


def routes(
    view: ApplicationView, *, authenticator: Authenticator, recorder: Recorder, interval: float, stop: threading.Event
) -> list[Route]:
    pages = DashboardEndpoints(view, authenticator, recorder, interval, stop)
    return [
        Route("/", pages.page),
        Route("/static/{name:path}", pages.file),
        Route("/session", pages.session, methods=["POST"]),
        Route("/api/status", pages.status),
        Route("/api/topology", pages.topology),
        Route("/api/nodes/{name:path}", pages.node),
        Route("/api/batches", pages.batches),
        Route("/api/history", pages.history),
        Route("/api/drops", pages.drops),
        Route("/api/plan", pages.plan),
        Route("/api/durability", pages.durability),
        Route("/api/settings", pages.settings),
        Route("/events", pages.events),
        Route("/actions/scale", pages.scale, methods=["POST"]),
        Route("/actions/{action}", pages.act, methods=["POST"]),
    ]


class DashboardEndpoints:
    """The handlers of the dashboard's addresses."""

    def __init__(
        self,
        view: ApplicationView,
        authenticator: Authenticator,
        recorder: Recorder,
        interval: float,
        stop: threading.Event,
    ) -> None:
        self._view, self._authenticator, self._recorder = view, authenticator, recorder
        self._interval, self._stop, self._listeners = interval, stop, 0

    async def page(self, request: Request) -> Response:
        return Response(_read("index.html"), media_type="text/html; charset=utf-8")

    async def file(self, request: Request) -> Response:
        """Serve a file of the dashboard; no other name reaches the disk."""
        name = request.path_params["name"]
        if name not in STATIC:
            return error_response(404, "NotFound", "the dashboard has no such file")
        return Response(_read(name), headers={"content-type": STATIC[name]})

    async def session(self, request: Request) -> Response:
        """Check the token that a user entered, and set a cookie that stands for it."""
        try:
            entered = str(orjson.loads(await request.body())["token"])
        except (ValueError, KeyError, TypeError):
            return error_response(400, "NoToken", 'send {"token": …}')
        rejection = self._authenticator.check_token(entered, client_address(request.scope))
        if rejection is not None:
            return rejection
        response, is_secure = json_response({"ok": True}), request.url.scheme == "https"
        name, value = self._authenticator.cookie, self._authenticator.session
        response.set_cookie(name, value, httponly=True, samesite="strict", secure=is_secure)
        return response

    # ------------------------------------------------------------------------------------------------------- data
    # Handlers that are not `async` run in a thread, because they read the log's end offsets or decode records.
    def status(self, request: Request) -> Response:
        return json_response({**self._view.status(), "actions": list(self._actions())})

    def topology(self, request: Request) -> Response:
        return json_response(self._view.topology_json())

    def node(self, request: Request) -> Response:
        found = self._view.node(request.path_params["name"])
        return (
            error_response(404, "NotFound", "the topology has no such node") if found is None else json_response(found)
        )

    def batches(self, request: Request) -> Response:
        return json_response({"batches": self._view.batches()})

    def history(self, request: Request) -> Response:
        self._recorder.start()
        return json_response({"points": self._recorder.points_after(0)})

    def drops(self, request: Request) -> Response:
        return json_response(self._view.drops())

    def plan(self, request: Request) -> Response:
        return json_response(self._view.plan_json())

    def durability(self, request: Request) -> Response:
        return json_response(self._view.durability())

    async def settings(self, request: Request) -> Response:
        return json_response(mask_settings(self._view.settings))

    async def events(self, request: Request) -> Response:
        if self._listeners >= self._view.limits.listeners:
            return error_response(503, "TooManyListeners", "close another page of this dashboard first")
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self._send_events(request), media_type="text/event-stream", headers=headers)

    async def _send_events(self, request: Request) -> AsyncIterator[bytes]:
        """Send the changing part of the dashboard's data every interval, with the points since the last event."""
        self._recorder.start()
        self._listeners += 1
        last = 0
        try:
            while not self._stop.is_set() and not await request.is_disconnected():
                try:
                    event = await run_in_threadpool(
                        self._event_json, last
                    )  # in a thread: it reads the log's end offsets
                except StoreNotReadyError:
                    yield b"event: waiting\ndata: {}\n\n"
                else:
                    last = event["points"][-1]["at"] if event["points"] else last
                    yield b"event: state\ndata: " + encode_json(event) + b"\n\n"
                await self._wait()
        finally:
            self._listeners -= 1

    async def _wait(self) -> None:
        """Wait until the next event is due or the server stops."""
        left = self._interval
        while left > 0 and not self._stop.is_set():
            await anyio.sleep(min(left, POLL))
            left -= POLL

    def _event_json(self, last: int) -> dict[str, Any]:
        view, report = self._view, self._view.report()
        return {
            "status": {**view.status(report), "actions": list(self._actions())},
            "durability": view.durability(report),
            "dropped": {str(number): reasons for number, reasons in view.dropped(report).items()},
            "drops": view.drops(),
            "dead_letters": report.dead_letters,
            "dead_letter_topic": report.dead_letter_topic,
            "rates": self._recorder.rates.to_json(),
            "points": self._recorder.points_after(last),
            "stores": {store["name"]: store["entries"] for store in view.follower.snapshot.summarize_stores()},
        }

    # ---------------------------------------------------------------------------------------------------- actions
    def _actions(self) -> tuple[str, ...]:
        return ACTIONS if self._authenticator.has_token and self._view.application is not None else ()

    async def act(self, request: Request) -> Response:
        action, application = request.path_params["action"], self._view.application
        if application is None or action not in ACTIONS:
            return error_response(404, "NotFound", "this application has no such action")
        await run_in_threadpool(getattr(application, action))
        return json_response({"ok": True})

    async def scale(self, request: Request) -> Response:
        """Set the number of slots: `/actions/scale?slots=4`."""
        application, given = self._view.application, request.query_params.get("slots", "")
        if application is None:
            return error_response(404, "NotFound", "this application has no such action")
        wanted = int(given) if given.isdecimal() and len(given) < 10 else 0
        if wanted < 1:
            return error_response(400, "BadRequest", f"slots={given[:40]!r}: give a whole number, at least 1")
        try:
            slots = await run_in_threadpool(application.scale, wanted)
        except StreamsError as error:
            return error_response(409, type(error).__name__, str(error))
        return json_response({"slots": slots})


def _read(name: str) -> bytes:
    return (files("headrace.web") / "static" / name).read_bytes()
