"""One goes on where the other has stopped, Headrace and the real Kafka Streams: with its offsets and its state."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from headrace import JoinWindows, Materialized, SessionWindows, StreamsBuilder, TimeWindows, Topology, serde
from headrace.app import Application
from headrace.checkpoint.steps import MANIFEST, ignore_step
from headrace.cli.main import exit_code
from headrace.clients.admin import Admin
from headrace.errors import AlreadyRunningError, StreamsError
from headrace.serde import Serde
from headrace.testing import TopologyTestDriver
from tests.kafka.java_programs import application, create, records, running, send

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
DAY, SIZE = 86_400_000, 10_000
TEXTS, COUNTS = (serde.STRING, serde.STRING), (serde.STRING, serde.LONG)
Row = tuple[str | None, Any, int]  # key, value, timestamp


class Program(NamedTuple):
    """What runs in both languages, on topics whose names begin with that of a room."""

    name: str
    inputs: dict[str, tuple[Serde, Serde]]
    outputs: dict[str, tuple[Serde, Serde]]
    parts: list[list[tuple[str, Row]]]  # (topic, record), by time: what there is when the first one runs, the next …

    def build(self, room: str) -> Topology:
        builder = StreamsBuilder()
        TOPOLOGIES[self.name](builder, room)
        return builder.build()

    def expected(self, room: str, given: list[tuple[str, Row]]) -> dict[str, Counter[Any]]:
        """What comes out if nobody ever stops."""
        with TopologyTestDriver(self.build(room), {"statestore.cache.max.bytes": 0}) as driver:
            for topic, (key, value, timestamp) in given:
                serdes = self.inputs[topic]
                driver.input_topic(f"{room}-{topic}", *serdes).pipe(key, value, timestamp=timestamp)
            return {
                topic: Counter(told(driver.output_topic(f"{room}-{topic}", *serdes).read_records()))
                for topic, serdes in self.outputs.items()
            }


def told(found: list[Any]) -> list[Any]:
    return [(record.key, record.value, record.timestamp) for record in found]


def word_count(builder: StreamsBuilder, room: str) -> None:
    (
        builder.stream(f"{room}-lines", key=serde.STRING, value=serde.STRING)
        .flat_map_values(lambda line: line.split(" "))
        .group_by(lambda word: word, key=serde.STRING, value=serde.STRING)
        .count(store="counts")
        .to_stream()
        .to(f"{room}-counts", key=serde.STRING, value=serde.LONG)
    )


def states(builder: StreamsBuilder, room: str) -> None:
    """A store of every kind, each of which shows in what comes out."""
    events = builder.stream(f"{room}-events", key=serde.STRING, value=serde.STRING)
    requests = builder.stream(f"{room}-requests", key=serde.STRING, value=serde.STRING)
    stock = builder.table(f"{room}-stock", key=serde.STRING, value=serde.LONG, store="stock")
    priced = Materialized("prices", history=3_600_000)
    prices = builder.table(f"{room}-prices", key=serde.STRING, value=serde.LONG, store=priced)
    windows = events.group_by_key().windowed_by(TimeWindows.of(SIZE, grace=DAY)).count(store="windows")
    windows.to_stream().to(f"{room}-windowed", key=WINDOWED, value=serde.LONG)
    sessions = events.group_by_key().windowed_by(SessionWindows.of(500, grace=DAY)).count(store="sessions")
    sessions.to_stream().to(f"{room}-sessions", key=SESSIONS, value=serde.LONG)
    requests.join(stock, lambda wish, left: f"{wish}{left}").to(f"{room}-answers", key=serde.STRING, value=serde.STRING)
    requests.join(prices, lambda wish, price: f"{wish}{price}").to(
        f"{room}-quotes", key=serde.STRING, value=serde.STRING
    )
    requests.join(events, lambda wish, event: wish + event, windows=JoinWindows.of(1000, grace=DAY)).to(
        f"{room}-pairs", key=serde.STRING, value=serde.STRING
    )


WINDOWED, SESSIONS = serde.windowed(serde.STRING, SIZE), serde.session_windowed(serde.STRING)
TOPOLOGIES = {"word-count": word_count, "states": states}

# Of today: brokers remove what is older than the retention of a changelog.
NOW = int(time.time() * 1000) // SIZE * SIZE - 10 * SIZE
WORDS = Program(
    "word-count",
    {"lines": TEXTS},
    {"counts": COUNTS},
    [
        [("lines", (None, "to be or not to be", NOW + 1)), ("lines", (None, "that is the question", NOW + 2))],
        [("lines", (None, "to die to sleep", NOW + 3)), ("lines", (None, "the question is no more", NOW + 4))],
        [("lines", (None, "to die to sleep no more", NOW + 5)), ("lines", (None, "that is the question", NOW + 6))],
    ],
)
STATES = Program(
    "states",
    {"events": TEXTS, "requests": TEXTS, "stock": COUNTS, "prices": COUNTS},
    {
        "windowed": (WINDOWED, serde.LONG),
        "sessions": (SESSIONS, serde.LONG),
        "answers": TEXTS,
        "quotes": TEXTS,
        "pairs": TEXTS,
    },
    [
        [
            ("stock", ("ä", 5, NOW + 1)),
            ("stock", ("b", 7, NOW + 2)),
            ("stock", ("", 9, NOW + 3)),
            ("stock", ("b", None, NOW + 4)),
            ("prices", ("ä", 1, NOW + 5)),
            ("prices", ("b", 2, NOW + 6)),
            ("prices", ("ä", 3, NOW + 50)),
            ("prices", ("b", None, NOW + 60)),
            ("events", ("ä", "x", NOW + 100)),
            ("requests", ("ä", "r", NOW + 200)),
            ("events", ("b", "y", NOW + 300)),
            ("events", ("ä", "z", NOW + 400)),
            ("events", ("ä", "z", NOW + 400)),  # a duplicate
            ("events", ("", "x", NOW + 5_000)),
            ("requests", ("", "r", NOW + 5_100)),
        ],
        [
            ("events", ("ä", "v", NOW + 450)),
            ("requests", ("ä", "s", NOW + 500)),
            ("requests", ("ä", "late", NOW + 40)),  # at the price that there was then
            ("requests", ("b", "late", NOW + 55)),
            ("requests", ("b", "later", NOW + 60)),
            ("events", ("b", "w", NOW + 600)),
            ("requests", ("b", "s", NOW + 650)),
            ("events", ("ä", "u", NOW + 1_200)),  # a second session, which the next record makes one with the first
            ("events", ("ä", "u", NOW + 900)),
            ("requests", ("", "s", NOW + 5_200)),
            ("events", ("", "v", NOW + 20_000)),
        ],
    ],
)


def write(address: str, program: Program, room: str, given: list[tuple[str, Row]]) -> None:
    for topic, serdes in program.inputs.items():
        send(address, f"{room}-{topic}", serdes, [row for name, row in given if name == topic])


def written(address: str, program: Program, room: str, expected: dict[str, Counter[Any]]) -> dict[str, Counter[Any]]:
    """What is in the outputs, once it is as much as expected."""
    return {
        topic: Counter(told(records(address, f"{room}-{topic}", expected[topic].total(), serdes)))
        for topic, serdes in program.outputs.items()
    }


class Fails:
    """Lets the first attempt at a step fail, in whichever process it is."""

    def __init__(self, moment: str, memory: Path) -> None:
        self.moment, self.memory = moment, memory

    def __call__(self, moment: str) -> None:
        if moment == self.moment and not self.memory.exists():
            self.memory.touch()
            raise RuntimeError(f"as it was asked to, {moment}")


def run_headrace(address: str, topology: Topology, room: str, folder: Path, *, fails: bool) -> Application:
    """In a checkpoint of its own, as if it had never run here before."""
    folder.mkdir()
    with Admin(address) as admin:
        if f"{room}-delivered" in admin.topics():
            admin.delete_topic(f"{room}-delivered")
    at_step = Fails(f"before {MANIFEST}", folder / "failed") if fails else ignore_step
    app = application(address, room, topology, folder, at_step=at_step)
    if fails:
        with pytest.raises(StreamsError, match="as it was asked to"):
            app.run_available()
    app.run_available()
    return app


@pytest.mark.parametrize(
    "program, turns",
    [(WORDS, "headrace java headrace"), (STATES, "java headrace"), (STATES, "headrace java")],
    ids=["words-there-and-back", "states-java-headrace", "states-headrace-java"],
)
def test_state_goes_on_in_the_other_language(
    broker_address: str, java: list[str], room: str, tmp_path: Path, program: Program, turns: str
):
    """Together they write what one would have written alone; also if the first attempt to take over fails."""
    create(broker_address, *(f"{room}-{topic}" for topic in [*program.inputs, *program.outputs]))
    given: list[tuple[str, Row]] = []
    for number, (who, part) in enumerate(zip(turns.split(), program.parts, strict=False)):
        write(broker_address, program, room, part)
        given += part
        expected = program.expected(room, given)
        if who == "java":
            with running(java, program.name, broker_address, room, tmp_path):
                written(broker_address, program, room, expected)
        else:
            topology, folder = program.build(room), tmp_path / str(number)
            run_headrace(broker_address, topology, room, folder, fails=number > 0).write_changelogs()
        assert written(broker_address, program, room, expected) == expected


def test_changelogs_are_written_from_the_command_line_once(
    broker_address: str, room: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """What is there already is not written again, what is gone is deleted, and not while the application runs."""
    create(broker_address, *(f"{room}-{topic}" for topic in [*STATES.inputs, *STATES.outputs]))
    write(broker_address, STATES, room, STATES.parts[0])
    app = application(broker_address, room, STATES.build(room), tmp_path)
    module = ModuleType("handed_over")
    module.__dict__["app"] = app
    monkeypatch.setitem(sys.modules, "handed_over", module)

    def exported(*options: str) -> dict[str, tuple[int, int, int]]:
        assert exit_code(["changelogs", "handed_over:app", "--json", *options]) == 0
        rows = json.loads(capsys.readouterr().out)
        return {row["store"]: (row["entries"], row["written"], row["deleted"]) for row in rows}

    with app:
        app.drain(60_000)
        with pytest.raises(AlreadyRunningError):
            app.write_changelogs()
    would = exported("--dry-run")
    with Admin(broker_address) as admin:
        assert not [topic for topic in admin.topics() if topic.startswith(room) and topic.endswith("-changelog")]
    assert would["stock"] == (2, 2, 0)
    assert exported() == would
    assert exported() == {store: (entries, 0, 0) for store, (entries, _, _) in would.items()}
    send(broker_address, f"{room}-stock", COUNTS, [("", None, NOW + 7_000)])
    app.run_available()
    assert exported()["stock"] == (1, 0, 1)
    with Admin(broker_address) as admin:
        windows, stock = (admin.describe(f"{room}-{store}-changelog").topic for store in ("windows", "stock"))
    assert (windows.partitions, windows.config["cleanup.policy"], stock.config["cleanup.policy"]) == (
        2, "compact,delete", "compact",
    )  # fmt: skip
