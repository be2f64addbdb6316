"""HTTP responses: JSON, and errors as JSON with a status."""

from __future__ import annotations

import json
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
from headrace.secrets import mask_secrets

JSON, NDJSON = "application/json", "application/x-ndjson"
_STATUS: list[tuple[type[Exception], int]] = [  # the first class that matches counts
    (UnknownStoreError, 404),
    (BatchNotKeptError, 410),
    (StoreNotReadyError, 503),
    (PositionNotReachedError, 503),
    (SerializationError, 400),
    (InvalidStateStoreError, 400),
]


def encode_json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a string with a lone surrogate, which only a user's serde returns
        return json.dumps(value).encode()


def json_response(value: Any, status: int = 200) -> Response:
    return Response(encode_json(value), status, media_type=JSON)


def error_response(status: int, name: str, message: str) -> Response:
    return json_response({"error": name, "message": mask_secrets(message)}, status)


def explain_error(error: StreamsError) -> Response:
    """Return an error of Headrace as a response with its name, its message and the status of its class."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    response = error_response(status, type(error).__name__, str(error))
    if error.retriable:
        response.headers["retry-after"] = "1"
    return response


def handle_error(_request: Request, error: Exception) -> Response:
    """Explain Headrace's errors. Reveal nothing about others, whose messages may hold data."""
    if isinstance(error, StreamsError):
        return explain_error(error)
    return error_response(500, "Failure", "the server failed to answer; its log has the traceback")
