"""Secrets stay out of pages, errors and logs.

Answers as JSON, and failures as answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import (
    BatchNotKeptError,
    InvalidStateStoreError,
    PositionNotReachedError,
    SerializationError,
    StoreNotReadyError,
    StreamsError,
    UnknownStoreError,
)

HIDDEN = "***"
_SECRET = re.compile(r"pass(word|wd|phrase)?|secret|token|credential|api.?key|access.?key|jaas|private", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
_ASSIGNED = re.compile(
    r"""(?i)\b([\w.\-]*(?:password|passwd|secret|token|api[_.-]?key|access[_.-]?key)[\w.\-]*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;]+)"""
)


def masked(text: str) -> str:
    """A text without user names and passwords in addresses, and without what is given for a password or the like.

    >>> masked("kafka://me:pw@host:9092 sasl.password=abc")
    'kafka://***@host:9092 sasl.password=***'
    """
    return _ASSIGNED.sub(rf"\1{HIDDEN}", _IN_ADDRESS.sub(f"{HIDDEN}@", text))


def masked_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as text, without those that are secret by their name.

    >>> masked_settings({"ssl.key.password": "abc", "application.id": "a"})
    {'application.id': 'a', 'ssl.key.password': '***'}
    """
    return {
        name: HIDDEN if _SECRET.search(name) else masked(str(value))
        for name, value in sorted(settings.items())
        if value is not None
    }


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
