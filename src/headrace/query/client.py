"""Asks the stores of an application over HTTP.

`with Client("http://127.0.0.1:8089") as client: client.get("word-counts", "hello")`
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from headrace.errors import SerializationError, StreamsError, failure_named
from headrace.model.ids import TopicPartition
from headrace.model.record import ValueAndTimestamp, VersionedRecord
from headrace.model.windows import Window, Windowed
from headrace.query.queries import Position
from headrace.query.rendering import from_form, to_form


class RemoteError(StreamsError):
    """A server that cannot be reached, or an answer that is none; `kind` is the name of the error, `status` HTTP's.

    Of a question that fails, a client raises what the question raises in process.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind
        self.retriable = status == 503


class Client:
    """Asks one server, or a replica; threads have connections of their own."""

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 30.0) -> None:
        self._at = urlsplit(url)
        if self._at.scheme not in {"http", "https"} or not self._at.hostname:
            raise ValueError(f"the address of a server looks like http://127.0.0.1:8089, not {url!r}")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._timeout, self._local = timeout, threading.local()
        self._serdes: dict[str, str] = {}

    # ------------------------------------------------------------------------------------------------- questions
    def stores(self) -> list[dict[str, Any]]:
        """Every store: its name, kind, serdes, tasks and number of entries."""
        return self._ask("/stores")["stores"]

    def store(self, name: str) -> dict[str, Any]:
        return self._ask(f"/stores/{_part(name)}")

    def get(self, store: str, key: Any, **options: Any) -> Any:
        """The value of a key, with its timestamp if the store has them; None if there is none.

        `as_of` and `at_least` are batches, `time` is that of a version.
        """
        return self.get_with_position(store, key, **options)[0]

    def get_with_position(self, store: str, key: Any, **options: Any) -> tuple[Any, Position]:
        """The value, and as of when it is."""
        found = self._ask(f"/stores/{_part(store)}/keys", key=self._text(store, key), missing_is_fine=True, **options)
        return _value(found) if found["found"] else None, _position(found["position"])

    def range(self, store: str, low: Any = None, high: Any = None, **options: Any) -> Iterator[tuple[Any, Any]]:
        """(Key, value) from `low` to `high`, page by page; options: `descending`, `limit` (of a page), `as_of`."""
        bounds = {"from": self._text(store, low), "to": self._text(store, high)}
        return self._pages(f"/stores/{_part(store)}/range", **bounds, **options)

    def prefix(self, store: str, prefix: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
        return self._pages(f"/stores/{_part(store)}/prefix", prefix=self._text(store, prefix), **options)

    def windows(self, store: str, key: Any = None, **options: Any) -> Iterator[tuple[Windowed, Any]]:
        """Windows or sessions, of a key or of all; `start` and `end` bound their times."""
        times = {"from": options.pop("start", None), "to": options.pop("end", None)}
        return self._pages(f"/stores/{_part(store)}/windows", key=self._text(store, key), **times, **options)

    def versions(self, store: str, key: Any, **options: Any) -> Iterator[VersionedRecord]:
        times = {"from": options.pop("start", None), "to": options.pop("end", None)}
        found = self._rows(f"/stores/{_part(store)}/versions", key=self._text(store, key), **times, **options)
        return (_value(row) for row in found)

    def act(self, action: str) -> None:
        """Lets the application pause, resume, snapshot or stop; the server must have a token, and this client too."""
        self._ask(f"/actions/{_part(action)}", method="POST")

    # -------------------------------------------------------------------------------------------------- transport
    def close(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            del self._local.connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pages(self, path: str, **given: Any) -> Iterator[tuple[Any, Any]]:
        for row in self._rows(path, **given):
            key = from_form(row["key"])
            if "window" in row:
                key = Windowed(key, Window(row["window"]["start"], row["window"]["end"]))
            yield key, _value(row)

    def _rows(self, path: str, **given: Any) -> Iterator[dict[str, Any]]:
        after: str | None = None
        while True:
            page = self._ask(path, **given, next=after)
            yield from page["rows"]
            after = page["next"]
            if after is None:
                return

    def _text(self, store: str, key: Any) -> str | None:
        """A key as the server reads it, which depends on its serde: text as it is, others as JSON."""
        if key is None:
            return None
        if store not in self._serdes:
            self._serdes[store] = self.store(store)["key"]
        match self._serdes[store]:
            case "STRING" | "UUID":
                return str(key)
            case "BYTES":
                return to_form(key)["$bytes"]
            case _:
                return json.dumps(to_form(key))

    def _ask(self, path: str, *, missing_is_fine: bool = False, method: str = "GET", **given: Any) -> dict[str, Any]:
        wanted = urlencode({name: value for name, value in given.items() if value is not None})
        status, raw = self._send(method, f"{self._at.path.rstrip('/')}{path}{'?' * bool(wanted)}{wanted}")
        try:
            found = json.loads(raw)
        except ValueError:
            raise RemoteError(status, "NoJson", f"{self._at.netloc} gave status {status}, and no JSON") from None
        if "error" in found and not (missing_is_fine and "found" in found):
            raise _failure(status, found)
        return found

    def _send(self, method: str, target: str) -> tuple[int, bytes]:
        for is_last in (False, True):
            connection = self._connection()
            try:
                connection.request(method, target, headers=self._headers)
                response = connection.getresponse()
                return response.status, response.read()
            except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
                self.close()  # one that was kept open may have been closed by the server meanwhile
                if is_last or isinstance(error, TimeoutError):
                    raise RemoteError(503, "NotReached", f"{self._at.netloc} does not answer: {error}") from error
            except OSError as error:
                self.close()
                raise RemoteError(503, "NotReached", f"{self._at.netloc} cannot be reached: {error}") from error
        raise AssertionError  # not reached: the last try returns or raises

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is None:
            kind = http.client.HTTPSConnection if self._at.scheme == "https" else http.client.HTTPConnection
            found = self._local.connection = kind(self._at.hostname or "", self._at.port, timeout=self._timeout)
        return found


def _part(name: str) -> str:
    """A name as one part of an address, whatever is in it."""
    return quote(name, safe="")


def _value(row: dict[str, Any]) -> Any:
    value = from_form(row["value"])
    if "valid_to" in row:
        return VersionedRecord(value, row["timestamp"], row["valid_to"])
    return ValueAndTimestamp(value, row["timestamp"]) if "timestamp" in row else value


def _position(told: dict[str, Any]) -> Position:
    offsets = {
        TopicPartition(topic, int(part)): offset
        for topic, parts in told["offsets"].items()
        for part, offset in parts.items()
    }
    return Position(told["batch"], offsets)


def _failure(status: int, found: dict[str, Any]) -> StreamsError:
    kind, message = str(found["error"]), str(found.get("message", ""))
    if kind == "SerializationError":
        return SerializationError(message)
    return failure_named(kind, message) or RemoteError(status, kind, message)
