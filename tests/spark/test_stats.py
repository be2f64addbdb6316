"""The statistics of an attempt at a task, and those of an application."""

import re
from dataclasses import replace

import pytest

from headrace import StreamsBuilder, serde
from headrace.checkpoint.receipt import Receipt
from headrace.log.protocol import Chunk, Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.record import Sample
from headrace.query.history import BatchLatency
from headrace.query.metrics import NodeIndex
from headrace.runtime.rows import PartitionBatch, batch_rows
from headrace.spark import stats, wire_format
from headrace.spark.stats import CUT, REMEMBERED, SHOWN, ApplicationStats, TaskStats, count_by_topic, count_outputs

IN = TopicPartition("lines", 0)
TASK = TaskId(0, 0)


def chunks(*sizes, first=0, step=1):
    """Offsets go up by `step`; the timestamp of a record is its offset."""
    found = []
    for size in sizes:
        offsets = range(first, first + size * step, step)
        found.append(Chunk(offsets, Records([b"k"] * size, [b"%d" % at for at in offsets], list(offsets))))
        first += size * step
    return found


def decode_tally(task_stats, clock, positions, outputs) -> wire_format.Tally:
    found = wire_format.decode(
        task_stats.encode_tally(
            Receipt(task=TASK, level=0, number=7, attempt="a", base=None), clock, positions, outputs
        )
    )
    assert isinstance(found, wire_format.Tally)
    return found


def count_records(some, *, upto, keep=5, clock=100_000):
    task_stats = TaskStats([wire_format.Range("lines", 0, 0, sum(len(chunk) for chunk in some), False)], keep)
    assert list(task_stats.observe_chunks(IN, some)) == some
    return decode_tally(task_stats, clock, {IN: upto}, [])


def test_records_are_counted_up_to_where_the_log_was_read():
    assert count_records(chunks(3, 4), upto=7).read == {"lines": 7}
    assert count_records(chunks(3, 4), upto=5).read == {"lines": 5}
    assert count_records(chunks(3, 1), upto=3).read == {"lines": 3}
    assert count_records(chunks(3, step=10), upto=11).read == {"lines": 2}
    assert count_records([], upto=0).read == {"lines": 0}


def test_of_many_timestamps_some_stand_for_all():
    few = count_records(chunks(3, 4), upto=7, clock=10)
    assert (few.ages, few.aged) == ([10, 9, 8, 7, 6, 5, 4], 7)
    sizes = [7, 1, 500, 3] * 20
    many = count_records(chunks(*sizes), upto=sum(sizes), clock=sum(sizes))
    assert stats.MAX_AGES / 2 < len(many.ages) <= stats.MAX_AGES
    assert many.aged == sum(sizes)
    gaps = {before - after for before, after in zip(many.ages, many.ages[1:], strict=False)}
    assert len(gaps) == 1


def test_the_last_records_of_each_topic_are_kept_and_long_ones_are_cut():
    assert [sample.value for sample in count_records(chunks(3, 4), upto=6, keep=2).samples_in] == [b"4", b"5"]
    assert count_records(chunks(3, 4), upto=6, keep=0).samples_in == []
    task_stats = TaskStats([], 2)
    rows = [("in", 0, n, b"k", b"%d" % n, n, (), ()) for n in range(9)]
    counts = PartitionBatch(TopicPartition("in", 0), [0, 1], Records([b"k"] * 2, [None] * 2, [1, 2]), [(), ()], [3, 4])
    task_stats.add_received([*batch_rows([*rows, ("other", 0, 1, None, b"x" * (CUT + 1), 5, (), ())]), counts])
    outputs = [("out", None, b"k", b"%d" % n, n, (), ()) for n in range(9)]
    tally = decode_tally(task_stats, 0, {}, outputs)
    assert tally.read == {"in": 11, "other": 1}
    assert [(some.topic, some.offset, len(some.value or b""), some.cut) for some in tally.samples_in] == [
        ("in", -1, 1, False), ("in", -1, 1, False), ("other", -1, CUT, True),
    ]  # fmt: skip
    assert [(some.partition, some.offset, some.value) for some in tally.samples_out] == [(-1, -1, b"7"), (-1, -1, b"8")]


def test_a_tally_survives_being_bytes():
    tally = count_records(chunks(3), upto=3)._replace(restored=("caught up", 7, 1.5), written={"out": 2})
    assert wire_format.decode(wire_format.encode(tally)) == tally


def test_rows_and_outputs_are_counted_by_topic():
    rows = [(topic, 0, 0, None, b"v", 5, (), ()) for topic in "aba"]
    assert count_by_topic(batch_rows(rows)) == {"a": 2, "b": 1}
    outputs = [(topic, 0, None, b"v", 5, (), ()) for topic in "aba"]
    assert count_outputs(outputs, []) == {"a": 2, "b": 1}
    assert count_outputs(outputs, ["out"]) == {"out": 3}, "where one topic is possible, no output is looked at"
    assert count_outputs([], ["out"]) == {}


# ------------------------------------------------------------------------------------------------------------- totals
def shop():
    builder = StreamsBuilder()
    lines = builder.stream("lines", key=serde.STRING, value=serde.STRING)
    upper = lines.map_values(str.upper, name="upper").filter(lambda line: line, name="some")
    upper.to("shouts", name="shout")
    words = lines.group_by(lambda key, line: line, key=serde.STRING)
    words.count(store="counts").to_stream(name="stream").map_values(str, name="text").to("counts", name="tell")
    builder.stream(pattern=re.compile("events-.*")).peek(lambda _: None, name="look")
    return builder.build().graph()


def names(graph, kind):
    return [name for name, node in graph.nodes.items() if type(node).__name__ == kind]


@pytest.fixture
def totals():
    return ApplicationStats(NodeIndex(shop(), "shop"), "letters")


def tally(task, read, written, **more):
    given = {"ages": [], "aged": 0, "restored": None, "samples_in": [], "samples_out": []} | more
    return wire_format.Tally(task.subtopology, task.partition, f"{task}", read, written, **given)


def receipt(task, stream_time=-1):
    return Receipt(
        task=task, level=0, number=0, attempt=f"{task}", base=None, delta=b"", entries=0, stream_time=stream_time
    )


def stages(graph):
    """The stage of each node."""
    return {name: number for number, nodes in NodeIndex(graph, "shop")._stages.items() for name in nodes}


def test_counts_are_those_of_the_nodes_by_which_records_come_and_go(totals):
    graph = shop()
    at = stages(graph)
    first, second, events = TaskId(at["shout"], 0), TaskId(at["tell"], 1), TaskId(at["look"], 0)
    (inner,) = [f"shop-{topic}" for topic in graph.internal_topics]
    for _ in range(2):
        tallies = [
            tally(first, {"lines": 10}, {"shouts": 4, inner: 10, "letters": 1}, ages=[5, 50], aged=10),
            tally(second, {inner: 10}, {"counts": 3}, restored=("restored", 70, 20.0)),
            tally(events, {"events-7": 2}, {}),
            tally(TaskId(9, 9), {"lines": 1000}, {}),  # whose receipt is not there: a part that was run again
        ]
        lost = replace(receipt(second, 400), dropped={"late": 1})
        totals.add([receipt(first, 500), lost, receipt(events)], tallies, clock=1000, now=1100)
    seen = totals.observed()
    assert (seen["batches"], seen["read"], seen["sent"]) == (
        2, {"lines": 20, "events-7": 4}, {"shouts": 8, "counts": 6, "letters": 2},
    )  # fmt: skip
    assert (seen["dead_letters"], seen["dropped"]) == (2, {f"{second}": {"late": 2}})
    assert seen["nodes"]["shout"] == 8
    assert seen["tasks"]["tell"] == {f"{second}": 6}
    assert seen["stream_times"] == {f"{first}": 500, f"{second}": 400}
    assert (seen["restored"], seen["restored_entries"], seen["restored_seconds"]) == ({"restored": 2}, 140, 0.04)
    assert (seen["latency"].count, seen["latency"].least, seen["latency"].most) == (20, 105, 150)
    assert seen["latencies"] == {0: BatchLatency(wait=50, p50=150, p99=150)}


def test_the_latencies_of_the_last_batches_are_kept(totals):
    task = TaskId(0, 0)
    for number in range(REMEMBERED + 10):
        ages = [] if number == 5 else [number]
        totals.add([replace(receipt(task), number=number)], [tally(task, {}, {}, ages=ages, aged=1)], clock=0, now=3)
    kept = totals.observed()["latencies"]
    assert list(kept) == list(range(10, REMEMBERED + 10))
    assert kept[20] == BatchLatency(wait=20, p50=23, p99=23)


def test_edges_are_known_through_nodes_that_hand_on_every_record(totals):
    graph = shop()
    lines, inner, events = (name for name in graph.nodes if name in names(graph, "Source"))
    counts = {lines: 10, inner: 9, "shout": 4, "tell": 3, events: 5}
    known = NodeIndex(graph, "shop").count_edges(counts)
    assert known[lines, "upper"] == known["upper", "some"] == 10
    assert known["some", "shout"] == 4
    assert known["text", "tell"] == known["stream", "text"] == 3
    (aggregate,) = graph.parents["stream"]
    assert known[aggregate, "stream"] == 3
    assert known[events, "look"] == 5


def test_a_sink_is_left_out_where_several_may_have_written():
    builder = StreamsBuilder()
    lines = builder.stream("lines")
    lines.filter(lambda _: True).to("out", name="one")
    lines.to("out", name="other")
    lines.to("apart", name="third")
    index = NodeIndex(builder.build().graph(), "app")
    assert (index.sink_of(0, "out"), index.sink_of(0, "apart"), index.sink_of(0, "nowhere")) == (None, "third", None)


def test_the_last_records_of_a_node_are_shown(totals):
    at = stages(shop())
    task = TaskId(at["shout"], 0)
    for n in range(20):
        samples_out = [Sample("shouts", -1, -1, b"k", b"%d" % n, n, False)]
        totals.add([receipt(task)], [tally(task, {}, {}, samples_out=samples_out)], clock=0, now=0)
    assert [sample.timestamp for sample in totals.samples("shout")] == list(range(20 - SHOWN, 20))
    assert totals.samples("unknown") == []


def test_a_tally_has_the_average_size_of_records():
    records = Records([b"k", None, b"key"], [b"12345", b"1", None], [1, 2, 3])
    assert count_records([Chunk([0, 1, 2], records)], upto=2).sizes == {"lines": 3}
    assert count_records([], upto=0).sizes == {}
