"""An application with a store of every kind that queries itself: `headrace run tests.faults.queried_program:app`."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace import Materialized, SessionWindows, StreamsBuilder, TimeWindows, Topology, serde
from headrace.app import Application
from headrace.errors import StreamsError
from headrace.query import (
    MultiVersionedKeyQuery,
    PrefixQuery,
    Query,
    QueryResult,
    SessionKeyQuery,
    SessionRangeQuery,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from tests.faults.kills import Kill, Killer
from tests.faults.programs import CACHE_OFF

SETTINGS = "QUERIED_PROGRAM_SETTINGS"  # the variable of the environment that names the file of the settings
TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
CONFIG = {**CACHE_OFF, "batch.max.records": 8}
KEYS = [f"k{number}" for number in range(9)]
VALUED, WINDOW, OF_SESSION = ("key", "value", "timestamp"), ("key", "start", "value"), ("key", "start", "end", "value")
EVER = (0, 2**63 - 1)
EARLIER = 3  # batches: how far back an earlier one is asked for, now and then


def topology() -> Topology:
    """Stores of every kind by key, words that are counted behind a repartition, and lines with a tag by chance."""
    builder = StreamsBuilder()
    lines = builder.stream("lines", **TEXTS)
    grouped = lines.group_by_key(**TEXTS)
    grouped.count(store="counts")
    grouped.windowed_by(TimeWindows.of(100)).count(store=Materialized("windows", retention=1000))
    grouped.windowed_by(SessionWindows.of(40)).count(store=Materialized("sessions", retention=1000))
    builder.table("states", **TEXTS, store=Materialized("versions", history=2000))
    lines.flat_map_values(str.split).group_by(lambda _, word: word, **TEXTS).count(store="words")
    tagged = lines.map_values(lambda line: f"{line} {uuid.uuid4()}").group_by_key(**TEXTS)
    tagged.reduce(lambda _, new: new, store="tagged").to_stream().to("tags", **TEXTS)
    return builder.build()


class Question(NamedTuple):
    """A question in three forms, whose answers have the same columns: in process, over HTTP, and of stores themselves.

    The stores are those of one partition; `joined` makes one answer of theirs.
    """

    store: str
    query: Query
    path: str
    columns: tuple[str, ...]
    of_store: Callable[[Any], list[Any]]
    joined: Callable[[list[Any]], list[Any]] = sorted


def questions() -> list[Question]:
    """Some of every kind; their answers are lists of rows."""
    return [
        *(of_key("counts", key, TimestampedKeyQuery(key)) for key in KEYS),
        Question(
            "counts", TimestampedRangeQuery("k2", "k6"), "range?from=k2&to=k6", VALUED,
            lambda s: many(s.range("k2", "k6")),
        ),
        Question("words", TimestampedRangeQuery(), "range?limit=10000", VALUED, lambda s: many(s.all()), summed),
        Question("words", PrefixQuery("f"), "prefix?prefix=f", VALUED[:2], lambda s: plain(s.prefix_scan("f")), summed),
        Question("windows", WindowKeyQuery("k1"), "windows?key=k1", WINDOW[1:], lambda s: plain(s.fetch("k1", *EVER))),
        Question("windows", WindowRangeQuery(), "windows?limit=10000", WINDOW, lambda s: windows(s.all())),
        Question("sessions", SessionKeyQuery("k4"), "windows?key=k4", OF_SESSION, lambda s: sessions(s.fetch("k4"))),
        Question("sessions", SessionRangeQuery(), "windows?limit=10000", OF_SESSION, lambda s: sessions(s.all())),
        *(of_key("versions", key, VersionedKeyQuery(key)) for key in KEYS[:3]),
        Question(
            "versions", MultiVersionedKeyQuery("k5"), "versions?key=k5&limit=10000", ("timestamp", "value"),
            lambda s: versions(s.history("k5", *EVER)),
        ),
        *(of_key("tagged", key, TimestampedKeyQuery(key)) for key in KEYS[:3]),
    ]  # fmt: skip


def of_key(store: str, key: str, query: Query) -> Question:
    return Question(store, query, f"keys/{key}", VALUED, lambda s: one(key, s.get(key)))


def one(key: str, found: Any) -> list[Any]:
    return [] if found is None else [(key, found.value, found.timestamp)]


def many(entries: Any) -> list[Any]:
    return [(key, value.value, value.timestamp) for key, value in entries]


def plain(entries: Any) -> list[Any]:
    return [(key, value.value) for key, value in entries]


def windows(entries: Any) -> list[Any]:
    return [(at.key, at.window.start, getattr(value, "value", value)) for at, value in entries]


def versions(entries: Any) -> list[Any]:
    return [(version.timestamp, version.value) for version in entries]


def sessions(entries: Any) -> list[Any]:
    return [(at.key, *at.window, value) for at, value in entries]


def summed(rows: list[Any]) -> list[Any]:
    """Counts of several partitions as one: their sum, as of the latest of their times."""
    found: dict[str, Any] = {}
    for key, value, *time in rows:
        before = found.get(key, (0, *time))
        found[key] = (before[0] + value, *map(max, time, before[1:]))
    return [(key, *found[key]) for key in sorted(found)]


# -------------------------------------------------------------------------------------------------------- its answers
class Answer(msgspec.Struct, frozen=True):
    """An answer to a query: `question` is a number of `questions()`."""

    by: str
    question: int
    batch: int
    offsets: dict[str, int]
    rows: list[Any]


def rows_in_process(question: Question, result: Any) -> list[Any]:
    """Rows of an answer in process, with the columns of the question."""
    match question.query:
        case TimestampedKeyQuery(key) | VersionedKeyQuery(key):
            return one(key, result)
        case TimestampedRangeQuery():
            return many(result)
        case WindowRangeQuery():
            return windows(result)
        case SessionKeyQuery() | SessionRangeQuery():
            return sessions(result)
        case MultiVersionedKeyQuery():
            return versions(result)
        case _:
            return list(result)


class Asker:
    """Asks an application in its own process for as long as it runs, and writes down what it says as it says it."""

    def __init__(self, app: Application, file: Path) -> None:
        self._app, self._file, self._pause = app, file, threading.Event()

    def begin(self, state: Application.State, before: Application.State) -> None:
        if state is Application.State.RUNNING:
            threading.Thread(target=self._ask, name="asker", daemon=True).start()

    def _ask(self) -> None:
        asked = questions()
        with self._file.open("ab", buffering=0) as told:
            for turn in count():
                for number, question in enumerate(asked):
                    try:
                        answer = self._answer(number, question, back=EARLIER if turn % 4 == 3 else 0)
                    except StreamsError:  # there is no batch yet, or it is over
                        if self._app.state is not Application.State.RUNNING:
                            return
                    else:
                        told.write(msgspec.json.encode(answer) + b"\n")
                self._pause.wait(0.2)

    def _answer(self, number: int, question: Question, back: int) -> Answer:
        app = self._app
        batch = app.query("counts", TimestampedKeyQuery("k0")).position.batch - back if back else None
        found: QueryResult = app.query(question.store, question.query, as_of=batch)
        offsets = {str(at): offset for at, offset in found.position.offsets.items()}
        return Answer("app", number, found.position.batch, offsets, rows_in_process(question, found.result))


class RunSettings(msgspec.Struct):
    """Where an application runs, and when it is killed."""

    folder: str
    run: str
    kills: list[Kill] = []


def followed() -> Application:
    """The application as those know it who only follow it: its topology, and the settings that decide what expires."""
    return Application("asked", topology(), "file:log", config=CONFIG)


def app() -> Application:
    """The application of the settings that the environment names."""
    from tests.faults.application_run import stop_what_a_dead_driver_left  # noqa: PLC0415 - it imports Spark, which a replica need not

    stop_what_a_dead_driver_left()
    settings = msgspec.json.decode(Path(os.environ[SETTINGS]).read_bytes(), type=RunSettings)
    here, run = Path(settings.folder), Path(settings.run)
    made = Application(
        "asked", topology(), f"file:{here}/log",
        checkpoint=str(here / "checkpoint"), state_dir=str(here / "state"), config=CONFIG,
        at_step=Killer(run, os.getpid(), settings.kills),
    )  # fmt: skip
    made.on_state_change(Asker(made, run / "answers").begin)
    return made
