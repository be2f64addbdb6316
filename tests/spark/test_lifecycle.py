"""The lifecycle of an application: its states, pauses, errors at the start, and changes of topics while it runs."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Application, Producer, Punctuation, Record, StreamsBuilder, StreamsError, serde
from headrace.checkpoint.compaction import CompactionPolicy
from headrace.config import settings
from headrace.errors import ProcessingError
from headrace.topology.builder import Topology
from headrace.topology.processor import ProcessorContext
from tests.spark.places import PATIENCE, PATIENCE_MS, Place, wait_for

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def copying(**source: Any) -> Topology:
    builder = StreamsBuilder()
    names = source.pop("topics", ("in",))
    builder.stream(*names, key=serde.STRING, value=serde.STRING, **source).to("out")
    return builder.build()


def counting() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", key=serde.STRING, value=serde.STRING).group_by_key().count(store="counts")
    return builder.build()


def test_states_are_kafkas_and_listeners_are_told_of_every_change(place: Place):
    app, seen = place.app(copying()), []
    app.on_state_change(lambda new, old: seen.append((old, new)))
    assert app.state == "CREATED"
    with app:
        assert app.state == app.State.RUNNING
    assert seen == [
        ("CREATED", "REBALANCING"),
        ("REBALANCING", "RUNNING"),
        ("RUNNING", "PENDING_SHUTDOWN"),
        ("PENDING_SHUTDOWN", "NOT_RUNNING"),
    ]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("state", ["REBALANCING", "RUNNING"])
def test_a_listener_can_stop_the_application(place: Place, state: str, times: int):
    """When it starts, or when it is planned again because a topic has got more partitions."""
    place.create("in", "out")
    app, seen = place.app(copying()), list[str]()

    def listen(new: str, old: str) -> None:
        seen.append(new)
        if seen.count(state) == times and new == state:
            app.stop()

    app.on_state_change(listen)
    with app:
        if times == 2:
            with Admin(place.log) as admin:
                admin.add_partitions("in", 3)
        wait_until_stopped(app)
    assert seen[-1] == "NOT_RUNNING"
    del seen[:]
    with app:  # it can be started again
        assert app.state == ("NOT_RUNNING" if times == 1 else "RUNNING")


def wait_until_stopped(app: Application) -> None:
    stopped = threading.Event()
    app.on_state_change(lambda new, old: stopped.set() if new == "NOT_RUNNING" else None)
    assert app.state == "NOT_RUNNING" or stopped.wait(PATIENCE)


def test_an_application_waits_for_its_first_record(place: Place):
    with place.app(copying(), trigger="micro-batch") as app:
        query = app._running()._engine._query  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        wait_for(app, lambda: query.status["message"] == "Waiting for data to arrive")
        place.send("in", "a")
        app.drain(PATIENCE_MS)
    assert place.read("out") == ["a"]


def test_a_start_names_the_settings_that_only_the_other_trigger_reads(place: Place, caplog, monkeypatch):
    monkeypatch.setattr(settings, "_named", set())
    with place.app(copying(), trigger="micro-batch", num_standby_replicas=1, num_partitions=2):
        said = [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]
    why = "has no effect: only the real-time trigger reads it, and processing.trigger is micro-batch"
    assert said == [f"the setting num.standby.replicas {why}"]


def test_a_second_instance_is_refused_and_the_first_goes_on(place: Place):
    with place.app(copying()) as first:
        with pytest.raises(StreamsError, match=r"another instance runs .* to scale out, give Spark more executors"):
            place.app(copying()).start()
        place.send("in", "a")
        first.drain(PATIENCE_MS)
        assert place.read("out") == ["a"]


def test_a_paused_application_reads_nothing_until_it_is_resumed(place: Place):
    app = place.app(copying())
    app.pause()
    with app:
        place.send("in", "a")
        with pytest.raises(StreamsError, match="did not settle"):
            app.drain(timeout=1000)
        assert place.read("out") == []
        app.resume()
        app.drain(PATIENCE_MS)
        assert place.read("out") == ["a"]


def test_what_a_function_raises_stops_the_application_and_is_raised_by_drain(place: Place):
    builder = StreamsBuilder()
    builder.stream("in", value=serde.STRING).map_values(int).to("out", value=serde.INTEGER)
    app, over = place.app(builder.build()), threading.Event()
    app.on_state_change(lambda new, old: over.set() if new == "ERROR" else None)
    with app:
        place.send("in", "one")
        with pytest.raises(ProcessingError, match=r"KSTREAM-MAPVALUES-0000000001 failed on .*in") as raised:
            app.drain(PATIENCE_MS)
        assert isinstance(raised.value.__cause__, ValueError)
        assert over.wait(PATIENCE)
    assert app.state == "ERROR"


def test_partitions_that_a_topic_gets_are_read_where_there_is_no_state(place: Place):
    place.create("in", "out")
    with place.app(copying()) as app:
        place.send("in", "a")
        app.drain(PATIENCE_MS)
        with Admin(place.log) as admin:
            admin.add_partitions("in", 3)
        place.send("in", "b", partition=2)
        wait_for(app, lambda: place.read("out") == ["a", "b"])


def test_topics_that_match_a_pattern_are_read_when_they_appear(place: Place):
    place.create("in-1", "out")
    with place.app(copying(topics=(), pattern=re.compile("in-.*"))) as app:
        place.send("in-1", "a")
        app.drain(PATIENCE_MS)
        place.create("in-2")
        place.send("in-2", "b")
        wait_for(app, lambda: place.read("out") == ["a", "b"])


def test_a_topic_that_is_missing_is_refused_where_topics_are_not_created(place: Place):
    with pytest.raises(StreamsError, match=r"no topic 'in', 'out'.*headrace topics create --topic in"):
        place.app(copying(), auto_create_topics_enable=False).start()


@pytest.mark.parametrize("reset, seen", [("latest", ["new"]), ("earliest", ["old", "new"])])
def test_a_source_begins_where_its_reset_policy_says(place: Place, reset: str, seen: list[str]):
    place.create("in", "out")
    place.send("in", "old")
    with place.app(copying(offset_reset=reset)) as app:
        place.send("in", "new")
        app.drain(PATIENCE_MS)
    assert place.read("out") == seen


def test_a_source_that_may_not_choose_where_to_begin_refuses_to(place: Place):
    place.create("in", "out")
    with pytest.raises(StreamsError, match=r"auto\.offset\.reset is none"):
        place.app(copying(offset_reset="none")).start()


class Numbering:
    """Keeps count in an attribute, and emits by a schedule that it makes with its first record."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.seen, self.schedule = context, 0, None

    def process(self, record: Record) -> None:
        self.seen += 1
        if self.schedule is None:
            self.schedule = self.context.schedule(1, Punctuation.WALL_CLOCK, self.tick)
        self.context.forward(record.with_value(f"{record.value}{self.seen}"))

    def tick(self, timestamp: int) -> None:
        if self.schedule is not None:
            self.schedule.cancel()
        self.context.forward(Record("tick", "tick", timestamp))


def test_a_processor_keeps_its_attributes_and_schedules_from_batch_to_batch(place: Place):
    builder = StreamsBuilder()
    builder.stream("in", key=serde.STRING, value=serde.STRING).process(Numbering).to(
        "out", key=serde.STRING, value=serde.STRING
    )
    with place.app(builder.build()) as app:
        for value in "abcd":
            place.send("in", value)
            app.drain(PATIENCE_MS)
        wait_for(app, lambda: sorted(place.read("out")) == ["a1", "b2", "c3", "d4", "tick"])


def test_applications_live_side_by_side_in_one_session(place: Place, tmp_path: Path):
    other = Application("other", counting(), place.log, checkpoint=str(tmp_path / "other"))
    with place.app(copying()) as app, other:
        place.send("in", "a", "a")
        app.drain(PATIENCE_MS)
        other.drain(PATIENCE_MS)
        assert place.read("out") == ["a", "a"]
        assert other.store("counts").get("a").value == 2


def test_cleaning_up_removes_the_local_state_and_nothing_else(place: Place):
    app = place.app(counting())
    with app:
        place.send("in", "a")
        app.drain(PATIENCE_MS)
        with pytest.raises(StreamsError, match="RUNNING"):
            app.clean_up()
    assert (place.folder / "state" / "life").exists()
    app.clean_up()
    assert not (place.folder / "state" / "life").exists()
    with app:
        place.send("in", "a")
        app.drain(PATIENCE_MS)
        assert app.store("counts").get("a").value == 2


def test_a_topic_that_is_written_and_read_goes_through_the_log_until_nothing_moves(place: Place):
    builder = StreamsBuilder()
    rounds = builder.stream("in", "again", key=serde.STRING, value=serde.STRING).map_values(lambda v: v[1:])
    rounds.filter(lambda v: v != "").to("again", value=serde.STRING)
    rounds.to("out", value=serde.STRING)
    place.create("in", "again", "out")
    place.send("in", "abc")
    place.app(builder.build()).run_available()
    assert place.read("out") == ["bc", "c", ""]


def joining_a_global_table() -> Topology:
    builder = StreamsBuilder()
    names = builder.global_table("names", key=serde.STRING, value=serde.STRING)
    stream = builder.stream("in", key=serde.STRING, value=serde.STRING)
    stream.left_join(names, lambda value, name: f"{value} {name}", on=lambda key, value: key).to(
        "out", value=serde.STRING
    )
    stream.group_by_key().count()  # a task with state runs only if it has input
    return builder.build()


def test_a_global_table_is_complete_before_the_first_record_is_joined_with_it(place: Place):
    place.create("names", "in", "out")
    place.send("in", "a", "b")
    place.send("names", "a", "b")
    place.app(joining_a_global_table()).run_available()
    assert place.read("out") == ["a a", "b b"]


def test_a_slot_that_was_idle_joins_with_the_latest_global_table(place: Place):
    """Meanwhile the deltas between its copy of the table and the latest one were merged."""
    place.create("in", partitions=2)
    place.create("names", "out")
    with (
        place.app(joining_a_global_table(), num_stream_threads=2) as app,
        Producer(place.log, key=serde.STRING, value=serde.STRING) as producer,
    ):
        for version in range(2 * CompactionPolicy().max_deltas):
            producer.send("names", "a", str(version))
            producer.flush()
            app.drain(PATIENCE_MS)
            if version < 2:  # an undo of the last change does not lead to the beginning
                send_to_all(place, app)
        send_to_all(place, app)
    assert place.read("out") == [*["a 0"] * 2, *["a 1"] * 2, *[f"a {version}"] * 2]


def send_to_all(place: Place, app: Application) -> None:
    for partition in range(2):
        place.send("in", "a", partition=partition)
    app.drain(PATIENCE_MS)


def test_a_record_that_the_log_would_refuse_is_refused_before_it_is_committed(place: Place):
    builder = StreamsBuilder()
    builder.stream("in", key=serde.STRING, value=serde.STRING).map_values(lambda v: v * 100).to(
        "out", value=serde.STRING
    )
    with Admin(place.log) as admin:
        admin.create_topic("in")
        admin.create_topic("out", config={"max.message.bytes": 150})
    place.send("in", "a", "bb")
    with pytest.raises(StreamsError, match="a record of 202 bytes is too large for the topic 'out'"):
        place.app(builder.build()).run_available()
    left_out = place.app(builder.build(), production_exception_handler="continue")
    with left_out:
        left_out.drain(PATIENCE_MS)
        assert left_out.metrics()["dropped-records-total"] == 1
    assert place.read("out") == ["a" * 100]
