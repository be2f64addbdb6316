"""The stores over HTTP: one key, ranges, prefixes, windows and versions, in pages of JSON or as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.errors import PositionNotReachedError, StreamsError, UnsuitableQueryError
from headrace.model.timestamps import epoch_milliseconds
from headrace.query.follower import Snapshot
from headrace.query.parameters import Operation, ReadParameters, build_query
from headrace.query.queries import FIRST, LAST
from headrace.web.dashboard_json import ApplicationView
from headrace.web.paging import decode_token, make_page, make_row, read_rows, stream_lines
from headrace.web.responses import NDJSON, explain_error, json_response

PAGE = 100  # rows of a page, unless `limit=` says otherwise


def routes(view: ApplicationView) -> list[Route]:
    stores = StoreEndpoints(view)
    return [
        Route("/stores", stores.list_all),
        Route("/stores/{store}", stores.describe),
        Route("/stores/{store}/keys", stores.get),
        Route("/stores/{store}/keys/{key:path}", stores.get),
        Route("/stores/{store}/range", stores.scan("range")),
        Route("/stores/{store}/prefix", stores.scan("prefix", needs="prefix")),
        Route("/stores/{store}/windows", stores.scan("windows")),
        Route("/stores/{store}/versions", stores.scan("versions", needs="key")),
    ]


class StoreEndpoints:
    """The handlers of /stores, which read from the follower's snapshots."""

    def __init__(self, view: ApplicationView) -> None:
        self._follower, self._limits = view.follower, view.limits
        self._position: tuple[Snapshot | None, orjson.Fragment] = (None, orjson.Fragment(b"null"))

    async def list_all(self, request: Request) -> Response:
        snapshot = self._follower.snapshot
        return json_response({"stores": snapshot.summarize_stores(), "position": self._position_json(snapshot)})

    async def describe(self, request: Request) -> Response:
        snapshot, name = self._follower.snapshot, request.path_params["store"]
        store = snapshot.catalog.describe(name)
        return json_response({**store.summarize(snapshot.count(name)), "position": self._position_json(snapshot)})

    async def get(self, request: Request) -> Response:
        key = request.path_params.get("key", request.query_params.get("key"))
        return await self.get_key(request.path_params["store"], key, request.query_params)

    async def get_key(self, name: str, key: str | None, parameters: Mapping[str, str]) -> Response:
        """Read one key, in the event loop unless an earlier batch must be read from files."""
        if key is None or len(key) > self._limits.key_bytes:
            raise UnsuitableQueryError(f"give a key of at most {self._limits.key_bytes} characters")
        snapshot = await self._choose_snapshot(parameters)
        store = snapshot.catalog.describe(name)
        time = parse_time(parameters, "time", -1) if "time" in parameters else None
        query = build_query(store, "key", ReadParameters(key=key, time=time))
        entry = next(snapshot.entries(name, query), None)
        row = {} if entry is None else make_row(store, entry)
        found = {"store": name, "found": entry is not None, **row, "position": self._position_json(snapshot)}
        return json_response(found, 404 if entry is None else 200)

    def scan(self, operation: Operation, *, needs: str | None = None) -> Callable[..., Any]:
        """Return the handler of an operation that reads many rows."""

        async def respond(request: Request) -> Response:
            parameters = dict(request.query_params)
            if needs is not None and needs not in parameters:
                raise UnsuitableQueryError(f"give {needs}=")
            if any(len(text) > self._limits.key_bytes for text in parameters.values()):
                raise UnsuitableQueryError(f"a parameter may have at most {self._limits.key_bytes} characters")
            token = decode_token(parameters["next"]) if "next" in parameters else None
            snapshot = await self._choose_snapshot(parameters, None if token is None else token.batch)
            store = snapshot.catalog.describe(request.path_params["store"])
            query = build_query(store, operation, _read_parameters(operation, parameters))
            rows = read_rows(snapshot, store, query, None if token is None else token.last)
            if parameters.get("format") == "ndjson" or NDJSON in request.headers.get("accept", ""):
                limit = parse_number(parameters, "limit", 2**63 - 1)
                batch = {"headrace-batch": str(snapshot.batch)}
                return StreamingResponse(stream_lines(rows, self._limits, limit), media_type=NDJSON, headers=batch)
            limit = min(max(parse_number(parameters, "limit", PAGE), 1), self._limits.rows)
            page = await run_in_threadpool(make_page, rows, self._limits, limit, snapshot.batch)
            return json_response({"store": store.name, **page, "position": self._position_json(snapshot)})

        return respond

    async def _choose_snapshot(self, parameters: Mapping[str, str], batch: int | None = None) -> Snapshot:
        """Return the snapshot of `as_of`, of the previous page's batch if it is in memory, or the last one."""
        follower = self._follower
        if "as_of" in parameters:
            return await run_in_threadpool(follower.snapshot_at, parse_number(parameters, "as_of", -1))
        snapshot = follower.snapshot if batch is None else follower.cached_snapshot(batch) or follower.snapshot
        if "at_least" in parameters:
            wanted = parse_number(parameters, "at_least", -1)
            if snapshot.batch < wanted:
                snapshot = await run_in_threadpool(follower.refresh)
            if snapshot.batch < wanted:
                raise PositionNotReachedError(f"batch {wanted}", snapshot.position)
        return snapshot

    def _position_json(self, snapshot: Snapshot) -> orjson.Fragment:
        """Return the position of a snapshot, encoded once for the thousands of responses that contain it."""
        known, encoded = self._position
        if known is not snapshot:
            offsets: dict[str, dict[str, int]] = {}
            for at, offset in sorted(snapshot.position.offsets.items()):
                offsets.setdefault(at.topic, {})[str(at.partition)] = offset
            position = {"batch": snapshot.batch, "clock": snapshot.clock, "offsets": offsets}
            encoded = orjson.Fragment(orjson.dumps(position))
            self._position = snapshot, encoded
        return encoded


def _read_parameters(operation: Operation, parameters: Mapping[str, str]) -> ReadParameters:
    """Read the parameters of a URL: `from` and `to` are keys of a range, and times of windows and versions."""
    descending = parameters.get("descending", "").lower() in {"1", "true", "yes"}
    if operation in ("range", "prefix"):
        low, high, prefix = parameters.get("from"), parameters.get("to"), parameters.get("prefix")
        return ReadParameters(low=low, high=high, prefix=prefix, descending=descending)
    first, last = parse_time(parameters, "from", FIRST), parse_time(parameters, "to", LAST)
    return ReadParameters(key=parameters.get("key"), first=first, last=last, descending=descending)


def parse_number(parameters: Mapping[str, str], name: str, default: int) -> int:
    """Return the number that a parameter has, or the default if the parameter is missing or empty."""
    text = parameters.get(name)
    if text is None or text == "":
        return default
    try:
        return int(text)
    except ValueError:
        raise UnsuitableQueryError(f"{name}={text[:40]!r} is not a number") from None


def parse_time(parameters: Mapping[str, str], name: str, default: int) -> int:
    """Return the time that a parameter has, in milliseconds, or the default if the parameter is missing or empty.

    >>> parse_time({"from": "1767225600000"}, "from", 0), parse_time({"from": "2026-01-01T00:00:00Z"}, "from", 0)
    (1767225600000, 1767225600000)
    """
    text = parameters.get(name, "")
    if "T" not in text:
        return parse_number(parameters, name, default)
    try:
        # An offset such as +01:00 arrives as a space if the client has not quoted the plus.
        return epoch_milliseconds(text.replace(" ", "+"), name)
    except ValueError as error:
        raise UnsuitableQueryError(str(error)[:200]) from None


class KeyFastPath:
    """Middleware that answers `/stores/{store}/keys/{key}` without routing, for thousands of such requests a second."""

    def __init__(self, app: ASGIApp, view: ApplicationView) -> None:
        self._app, self._stores = app, StoreEndpoints(view)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        segments: list[str] = scope["path"].split("/", 4) if scope["type"] == "http" else []
        if len(segments) < 5 or segments[1] != "stores" or segments[3] != "keys" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        parameters: Mapping[str, str] = QueryParams(scope["query_string"]) if scope["query_string"] else {}
        try:
            response: ASGIApp = await self._stores.get_key(segments[2], segments[4], parameters)
        except StreamsError as error:
            response = explain_error(error)
        except Exception:  # noqa: BLE001 - a serde may raise anything; the routes handle it
            response = self._app
        await response(scope, receive, send)
