"""A backlog that is drained at once gives what its records would have given one by one, in the order of time."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Application, StreamsBuilder, Topology, serde
from headrace.log.open import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EVENTS, UPDATES, KEYS = 1_000_000, 50_000, 500
EVERY = EVENTS // UPDATES  # an update of the table comes before so many events


def write(address: str) -> None:
    """Event i is at time 2i, update j between two events; both go through all keys in turn."""
    log = open_log(address)
    for topic in ("events", "table", "out"):
        log.create_topic(topic)
    keys = [str(key).encode() for key in range(KEYS)]
    for start in range(0, EVENTS, 100_000):
        some = range(start, start + 100_000)
        events = Records([keys[i % KEYS] for i in some], [str(i).encode() for i in some], [2 * i for i in some])
        log.append([(TopicPartition("events", 0), events)])
    all_of = range(UPDATES)
    times = [2 * EVERY * j + 1 for j in all_of]
    log.append(
        [
            (
                TopicPartition("table", 0),
                Records([keys[j % KEYS] for j in all_of], [str(j).encode() for j in all_of], times),
            )
        ]
    )
    log.close()


def joined_with_a_table() -> Topology:
    builder = StreamsBuilder()
    table = builder.table("table", key=serde.STRING, value=serde.STRING)
    events = builder.stream("events", key=serde.STRING, value=serde.STRING)
    events.left_join(table, lambda event, row: f"{event} {row}").to("out", value=serde.STRING)
    return builder.build()


def rekeyed_and_joined_with_a_table() -> Topology:
    """The table is read from the log by the task that gets the events from another one."""
    builder = StreamsBuilder()
    table = builder.table("table", key=serde.STRING, value=serde.STRING)
    events = builder.stream("events", key=serde.STRING, value=serde.STRING)
    rekeyed = events.select_key(lambda key, value: key)
    joined = rekeyed.left_join(table, lambda event, row: f"{event} {row}", key=serde.STRING, value=serde.STRING)
    joined.to("out", value=serde.STRING)
    return builder.build()


def expected() -> list[bytes]:
    rows: dict[int, int] = {}
    found = []
    for i in range(EVENTS):
        # Update j lies between events EVERY * j and EVERY * j + 1.
        if i % EVERY == 1:
            j = i // EVERY
            rows[j % KEYS] = j
        found.append(f"{i} {rows.get(i % KEYS)}".encode())
    return found


@pytest.mark.parametrize("topology", [joined_with_a_table, rekeyed_and_joined_with_a_table])
def test_a_long_topic_and_a_short_one_stay_together_in_time(topology, tmp_path: Path):
    address = f"file:{tmp_path}/log"
    write(address)
    Application(
        "backlog", topology(), address, checkpoint=str(tmp_path / "checkpoint"), state_dir=str(tmp_path / "state")
    ).run_available()
    log = open_log(address)
    given = [value for chunk in log.read(TopicPartition("out", 0), 0) for value in chunk.records.values]
    log.close()
    wanted = expected()
    assert len(given) == len(wanted)
    wrong = next((at for at in range(EVENTS) if given[at] != wanted[at]), None)
    assert wrong is None, f"record {wrong}: {given[wrong]}, not {wanted[wrong]}"
