"""The HTTP client: reads the stores of an application from its web server, or from a replica.

`with Client("http://127.0.0.1:8089") as client: client.get("word-counts", "hello")`
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from headrace.errors import SerializationError, StreamsError, failure_named
from headrace.log.protocol import Closeable
from headrace.model.ids import TopicPartition
from headrace.model.record import ValueAndTimestamp, VersionedRecord
from headrace.model.windows import Window, Windowed, milliseconds
from headrace.query.json_values import from_json
from headrace.query.parameters import Operation, format_key
from headrace.query.queries import Position


class RemoteError(StreamsError):
    """The server cannot be reached, or its response is not a valid one. `kind` names the error, `status` is HTTP's.

    A query that fails on the server raises the same error here as it does in the application's process.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind
        self.retriable = status == 503


class Client(Closeable):
    """A client of one server. Each thread has its own connection. `timeout` of a request is in ms or a `timedelta`.

    The `url` may be the link that the server printed, which has the token. `certificates` is a PEM file with the
    certificates to trust, for a server whose certificate no public authority has signed.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: int | timedelta = 30_000,
        certificates: str | Path | None = None,
    ) -> None:
        self._url = urlsplit(url)
        if self._url.scheme not in {"http", "https"} or not self._url.hostname:
            raise ValueError(f"the address of a server looks like http://127.0.0.1:8089, not {url.partition('#')[0]!r}")
        token = token or next(iter(parse_qs(self._url.fragment).get("token", ())), None)
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._context = None if certificates is None else _trust(certificates)
        self._timeout = milliseconds(timeout, "the timeout of a client") / 1000
        self._local = threading.local()
        self._serdes: dict[str, str] = {}

    # ----------------------------------------------------------------------------------------------------- reads
    def stores(self) -> list[dict[str, Any]]:
        """List every store: its name, kind, serdes, tasks and number of entries."""
        return self._request("/stores")["stores"]

    def store(self, name: str) -> dict[str, Any]:
        return self._request(_path(name))

    def get(self, store: str, key: Any, **options: Any) -> Any:
        """Return the value of a key, with its timestamp if the store has them, or None.

        Options: `as_of` and `at_least` are batches; `time` selects the version that was valid then.
        """
        return self.get_with_position(store, key, **options)[0]

    def get_with_position(self, store: str, key: Any, **options: Any) -> tuple[Any, Position]:
        """Return the value of a key, and the position of the answer."""
        found = self._request(_path(store, "keys"), key=self._format_key(store, key), allow_missing=True, **options)
        return _decode_value(found) if found["found"] else None, _decode_position(found["position"])

    def range(self, store: str, low: Any = None, high: Any = None, **options: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, value) from `low` to `high`. Options: `descending`, `limit` (rows of a page), `as_of`."""
        bounds = {"from": self._format_key(store, low), "to": self._format_key(store, high)}
        return self._read_pairs(store, "range", **bounds, **options)

    def prefix(self, store: str, prefix: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
        return self._read_pairs(store, "prefix", prefix=self._format_key(store, prefix), **options)

    def windows(self, store: str, key: Any = None, **options: Any) -> Iterator[tuple[Windowed, Any]]:
        """Iterate over windows or sessions, of one key or of all. Options: `start` and `end` bound their times."""
        return self._read_pairs(store, "windows", **self._key_and_times(store, key, options))

    def versions(self, store: str, key: Any, **options: Any) -> Iterator[VersionedRecord]:
        return map(_decode_value, self._read_rows(store, "versions", **self._key_and_times(store, key, options)))

    def act(self, action: str) -> None:
        """Pause, resume, snapshot or stop the application. This needs a token on the server and in this client."""
        self._request(f"/actions/{quote(action, safe='')}", method="POST")

    def scale(self, slots: int) -> int:
        """Set the number of slots; returns how many Spark has room for. This needs a token, as `act` does."""
        return int(self._request(f"/actions/scale?slots={slots}", method="POST")["slots"])

    # -------------------------------------------------------------------------------------------------- transport
    def close(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            del self._local.connection

    def _key_and_times(self, store: str, key: Any, options: dict[str, Any]) -> dict[str, Any]:
        times = {"from": options.pop("start", None), "to": options.pop("end", None)}
        return {"key": self._format_key(store, key), **times, **options}

    def _read_pairs(self, store: str, operation: Operation, **parameters: Any) -> Iterator[tuple[Any, Any]]:
        for row in self._read_rows(store, operation, **parameters):
            key = from_json(row["key"])
            if "window" in row:
                key = Windowed(key, Window(row["window"]["start"], row["window"]["end"]))
            yield key, _decode_value(row)

    def _read_rows(self, store: str, operation: Operation, **parameters: Any) -> Iterator[dict[str, Any]]:
        after: str | None = None
        while True:
            page = self._request(_path(store, operation), **parameters, next=after)
            yield from page["rows"]
            after = page["next"]
            if after is None:
                return

    def _format_key(self, store: str, key: Any) -> str | None:
        """Format a key as the server parses it, which depends on the serde of the store's keys."""
        if key is None:
            return None
        if store not in self._serdes:
            self._serdes[store] = self.store(store)["key"]
        return format_key(key, self._serdes[store])

    def _request(
        self, path: str, *, allow_missing: bool = False, method: str = "GET", **parameters: Any
    ) -> dict[str, Any]:
        query = urlencode({name: value for name, value in parameters.items() if value is not None})
        status, raw = self._send(method, f"{self._url.path.rstrip('/')}{path}{'?' * bool(query)}{query}")
        try:
            found = json.loads(raw)
        except ValueError:
            raise RemoteError(
                status, "NoJson", f"{self._url.netloc} answered with status {status} and no JSON"
            ) from None
        if "error" in found and not (allow_missing and "found" in found):
            raise _make_error(status, found)
        return found

    def _send(self, method: str, target: str) -> tuple[int, bytes]:
        for is_last in (False, True):
            connection = self._connection()
            try:
                connection.request(method, target, headers=self._headers)
                response = connection.getresponse()
                return response.status, response.read()
            except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
                self.close()  # the server may have closed an idle connection
                if is_last or isinstance(error, TimeoutError):
                    raise RemoteError(503, "NotReached", f"{self._url.netloc} does not answer: {error}") from error
            except OSError as error:
                self.close()
                raise RemoteError(503, "NotReached", f"{self._url.netloc} cannot be reached: {error}") from error
        raise AssertionError  # unreachable: the last attempt returns or raises

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is None:
            host, port, seconds = self._url.hostname or "", self._url.port, self._timeout
            if self._url.scheme == "https":
                found = http.client.HTTPSConnection(host, port, timeout=seconds, context=self._context)
            else:
                found = http.client.HTTPConnection(host, port, timeout=seconds)
            self._local.connection = found
        return found


def _trust(certificates: str | Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(certificates))
    except OSError as error:
        raise ValueError(
            f"{certificates} cannot be used: {error.strerror or error}. Give a PEM file with certificates"
        ) from error


def _path(store: str, *operation: str) -> str:
    return "/".join(("/stores", quote(store, safe=""), *operation))


def _decode_value(row: dict[str, Any]) -> Any:
    value = from_json(row["value"])
    if "valid_to" in row:
        return VersionedRecord(value, row["timestamp"], row["valid_to"])
    return ValueAndTimestamp(value, row["timestamp"]) if "timestamp" in row else value


def _decode_position(written: dict[str, Any]) -> Position:
    offsets = {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in written["offsets"].items()
        for partition, offset in partitions.items()
    }
    return Position(written["batch"], offsets)


def _make_error(status: int, found: dict[str, Any]) -> StreamsError:
    kind, message = str(found["error"]), str(found.get("message", ""))
    if kind == "SerializationError":
        return SerializationError(message)
    return failure_named(kind, message) or RemoteError(status, kind, message)
