"""Slots of the real-time trigger: they are added, drained, killed, stopped and cut off, and results stay exact."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    Application,
    Processor,
    ProcessorContext,
    Producer,
    Record,
    StreamsBuilder,
    StreamsError,
    Topology,
    serde,
)
from headrace.query.status import SlotReport
from headrace.spark.session import session
from tests.spark.places import PATIENCE_MS, Place, Words, counting, slots, wait_for

pytestmark = pytest.mark.spark


def test_slots_are_drained_and_added_while_the_application_runs(place: Place):
    words = Words(place)
    with place.app(counting()) as app:
        words.send(app)
        assert sorted(slots(app)) == [0, 1]
        assert sorted(task for slot in slots(app).values() for task in slot.tasks) == [
            f"{stage}_{partition}" for stage in (0, 1) for partition in range(4)
        ]
        assert app.scale(1) == 1
        wait_for(app, lambda: sorted(slots(app)) == [0])
        words.send(app)
        assert len(slots(app)[0].tasks) == 8
        assert app.scale(9) == 2  # as many as the session has room for
        wait_for(app, lambda: sorted(slots(app)) == [0, 1])
        words.send(app)
        assert {len(slot.tasks) for slot in slots(app).values()} == {4}
        assert app.report().moves == 8


def kill(app: Application, victim: SlotReport) -> None:
    os.kill(victim.process, signal.SIGKILL)


def stop(app: Application, victim: SlotReport) -> None:
    """The process stands still for longer than its lease."""
    os.kill(victim.process, signal.SIGSTOP)


def cut_off(app: Application, victim: SlotReport) -> None:
    """The connection to the driver is closed, and the process lives on until it notices."""
    pool: Any = app._running()._engine._pool  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    pool._connections[pool.layout[victim.slot]].close()


@pytest.mark.parametrize("harm", [kill, stop, cut_off])
def test_a_slot_that_is_lost_is_replaced(place: Place, harm: Callable[[Application, SlotReport], None]):
    words = Words(place)
    with place.app(counting(), slot_lease_ms=2000) as app:
        words.send(app)
        for number in (0, 1):
            wait_for(app, lambda: sorted(slots(app)) == [0, 1])
            victim = slots(app)[number]
            harm(app, victim)
            words.send(app)
            replaced = slots(app)
            assert number not in replaced or replaced[number].process != victim.process
            wait_for(app, lambda: sorted(slots(app)) == [0, 1])
            words.send(app)


@pytest.mark.parametrize("first, second", [("real-time", "micro-batch"), ("micro-batch", "real-time")])
def test_a_checkpoint_continues_under_the_other_trigger(place: Place, first: str, second: str):
    words = Words(place)
    for trigger in (first, second):
        with place.app(counting(), trigger=trigger) as app:
            words.send(app)
            assert bool(slots(app)) == (trigger == "real-time")


def test_other_jobs_and_a_second_application_run_beside_the_slots(place: Place, tmp_path: Path):
    other = Place(tmp_path / "other", name="other")
    other.create("lines", "counts", partitions=2)
    words, others = Words(place), Words(other)
    with place.app(counting()) as app, other.app(counting()) as second:
        words.send(app)
        others.send(second)
        assert session().range(100).count() == 100
        words.send(app)


def test_the_processes_of_slots_end_with_the_application(place: Place):
    words = Words(place)
    with place.app(counting()) as app:
        words.send(app)
        processes = [slot.process for slot in slots(app).values()]
        assert all(Path(f"/proc/{process}").exists() for process in processes)
    # The Spark tasks are over. Spark keeps their Python workers for other jobs.
    tracker = session().sparkContext.statusTracker()
    wait_for(app, lambda: not tracker.getActiveJobsIds())  # Spark's listeners hear of the end a little later


class Closing(Processor[str, str, str, str]):
    """Forwards its records, and writes down when it is closed."""

    def __init__(self, file: str) -> None:
        self.file = file

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)

    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context

    def close(self) -> None:
        with Path(self.file).open("a") as to:
            to.write(f"{self.context.task_id} ")


def test_processors_are_closed_when_their_task_moves_and_when_the_application_stops(place: Place, tmp_path: Path):
    file = tmp_path / "closed"
    builder = StreamsBuilder()
    lines = builder.stream("lines", key=serde.STRING, value=serde.STRING)
    lines.process(partial(Closing, str(file))).to("counts", key=serde.STRING, value=serde.STRING)
    with place.app(builder.build()) as app:
        place.send("lines", *(f"line {n}" for n in range(40)))
        app.drain(PATIENCE_MS)
        moving = slots(app)[1].tasks
        app.scale(1)
        wait_for(app, lambda: sorted(slots(app)) == [0])
        wait_for(app, lambda: file.exists() and set(file.read_text().split()) == set(moving))
        place.send("lines", *(f"line {n}" for n in range(40)))
        app.drain(PATIENCE_MS)
    assert sorted(set(file.read_text().split())) == [f"0_{partition}" for partition in range(4)]
    assert len(place.read("counts")) == 80


class Recounting(Processor[str, str, str, str]):
    """Writes down its life. The value "die" ends the process once, when the tasks of the other slot have run."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def note(self, event: str) -> None:
        with self.file.open("a") as to:
            to.write(f"{os.getpid()} {self.context.task_id} {event}\n")

    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context
        self.note("init")

    def process(self, record: Record[str, str]) -> None:
        died = self.file.with_suffix(".died")
        if record.value == "die" and not died.exists():
            while len(set(ran_elsewhere(self.file))) < 2:
                time.sleep(0.01)
            died.write_text(str(os.getpid()))
            os._exit(1)
        if record.value == "fail":
            raise ValueError(record.value)
        self.note("process")
        self.context.forward(record)

    def close(self) -> None:
        self.note("close")
        raise RuntimeError("close failed")


def ran_elsewhere(file: Path) -> list[str]:
    """The tasks that have run in other processes than this one."""
    lines = [line.split() for line in file.read_text().splitlines()]
    return [task for process, task, event in lines if int(process) != os.getpid() and event == "process"]


def recounting(file: Path) -> Topology:
    builder = StreamsBuilder()
    lines = builder.stream("lines", key=serde.STRING, value=serde.STRING)
    lines.process(partial(Recounting, str(file))).to("counts", key=serde.STRING, value=serde.STRING)
    return builder.build()


def lives(file: Path) -> dict[tuple[int, str], list[str]]:
    """What happened to the processors of each task, by process and task."""
    found: dict[tuple[int, str], list[str]] = {}
    for line in file.read_text().splitlines():
        process, task, event = line.split()
        found.setdefault((int(process), task), []).append(event)
    return found


def send_together(place: Place, *values: str) -> None:
    """Sends a value to each partition in one append: an application reads all of them in one batch."""
    with Producer(place.log, key=serde.STRING, value=serde.STRING, linger=60_000) as producer:
        for partition, value in enumerate(values):
            producer.send("lines", value, value, partition=partition)


def test_processors_that_ran_in_an_aborted_attempt_are_closed_and_others_initialised(place: Place, tmp_path: Path):
    file = tmp_path / "events"
    with place.app(recounting(file)) as app:
        wait_for(app, lambda: [len(slot.tasks) for slot in slots(app).values()] == [2, 2])
        send_together(place, "die", "a", "b", "c")
        app.drain(PATIENCE_MS)
        twice = [events[-5:] for events in lives(file).values() if events.count("process") == 2]
        assert twice == [["init", "process", "close", "init", "process"]] * 2, lives(file)
        assert sorted(place.read("counts")) == ["a", "b", "c", "die"]
    killed = int(file.with_suffix(".died").read_text())
    last = {(process, task): events[-1] for (process, task), events in lives(file).items() if process != killed}
    assert last == dict.fromkeys(last, "close"), lives(file)


def test_a_processor_that_fails_is_closed(place: Place, tmp_path: Path):
    file = tmp_path / "events"
    send_together(place, "fail")
    app = place.app(recounting(file))
    with app, pytest.raises(StreamsError, match="ValueError"):
        app.drain(PATIENCE_MS)
    failed = [events for (_, task), events in lives(file).items() if task == "0_0"]
    assert failed == [["init", "close"]]


def test_slots_that_do_not_reach_the_driver_fail_the_start_with_both_addresses(place: Place):
    place.send("lines", "a b c")
    app = place.app(counting(), driver_advertised_address="127.0.0.2", driver_bind_address="127.0.0.1")
    with (
        pytest.raises(
            StreamsError, match=r"the driver at 127\.0\.0\.2:\d+ cannot be reached from 127\.0\.0\.\d"
        ) as failed,
        app,
    ):
        app.drain(PATIENCE_MS)
    assert "driver.advertised.address" in str(failed.value)


def test_driver_and_slots_listen_on_the_ports_that_settings_name(place: Place):
    words, first, second = Words(place), free_port(range(20_000, 21_000)), free_port(range(21_000, 22_000))
    with place.app(counting(), driver_ports=first, slot_ports=f"{second}-{second + 9}") as app:
        words.send(app)
        sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = {int(fields[1].rpartition(":")[2], 16) for fields in sockets if fields[3] == "0A"}
        assert {first, second} <= listening


def free_port(ports: range) -> int:
    """A port that the system does not give to outgoing connections, as it may with one that was free a moment ago."""
    for port in random.sample(ports, len(ports)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def test_connections_are_encrypted_if_those_of_spark_are(place: Place):
    words = Words(place)
    context: Any = session().sparkContext
    context._conf.set("spark.network.crypto.enabled", "true")
    try:
        with place.app(counting()) as app:
            words.send(app)
            pool: Any = app._running()._engine._pool  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
            assert all(connection._cipher is not None for connection in pool._connections.values())
    finally:
        context._conf.set("spark.network.crypto.enabled", "false")
