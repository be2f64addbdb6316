"""Records that pass stateless nodes many at a time come out as they do one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import StreamsBuilder, serde
from headrace.config import Config
from headrace.errors import ProcessingError, SerializationError
from headrace.log.protocol import Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.environment import CurrentRecord, Result
from headrace.runtime.failures import Failures, Handlers, Place
from headrace.runtime.operators import relay
from headrace.runtime.rows import Input, Inputs, PartitionBatch
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import MemoryEngine, Version


@dataclass(frozen=True)
class Order:
    product: str
    count: int


ORDER = serde.json_of(Order)
SETTINGS = {"application.id": "relays", "errors.dead.letter.queue.topic.name": "dead"}


def run(builder, rows, **settings) -> Result:
    """Runs a batch of (key, value, timestamp, headers)s."""
    graph = builder.build().graph()
    config = Config.of({**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}})
    around = TaskEnvironment(config, {})
    task = Task(TaskId(0, 0), graph, list(graph.nodes), MemoryEngine(), around, clock=0)
    at = TopicPartition("in", 0)
    batch = PartitionBatch(at, range(100, 100 + len(rows)), Records.from_rows(rows))
    result = task.run(Inputs({at: Input([batch], 100 + len(rows))}), clock=0, version=Version(1, "a"))
    assert task.here.row == batch.row(len(rows) - 1)
    assert task.here.stream_time == max(row[2] for row in rows)
    return result


def orders(*counts, key=b"k"):
    return [(key, ORDER.encode(Order("tea", count)), place, ()) for place, count in enumerate(counts)]


def both(build, rows, **settings):
    """The results of many at a time and of one by one, which must be equal."""
    found = run(build(), rows, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay, "FEWEST", len(rows) + 1)
        assert found == run(build(), rows, **settings)
    return found


def filtered(keep=lambda order: order.count > 4, key=serde.STRING, value=ORDER):
    builder = StreamsBuilder()
    builder.stream("in", key=key, value=value).filter(keep).to("out", key=key, value=value)
    return builder


@pytest.fixture
def relayed(monkeypatch):
    """How many batches were taken as a whole."""
    taken, compile_relay = [], relay.compile_relay

    def compile_and_count(*arguments, **options):
        run = compile_relay(*arguments, **options)
        return lambda batch: taken.append(run(batch)) or taken[-1]

    monkeypatch.setattr(relay, "compile_relay", compile_and_count)
    return taken


def test_a_filter_takes_many_records_at_a_time(relayed):
    rows = orders(*range(10)) * 60
    result = both(filtered, rows)
    assert relayed == [True, False]
    assert [row[2:5] for row in result.outputs[:2]] == [
        (b"k", b'{"product":"tea","count":5}', 5),
        (b"k", b'{"product":"tea","count":6}', 6),
    ]
    assert result.outputs[0][6] == (5, "in", 0, 105)


keys = st.sampled_from([None, b"", b"a", b"b"])
times = st.integers(0, 50)
headers = st.sampled_from([(), (("h", b"1"),)])


@given(rows=st.lists(st.tuples(keys, st.sampled_from([None, b"1", b"2", b"null"]), times, headers), min_size=8))
def test_nulls_headers_and_times_stay(rows):
    def build():
        builder = StreamsBuilder()
        stream = builder.stream("in", key=serde.STRING, value=serde.JSON)
        renamed = stream.filter_not(lambda value: value == 2).map_values(lambda key, value: value and [key, value])
        renamed.select_key(lambda key, value: key and key * 2).to("out", key=serde.STRING, value=serde.JSON)
        return builder

    both(build, rows)


@pytest.mark.parametrize("plain", [serde.BYTES, serde.LONG, serde.STRING, serde.DOUBLE])
def test_bytes_come_out_as_they_went_in_or_as_the_serde_writes_them(plain):
    raw = b"\xff\x00\x00\x00\x00\x00\x00\x07"
    rows = [(raw, raw, place, ()) for place in range(10)]
    result = both(lambda: filtered(lambda value: True, plain, plain), rows)
    assert result.outputs[0][2:4] == (plain.encode(plain.decode(raw)),) * 2


def test_a_value_that_a_filter_changes_comes_out_changed():
    def keep(order):
        order["seen"] = True
        return True

    result = both(lambda: filtered(keep, value=serde.JSON), orders(*range(10)))
    assert result.outputs[0][3] == b'{"product":"tea","count":0,"seen":true}'


@pytest.mark.parametrize("answer", ["continue", "dead_letter"])
def test_the_record_that_fails_is_left_out(relayed, answer):
    found = both(filtered, orders(*range(10)), processing_exception_handler=answer)
    assert len(found.outputs) == 5
    failing = lambda order: 12 // (order.count - 7) is not None
    found = both(lambda: filtered(failing), orders(*range(10)), processing_exception_handler=answer)
    assert found.dropped == {"processing error": 1}
    assert [row[0] for row in found.outputs].count("out") == 9
    assert relayed == [True, False, False, False]


def test_a_record_that_cannot_be_read_or_written_is_named():
    rows = [*orders(*range(10)), (b"k", b"{", 11, ())]
    with pytest.raises(SerializationError, match="the value of in/0 at offset 110"):
        run(filtered(), rows)
    builder = StreamsBuilder()
    wrong: Any = builder.stream("in", key=serde.STRING, value=ORDER).map_values(lambda order: order.count)
    wrong.to("out", value=ORDER)
    with pytest.raises(SerializationError, match="cannot encode what became of in/0 at offset 100"):
        run(builder, orders(*range(10)))


def test_a_function_that_ends_the_process_is_an_error_of_its_record():
    def keep(order):
        if order.count == 3:
            raise SystemExit(1)
        return True

    with pytest.raises(ProcessingError, match="offset 103"):
        run(filtered(keep), orders(*range(10)))


def test_while_a_column_is_taken_the_place_is_that_of_its_record():
    failures = Failures(
        Handlers(), TaskId(0, 0), CurrentRecord(), [], lambda node, reason, *, is_dead_letter=False: None
    )
    batch = PartitionBatch(TopicPartition("in", 0), range(100, 110), Records.from_rows(orders(*range(10))))
    taken = failures.enter_column("node", [1, 2, 3], batch, [1, 4, 7])
    assert [failures.place_of("") for _ in taken] == [Place("node", "in", 0, offset) for offset in (101, 104, 107)]


def test_other_paths_take_records_one_by_one(relayed):
    def fork():
        builder = StreamsBuilder()
        stream = builder.stream("in", key=serde.STRING, value=ORDER)
        stream.to("out", key=serde.STRING, value=ORDER)
        stream.to("copy", key=serde.STRING, value=ORDER)
        return builder

    def chosen():
        builder = StreamsBuilder()
        stream = builder.stream("in", key=serde.STRING, value=ORDER)
        stream.to(lambda key, order: f"out-{order.count % 2}", key=serde.STRING, value=ORDER)
        return builder

    def placed():
        builder = StreamsBuilder()
        stream = builder.stream("in", key=serde.STRING, value=ORDER)
        stream.to("out", key=serde.STRING, value=ORDER, partitioner=lambda topic, key, order, count: 0)
        return builder

    for build in (fork, chosen, placed):
        assert both(build, orders(*range(10))).outputs
    assert relayed == []
