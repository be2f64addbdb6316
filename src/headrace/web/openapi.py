"""`/openapi.json`: the HTTP interface in the OpenAPI format, for clients that are generated, and for tests.

Paths, methods and the parameters in a path come from the routes themselves. `OPERATIONS` adds what they do not say; a
route that is missing there is an error at the start of the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.web.responses import JSON, NDJSON, json_response

PATH = "/openapi.json"
TEXT, INTEGER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
TIME = {"oneOf": [INTEGER, {"type": "string", "format": "date-time"}]}
OBJECT = {"type": "object"}
_ERROR = {
    "type": "object",
    "properties": {"error": TEXT, "message": TEXT},
    "required": ["error", "message"],
}
# Any request may get these: no token, another origin, a body that is too large, another host, too many wrong tokens.
_REJECTIONS = (400, 401, 403, 413, 421, 429)
_MEANINGS = {
    200: "the answer", 400: "a parameter is wrong", 401: "the token is missing or wrong", 403: "not allowed",
    404: "it does not exist", 409: "not possible now", 410: "the batch is not kept any more",
    413: "the body is too large", 421: "another host", 429: "too many wrong tokens", 503: "not ready: ask again",
}  # fmt: skip


class Parameter(NamedTuple):
    """A parameter of the query string."""

    name: str
    schema: dict[str, Any]
    description: str
    required: bool = False


class Operation(NamedTuple):
    """What a route does: its parameters, the statuses of its answers beside 200, and their media types."""

    summary: str
    parameters: tuple[Parameter, ...] = ()
    statuses: tuple[int, ...] = ()
    media: tuple[str, ...] = (JSON,)
    body: dict[str, Any] | None = None


_WHEN = (
    Parameter("as_of", INTEGER, "the batch to read as of"),
    Parameter("at_least", INTEGER, "the batch that the answer has to contain"),
)
_DESCENDING = Parameter("descending", FLAG, "in descending order")
_PAGE = (
    Parameter("limit", INTEGER, "rows of a page"),
    Parameter("next", TEXT, "the token at the end of the page before"),
    Parameter("format", TEXT, "`ndjson`: all rows, one a line"),
    *_WHEN,
)
_KEYS = (Parameter("from", TEXT, "first key"), Parameter("to", TEXT, "last key"))
_TIMES = (Parameter("from", TIME, "first time, in ms or ISO 8601"), Parameter("to", TIME, "last time, likewise"))
_READ, _ROWS = (404, 410, 503), (JSON, NDJSON)
_KEY = Parameter("key", TEXT, "the key, as text or JSON")
_TIME = Parameter("time", TIME, "the time of a version, in ms or ISO 8601")

OPERATIONS = {
    "/stores": Operation("all stores", statuses=(503,)),
    "/stores/{store}": Operation("a store: kind, serdes, tasks, entries", statuses=(404, 503)),
    "/stores/{store}/keys": Operation("one key", (_KEY._replace(required=True), _TIME, *_WHEN), _READ),
    "/stores/{store}/keys/{key}": Operation("one key", (_TIME, *_WHEN), _READ),
    "/stores/{store}/range": Operation("a range of keys", (*_KEYS, _DESCENDING, *_PAGE), _READ, _ROWS),
    "/stores/{store}/prefix": Operation(
        "the keys that begin with a prefix", (Parameter("prefix", TEXT, "the prefix", True), *_PAGE), _READ, _ROWS
    ),
    "/stores/{store}/windows": Operation(
        "windows or sessions of a key, or of all", (_KEY, *_TIMES, _DESCENDING, *_PAGE), _READ, _ROWS
    ),
    "/stores/{store}/versions": Operation(
        "the versions of a key", (_KEY._replace(required=True), *_TIMES, *_PAGE), _READ, _ROWS
    ),
    "/metrics": Operation("metrics, as Prometheus reads them", media=("text/plain",)),
    "/health": Operation("whether the application runs and keeps up", statuses=(503,)),
    "/ready": Operation("whether the stores can be read", statuses=(503,)),
    "/": Operation("the dashboard", media=("text/html",)),
    "/static/{name}": Operation(
        "a file of the dashboard", statuses=(404,), media=("image/svg+xml", "text/css", "text/javascript", JSON)
    ),
    "/session": Operation(
        "checks a token and sets a cookie that stands for it",
        body={"type": "object", "properties": {"token": TEXT}, "required": ["token"]},
    ),
    "/api/status": Operation("state, verdict, lag and progress", statuses=(503,)),
    "/api/topology": Operation("the topology: sub-topologies, nodes, topics, stores", statuses=(503,)),
    "/api/nodes/{name}": Operation("a node of the topology, with samples of its records", statuses=(404, 503)),
    "/api/batches": Operation("the last batches", statuses=(503,)),
    "/api/history": Operation("rates, lag and latency of the last 15 minutes", statuses=(503,)),
    "/api/drops": Operation("dropped records: how many by reason, and the last ones of each", statuses=(503,)),
    "/api/plan": Operation("what the last start changed, and what the next one would", statuses=(503,)),
    "/api/durability": Operation("checkpoint, delivery and standbys", statuses=(503,)),
    "/api/settings": Operation("the settings, without secrets"),
    "/events": Operation("the changes of all of this, without end", statuses=(503,), media=("text/event-stream",)),
    "/actions/scale": Operation(
        "sets the number of slots", (Parameter("slots", INTEGER, "how many", True),), (404, 409)
    ),
    "/actions/{action}": Operation("pause, resume, snapshot or stop", statuses=(404, 409)),
    PATH: Operation("this description"),
}  # fmt: skip


def openapi_route(routes: Iterable[Route]) -> Route:
    """Returns the route of the description of the given routes, and of itself."""

    async def describe(request: Request) -> Response:
        return json_response(description)

    own = Route(PATH, describe)
    description = describe_routes([*routes, own])
    return own


def describe_routes(routes: Iterable[Route]) -> dict[str, Any]:
    """Describes routes in the OpenAPI format."""
    paths: dict[str, Any] = {}
    for route in routes:
        path = route.path_format
        methods = sorted(method.lower() for method in route.methods or () if method != "HEAD")
        paths[path] = {method: _describe(route, OPERATIONS[path]) for method in methods}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": "1", "description": "Stores, state and actions of an application."},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _describe(route: Route, operation: Operation) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": TEXT} for name in sorted(route.param_convertors)
    ]
    in_query = [
        {
            "name": given.name, "in": "query", "required": given.required, "description": given.description,
            "schema": given.schema,
        }
        for given in operation.parameters
    ]  # fmt: skip
    found = {"schema": OBJECT}
    answers = {200: {kind: found if kind == JSON else {} for kind in operation.media}}
    answers |= {
        status: {JSON: {}} for status in operation.statuses
    }  # a missing key is no error, but has the status 404
    answers |= {status: {JSON: {"schema": _ERROR}} for status in _REJECTIONS}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": [*in_path, *in_query],
        "responses": {
            str(status): {"description": _MEANINGS[status], "content": content}
            for status, content in sorted(answers.items())
        },
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": operation.body}}}
    return described
