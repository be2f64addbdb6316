"""Answers as JSON, and failures as answers."""

from __future__ import annotations

import json
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import InvalidStateStoreError, SerializationError, StreamsError
from headrace.query.errors import (
    BatchNotKeptError,
    PositionNotReachedError,
    StoreNotReadyError,
    UnknownStoreError,
)
from headrace.web.masking import masked

JSON, NDJSON = "application/json", "application/x-ndjson"
_STATUS: list[tuple[type[Exception], int]] = [
    (UnknownStoreError, 404),
    (BatchNotKeptError, 410),
    (StoreNotReadyError, 503),
    (PositionNotReachedError, 503),
    (SerializationError, 400),
    (InvalidStateStoreError, 400),
]


def dumps(thing: Any) -> bytes:
    try:
        return orjson.dumps(thing)
    except TypeError:  # a text with half a pair of surrogates, which only a serde of the user's makes
        return json.dumps(thing).encode()


def reply(thing: Any, status: int = 200) -> Response:
    return Response(dumps(thing), status, media_type=JSON)


def failure(status: int, kind: str, message: str) -> Response:
    return reply({"error": kind, "message": masked(message)}, status)


def failed(_request: Request, error: Exception) -> Response:
    """What is known to go wrong is explained; of anything else nothing is told."""
    if not isinstance(error, StreamsError):
        return failure(500, "Failure", "something went wrong here; the log of the server says what")
    return explained(error)


def explained(error: StreamsError) -> Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    response = failure(status, type(error).__name__, str(error))
    if error.retriable:
        response.headers["retry-after"] = "1"
    return response
