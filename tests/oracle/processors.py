"""The processors and value transformers of the case language, on Headrace's Processor API.

A processor is a generator here: what it yields is forwarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace import ProcessorContext, Punctuation, Record, ValueAndTimestamp, VersionedRecord, Window, Windowed
from tests.oracle.functions import Function, Returns, entry, predicate, returned, same
from tests.oracle.language import LONG, STRING, BadCase, Spec, Types, num, text, trim

Records = Iterator[Record]


class Hosted:
    """Runs one of the generators below, for `process`, `process_values` and `add_processor`.

    With a store, records without a key are ignored; only `store_peek` looks at them.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec, self.firings = spec, 0
        self.handle: Callable[[Hosted, Record], Records] = entry(PROCESSORS, spec)[1]
        self.holds: Function = predicate(spec["pred"]) if "pred" in spec else lambda key, value: True
        self.needs_key = "store" in spec and spec["fn"] != "store_peek"
        self.store: Any = None

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        if "store" in self.spec:
            self.store = context.store(self.spec["store"])
        if "every_ms" in self.spec:
            clock = Punctuation.WALL_CLOCK if self.spec.get("clock") == "wall" else Punctuation.STREAM_TIME
            self.schedule = context.schedule(self.spec["every_ms"], clock, self.fire, start=self.spec.get("start_ms"))

    def process(self, record: Record) -> None:
        if record.key is not None or not self.needs_key:
            for result in self.handle(self, record):
                self.context.forward(result, to=self.child_for(record))

    def child_for(self, record: Record) -> str | None:
        """The child that `route` chooses; all of them for the others."""
        return self.spec.get("then" if self.holds(record.key, record.value) else "else")

    def fire(self, timestamp: int) -> None:
        self.firings += 1
        if self.store is None:
            self.context.forward(Record("tick", self.firings, timestamp))
            return
        for key, count in list(self.store.all()):
            self.context.forward(Record(key, count, timestamp))
            if self.spec.get("clear"):
                self.store.delete(key)
        if self.firings == self.spec.get("cancel_after"):
            self.schedule.cancel()

    def close(self) -> None:
        pass


# -------------------------------------------------------------------------------------------------- without a store
def forward(here: Hosted, record: Record) -> Records:
    yield record


def keep(here: Hosted, record: Record) -> Records:
    if here.holds(record.key, record.value):
        yield record


def emit_twice(here: Hosted, record: Record) -> Records:
    yield record
    yield record


def shift_timestamp(here: Hosted, record: Record) -> Records:
    yield record.with_timestamp(max(0, record.timestamp + here.spec["ms"]))


def add_header(here: Hosted, record: Record) -> Records:
    yield record.with_headers([*record.headers, (here.spec["header"], here.spec["value"].encode())])


def headers_to_value(here: Hosted, record: Record) -> Records:
    shown = ",".join(f"{name}={'null' if value is None else value.decode()}" for name, value in record.headers)
    yield record.with_value(f"{text(record.value)}{{{shown}}}")


def metadata(here: Hosted, record: Record) -> Records:
    at = here.context.record_metadata
    where = "none" if at is None else f"{at.topic}/{at.partition}/{at.offset}"
    yield record.with_value(f"{text(record.value)}@{where}")


def times(here: Hosted, record: Record) -> Records:
    context = here.context
    yield record.with_value(f"{text(record.value)}|stream={context.stream_time}|wall={context.wall_clock}")


def upper(here: Hosted, record: Record) -> Records:
    yield record.with_value(None if record.value is None else text(record.value).upper())


def swallow(here: Hosted, record: Record) -> Records:
    yield from ()


# ------------------------------------------------------------------------------------------ with a key-value store
def dedup(here: Hosted, record: Record) -> Records:
    if record.value is not None and here.store.get(record.key) is None:
        here.store.put(record.key, record.value)
        yield record


def counted(here: Hosted, record: Record) -> int:
    count = num(here.store.get(record.key)) + 1
    here.store.put(record.key, count)
    return count


def running_count(here: Hosted, record: Record) -> Records:
    yield record.with_value(counted(here, record))


def count_silently(here: Hosted, record: Record) -> Records:
    counted(here, record)
    yield from ()


def appended(here: Hosted, record: Record) -> str:
    old = here.store.get(record.key)
    return text(record.value) if old is None else f"{old}|{text(record.value)}"


def running_concat(here: Hosted, record: Record) -> Records:
    joined = appended(here, record)
    here.store.put(record.key, joined)
    yield record.with_value(joined)


def buffer_flush(here: Hosted, record: Record) -> Records:
    if record.value is None:
        return
    joined = appended(here, record)
    if joined.count("|") + 1 < here.spec["max"]:
        here.store.put(record.key, joined)
        return
    here.store.delete(record.key)
    yield record.with_value(joined)


def range_dump(here: Hosted, record: Record) -> Records:
    if record.value is None:
        here.store.delete(record.key)
    else:
        here.store.put(record.key, text(record.value))
    entries = here.store.reverse_all() if here.spec.get("reverse") else here.store.all()
    yield record.with_value(trim(" ".join(f"{text(key)}={value}" for key, value in entries)))


def store_peek(here: Hosted, record: Record) -> Records:
    found = None if record.key is None else here.store.get(record.key)
    if isinstance(found, ValueAndTimestamp):
        found = f"{text(found.value)}@{found.timestamp}"
    yield record.with_value(f"{text(record.value)}~{text(found)}")


def fill(here: Hosted, record: Record) -> Records:
    """Of a global store."""
    if record.value is None:
        here.store.delete(record.key)
    else:
        here.store.put(record.key, record.value)
    yield from ()


# ------------------------------------------------------------------------------------------- with another store
def window_count(here: Hosted, record: Record) -> Records:
    start = record.timestamp // here.spec["size_ms"] * here.spec["size_ms"]
    count = num(here.store.fetch(record.key, start)) + 1
    here.store.put(record.key, count, start)
    yield record.with_key(f"{text(record.key)}@{start}").with_value(count)


def session_log(here: Hosted, record: Record) -> Records:
    at, size = record.timestamp, here.spec["len_ms"]
    session = Windowed(record.key, Window(at, at + size))
    here.store.put(session, None if record.value is None else text(record.value))
    found = here.store.find_sessions(record.key, at - size, at)
    shown = (f"{session.window.start}-{session.window.end}={value}" for session, value in found)
    yield record.with_value(trim(" ".join(shown)))


def versioned_asof(here: Hosted, record: Record) -> Records:
    valid_to = here.store.put(record.key, record.value, record.timestamp)
    now = shown(here.store.get(record.key))
    then = shown(here.store.get(record.key, as_of=record.timestamp - here.spec["back_ms"]))
    yield record.with_value(f"put={valid_to} now={now} then={then}")


def shown(version: VersionedRecord | None) -> str:
    if version is None:
        return "null"
    until = "" if version.valid_to is None else f"-{version.valid_to}"
    return f"{text(version.value)}@{version.timestamp}{until}"


# By name, with the type of the values that are forwarded.
PROCESSORS: dict[str, tuple[Returns, Callable[[Hosted, Record], Records]]] = {
    "forward": (same, forward),
    "filter": (same, keep),
    "emit_twice": (same, emit_twice),
    "shift_ts": (same, shift_timestamp),
    "route": (same, forward),
    "add_header": (same, add_header),
    "headers_to_value": (STRING, headers_to_value),
    "metadata": (STRING, metadata),
    "times": (STRING, times),
    "dedup": (same, dedup),
    "running_count": (LONG, running_count),
    "count_punctuate": (LONG, count_silently),
    "tick": (LONG, swallow),
    "buffer_flush": (STRING, buffer_flush),
    "range_dump": (STRING, range_dump),
    "store_peek": (STRING, store_peek),
    "fill": (same, fill),
    "window_count": (LONG, window_count),
    "session_log": (STRING, session_log),
    "versioned_asof": (STRING, versioned_asof),
    "v_upper": (STRING, upper),
    "v_filter": (same, keep),
    "v_emit_twice": (same, emit_twice),
    "v_headers_to_value": (STRING, headers_to_value),
    "v_times": (STRING, times),
    "v_running_concat": (STRING, running_concat),
    "v_count": (LONG, running_count),
}


def processor(spec: Spec, given: Types) -> tuple[Types, Callable[[], Hosted]]:
    """A supplier, with the types of what its processors forward."""
    returns, _ = entry(PROCESSORS, spec)
    key = STRING if spec["fn"] == "window_count" else given.key
    return Types(key, returned(returns, given.value)), lambda: Hosted(spec)


def stores_of(spec: Spec) -> list[str]:
    """The stores to connect; a global one is there for every processor."""
    return [spec["store"]] if "store" in spec and not spec.get("global") else []


# ------------------------------------------------------------------------------------------------------ transformers
class Transformer:
    """For `KTable.transform_values`."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def init(self, context: ProcessorContext) -> None:
        self.store = context.store(self.spec["store"]) if "store" in self.spec else None

    def transform(self, key: Any, value: Any) -> str | None:
        match self.spec["fn"]:
            case "t_with_key":
                return f"{text(key)}~{text(value)}"
            case "t_nullable":
                return None if value is None else f"{text(key)}~{text(value)}"
            case "t_count" if self.store is not None:
                calls = num(self.store.get(key)) + 1
                self.store.put(key, calls)
                return f"{text(value)}#{calls}"
        raise BadCase(f"unknown transformer {self.spec}")

    def close(self) -> None:
        pass
