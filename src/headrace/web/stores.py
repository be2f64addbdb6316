"""The stores over HTTP: one key, ranges, prefixes, windows and versions; as JSON in pages, or line by line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.errors import PositionNotReachedError, StreamsError, UnsuitableQueryError
from headrace.query.catalog import Shelf
from headrace.query.rendering import key_of
from headrace.query.views import Snapshot, View
from headrace.web.application_view import ApplicationView, Limits
from headrace.web.responses import NDJSON, dumps, explained, reply
from headrace.web.store_rows import (
    Asked,
    Place,
    Row,
    decode_next,
    encode_next,
    number_in,
    range_rows,
    row_of,
    version_rows,
    window_rows,
)

PAGE = 100  # rows, unless more are asked for
BLOCK = 64 * 1024  # bytes that are sent at once, line by line
Rows = Callable[[Shelf, View, Asked, Place | None], Iterator[tuple[Place, Row]]]


def routes(board: ApplicationView) -> list[Route]:
    asked = Questions(board)
    return [
        Route("/stores", asked.all),
        Route("/stores/{store}", asked.described),
        Route("/stores/{store}/keys", asked.key),
        Route("/stores/{store}/keys/{key:path}", asked.key),
        Route("/stores/{store}/range", asked.many(range_rows)),
        Route("/stores/{store}/prefix", asked.many(range_rows, needs="prefix")),
        Route("/stores/{store}/windows", asked.many(window_rows, times=True)),
        Route("/stores/{store}/versions", asked.many(version_rows, needs="key", times=True)),
    ]


class Questions:
    """Answers from the board's follower."""

    def __init__(self, board: ApplicationView) -> None:
        self._board, self._follower, self._limits = board, board.follower, board.limits
        self._position: tuple[Snapshot | None, orjson.Fragment] = (None, orjson.Fragment(b"null"))

    async def all(self, request: Request) -> Response:
        return reply({"stores": self._board.stores(), "position": self._told(self._follower.snapshot)})

    async def described(self, request: Request) -> Response:
        snapshot = self._follower.snapshot
        about = self._board.store(snapshot, request.path_params["store"])
        return reply({**about, "position": self._told(snapshot)})

    async def key(self, request: Request) -> Response:
        text = request.path_params.get("key", request.query_params.get("key"))
        return await self.one(request.path_params["store"], text, request.query_params)

    async def one(self, store: str, text: str | None, given: Mapping[str, str]) -> Response:
        """One key; without a thread in between unless files may have to be read."""
        if text is None or len(text) > self._limits.key_bytes:
            raise UnsuitableQueryError(f"give a key of at most {self._limits.key_bytes} characters")
        snapshot = await self._snapshot(given)
        shelf = snapshot.catalog.shelf(store)
        time = number_in(given, "time", -1) if "time" in given else None
        row = row_of(shelf, snapshot.view(store), key_of(text, shelf.key), time)
        found = {"store": store, "found": row is not None, **(row or {}), "position": self._told(snapshot)}
        return reply(found, 200 if row is not None else 404)

    def many(self, rows: Rows, *, needs: str | None = None, times: bool = False) -> Callable[..., Any]:
        async def answer(request: Request) -> Response:
            given = dict(request.query_params)
            if needs is not None and needs not in given:
                raise UnsuitableQueryError(f"give {needs}=")
            if any(len(text) > self._limits.key_bytes for text in given.values()):
                raise UnsuitableQueryError(f"an argument has at most {self._limits.key_bytes} characters")
            asked = Asked.of({**given, "windows": ""} if times else given)
            after = decode_next(given["next"]) if "next" in given else None
            snapshot = await self._snapshot(given, None if after is None else after[0])
            shelf = snapshot.catalog.shelf(request.path_params["store"])
            found = rows(shelf, snapshot.view(shelf.name), asked, None if after is None else after[1])
            if given.get("format") == "ndjson" or NDJSON in request.headers.get("accept", ""):
                limit = number_in(given, "limit", 2**63 - 1)
                batch = {"headrace-batch": str(snapshot.batch)}
                return StreamingResponse(lines(found, self._limits, limit), media_type=NDJSON, headers=batch)
            limit = min(max(number_in(given, "limit", PAGE), 1), self._limits.rows)
            page = await run_in_threadpool(page_of, found, self._limits, limit, snapshot.batch)
            return reply({"store": shelf.name, **page, "position": self._told(snapshot)})

        return answer

    async def _snapshot(self, given: Mapping[str, str], batch: int | None = None) -> Snapshot:
        """As of the batch asked for, of the page before if it is still at hand, or the last one."""
        follower = self._follower
        if "as_of" in given:
            return await run_in_threadpool(follower.at, number_in(given, "as_of", -1))
        snapshot = follower.snapshot if batch is None else follower.held(batch) or follower.snapshot
        if "at_least" in given:
            wanted = number_in(given, "at_least", -1)
            if snapshot.batch < wanted:
                snapshot = await run_in_threadpool(follower.refresh)
            if snapshot.batch < wanted:
                raise PositionNotReachedError(f"batch {wanted}", snapshot.position)
        return snapshot

    def _told(self, snapshot: Snapshot) -> orjson.Fragment:
        """The position of a snapshot, which is the same for thousands of answers."""
        known, told = self._position
        if known is not snapshot:
            offsets: dict[str, dict[str, int]] = {}
            for at, offset in sorted(snapshot.position.offsets.items()):
                offsets.setdefault(at.topic, {})[str(at.partition)] = offset
            position = {"batch": snapshot.batch, "clock": snapshot.clock, "offsets": offsets}
            told = orjson.Fragment(orjson.dumps(position))
            self._position = snapshot, told
        return told


class Shortcut:
    """Leads questions about one key past the routes: they are asked thousands of times a second."""

    def __init__(self, app: ASGIApp, board: ApplicationView) -> None:
        self._app, self._questions = app, Questions(board)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: list[str] = scope["path"].split("/", 4) if scope["type"] == "http" else []
        if len(parts) < 5 or parts[1] != "stores" or parts[3] != "keys" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        given: Mapping[str, str] = QueryParams(scope["query_string"]) if scope["query_string"] else {}
        try:
            response: ASGIApp = await self._questions.one(parts[2], parts[4], given)
        except StreamsError as error:
            response = explained(error)
        except Exception:  # noqa: BLE001 - whatever a serde raises: the routes know what to say of it
            response = self._app
        await response(scope, receive, send)


def page_of(rows: Iterator[tuple[Place, Row]], limits: Limits, limit: int, batch: int) -> dict[str, Any]:
    """At most so many rows, bytes and seconds, and where to go on."""
    end, size, found = time.monotonic() + limits.seconds, 0, list[orjson.Fragment]()
    for place, row in rows:
        raw = dumps(row)
        size += len(raw)
        found.append(orjson.Fragment(raw))
        if len(found) >= limit or size > limits.page_bytes or time.monotonic() > end:
            return {"rows": found, "next": encode_next(batch, place)}
    return {"rows": found, "next": None}


def lines(rows: Iterator[tuple[Place, Row]], limits: Limits, limit: int) -> Iterator[bytes]:
    """Rows in blocks of lines; what could not be sent is told in a last line."""
    end, total, block = time.monotonic() + limits.seconds, 0, bytearray()
    for number, (_, row) in enumerate(rows):
        if number >= limit:
            break
        block += dumps(row) + b"\n"
        if len(block) >= BLOCK:
            yield bytes(block)
            total += len(block)
            block.clear()
            if total > limits.stream_bytes or time.monotonic() > end:
                yield dumps({"error": "Truncated", "message": "more than one answer may have: ask for a range"}) + b"\n"
                return
    yield bytes(block)
