"""Traces in the test driver: what each operator got and did, and that a trace has no effect."""

from __future__ import annotations

from typing import Any

from headrace import (
    Buffer,
    JoinWindows,
    Processor,
    ProcessorContext,
    Punctuation,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serde,
)
from headrace.query.traces import Trace
from headrace.runtime.tracing import TraceStep
from headrace.testing import TopologyTestDriver

TEXT: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}


def step_of(trace: Trace, node: str) -> TraceStep:
    return next(step for step in trace.steps if step.node == node)


def nodes(trace: Trace) -> list[str]:
    return [step.node for step in trace.steps]


def accesses(step: TraceStep) -> list[tuple[str, str, Any]]:
    return [(some.what, some.store, some.key) for some in step.accesses]


def test_a_trace_has_no_effect_and_sees_the_current_state() -> None:
    builder, seen = StreamsBuilder(), list[str]()
    words = builder.stream("in", **TEXT).peek(seen.append, name="look")
    words.group_by_key().count(store="counts", name="count").to_stream().to("out", key=serde.STRING, value=serde.LONG)
    with TopologyTestDriver(builder.build()) as driver:
        given = driver.input_topic("in", **TEXT)
        given.pipe("a", "x")
        for _ in range(2):
            trace = given.trace("a", "x")
            assert [access.value and access.value.value for access in step_of(trace, "count").accesses] == [1, 2]
        assert (seen, driver.store("counts").get("a").value) == (["x"], 1)
        driver.store("counts").put("a", driver.store("counts").get("a")._replace(value=9))
        assert step_of(driver.trace("in", "a", "x"), "count").accesses[0].value.value == 9
        given.pipe("a", "x")
        assert driver.store("counts").get("a").value == 10
        assert driver.output_topic("out", serde.STRING, serde.LONG).read_values() == [1, 10]
        assert driver.metrics()["dropped-records-total"] == 0
        assert step_of(trace, "look").note == "its function is not called"


def test_every_kind_of_store_shows_its_keys() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    grouped = stream.group_by_key()
    grouped.windowed_by(TimeWindows.of(10)).count(store="windows", name="in-windows")
    grouped.windowed_by(SessionWindows.of(5)).count(store="sessions", name="in-sessions")
    other = builder.stream("other", **TEXT)
    stream.join(
        other,
        lambda a, b: a + b,
        windows=JoinWindows.of(5),
        other_value=serde.STRING,
        store="both",
        name="meet",
        **TEXT,
    )
    table = builder.table("rows", store="rows", name="rows", **TEXT)
    stream.join(table, lambda a, b: a + b, name="look-up")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("rows", **TEXT).pipe("a", "row", timestamp=0)
        driver.input_topic("other", **TEXT).pipe("a", "o", timestamp=11)
        driver.input_topic("in", **TEXT).pipe("a", "x", timestamp=12)
        trace = driver.trace("in", "a", "y", timestamp=14)
    windows, sessions = step_of(trace, "in-windows"), step_of(trace, "in-sessions")
    assert {(some.what, some.key.key, *some.key.window) for some in windows.accesses} == {
        ("read", "a", 10, 20), ("write", "a", 10, 20),
    }  # fmt: skip
    assert ("write", "sessions", ("a", (12, 14))) in accesses(sessions)
    assert ("write", "sessions", ("a", (12, 12))) in accesses(sessions)  # the session that it extends is deleted
    assert accesses(step_of(trace, "look-up")) == [("read", "rows", "a")]
    joined = [step for step in trace.steps if step.kind == "StreamJoin"]
    assert [access.key.key for step in joined for access in step.accesses if access.what == "read"] == ["a"]


class Ticker(Processor[str, str, str, str]):
    def init(self, context: ProcessorContext) -> None:
        self.context, self.store = context, context.store("seen")
        context.schedule(100, Punctuation.STREAM_TIME, lambda at: context.forward(Record("tick", str(at), at)))

    def process(self, record: Record[str, str]) -> None:
        self.store.put(record.key, record.value)


def test_a_punctuation_that_the_record_triggers_is_part_of_its_way() -> None:
    builder = StreamsBuilder()
    builder.add_store(Stores.key_value("seen", **TEXT))
    builder.stream("in", **TEXT).process(Ticker, "seen", name="ticker").to("out", name="out", **TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", **TEXT).pipe("a", "x", timestamp=1)
        early, late = driver.trace("in", "a", "y", timestamp=50), driver.trace("in", "a", "y", timestamp=150)
    assert [step.kind for step in early.steps] == ["Source", "Process"]
    assert [step.kind for step in late.steps] == ["Source", "Process", "Punctuation", "Sink"]
    assert late.steps[-1].outputs[0].topic == "out"
    assert accesses(late.steps[1]) == [("write", "seen", "a")]


def test_what_a_suppressed_window_lets_out_is_found() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in", **TEXT).group_by_key().windowed_by(TimeWindows.of(10)).count(name="count")
    final = counts.suppress(Suppressed.until_window_closes(Buffer.unbounded()), name="wait")
    final.to_stream(lambda windowed, count: windowed.key).to("out", key=serde.STRING, value=serde.LONG, name="out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", **TEXT).pipe("a", "x", timestamp=1)
        trace = driver.trace("in", "b", "x", timestamp=30)
    out = step_of(trace, "out")
    assert (out.key, out.value) == ("a", 1)  # the window that the record closes


def test_a_foreign_key_join_is_followed_there_and_back() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left", **TEXT), builder.table("right", **TEXT)
    joined = left.join(right, lambda a, b: f"{a}+{b}", on=lambda value: value[0])
    joined.to_stream().to("out", name="out", **TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("right", **TEXT).pipe("x", "X")
        trace = driver.trace("left", "1", "x1")
    assert step_of(trace, "out").value == "x1+X"
    internal = [output for step in trace.steps for output in step.outputs if output.is_internal]
    assert len(internal) == 2
    sources = [step for step in trace.steps if step.kind == "Source"]
    assert [None if step.parent is None else trace.steps[step.parent].kind for step in sources] == [
        None,
        "Sink",
        "Sink",
    ]


def test_dead_letters_and_records_that_cannot_be_decoded_are_part_of_it() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serde.STRING, value=serde.LONG, name="in")
    stream.map_values(lambda value: 1 // value, name="divide").to("out", key=serde.STRING, value=serde.LONG)
    handlers = dict.fromkeys(("processing.exception.handler", "deserialization.exception.handler"), "dead_letter")
    config = {**handlers, "errors.dead.letter.queue.topic.name": "dead"}
    with TopologyTestDriver(builder.build(), config) as driver:
        failed = driver.trace("in", "a", 0)
        undecodable = driver.input_topic("in", value=serde.STRING).trace("x")
    divide = step_of(failed, "divide")
    assert (divide.error, divide.dropped) == (
        "ZeroDivisionError: integer division or modulo by zero",
        ["processing error"],
    )
    assert [output.topic for output in divide.outputs] == ["dead"]
    assert undecodable.steps[0].dropped == ["deserialization error"]
    assert "dropped: deserialization error" in str(undecodable)
    assert failed.error is None


def test_a_failure_that_stops_the_application_is_shown() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).map_values(int, name="number").to("out", value=serde.LONG)
    with TopologyTestDriver(builder.build()) as driver:
        trace = driver.trace("in", "x")
    assert "ValueError" in (step_of(trace, "number").error or "")
    assert "The application stops: number failed on in/0 at offset 0" in str(trace)


def test_html_is_escaped() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).to("out", **TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        trace = driver.trace("in", "<b>", "<script>alert(1)</script>")
    assert "<script>" not in trace._repr_html_()
    assert "&lt;script&gt;" in trace._repr_html_()
