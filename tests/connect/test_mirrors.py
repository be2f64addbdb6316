"""Mirrors: a topic of another log keeps its partitions, and a consumer group goes on in the copy where it was."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import count
from typing import Any

import confluent_kafka
import pytest

from headrace import Admin, Application, Consumer, Producer, Record, StreamsBuilder, serde
from headrace.connect import LogSink, LogSource, SinkBatch, SinkContext, SinkPart, translate_offsets
from headrace.connect.mirror import original_offset
from headrace.connect.source import SOURCE_STEPS, SourceRunner
from headrace.errors import ConfigError, StreamsError
from headrace.log.open import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.topology.connectors import SourceSpec
from tests.cli.commands import Here
from tests.connect.test_source_runner import MOMENTS, Crash, crash_at, run_to_end

pytestmark = pytest.mark.slow

_names = count()
KAFKA = pytest.mark.kafka
ROUTES = [
    ("file", "file"),
    pytest.param(("file", "kafka"), marks=KAFKA),
    pytest.param(("kafka", "file"), marks=KAFKA),
    pytest.param(("kafka", "kafka"), marks=KAFKA),
]


@pytest.fixture
def name():
    return f"mirrored-{next(_names)}"


@pytest.fixture(params=ROUTES, ids="-to-".join)
def route(request, tmp_path):
    """The addresses of the original and of the copy."""
    kinds = zip(request.param, ("there", "here"), strict=True)
    return [
        f"file:{tmp_path}/{place}" if kind == "file" else request.getfixturevalue("broker_address")
        for kind, place in kinds
    ]


def spec_of(there, topic, **options):
    source = LogSource(there, topic, **options)
    return SourceSpec(source=source, topic=f"{topic}-copy", key=source.key, value=source.value)


def mirror(there, here, topic, **options):
    with closing(open_log(here)) as log:
        run_to_end(SourceRunner(f"mirror-{topic}", spec_of(there, topic), log, max_records=7, **options))


def append(log, topic, partition, values):
    """Appends records; every fourth has a key of its own, the others have one of three."""
    keys = [f"k{value % 3}" if value % 4 else f"own {value}" for value in values]
    records = Records([key.encode() for key in keys], [str(value).encode() for value in values], values)
    log.append([(TopicPartition(topic, partition), records)])


def append_with_gaps(address, log, topic):
    """Two partitions of records, between which offsets are missing: aborted, deleted or compacted ones."""
    log.create_topic(topic, 2)
    append(log, topic, 0, range(10))
    append(log, topic, 1, range(100, 105))
    if address.startswith("kafka://"):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": address.removeprefix("kafka://"), "transactional.id": f"{topic}-aborts"}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(4):
            producer.produce(topic, b"aborted", b"k", partition=0)
        producer.flush()
        producer.abort_transaction(30)
    else:
        log.alter_config(topic, {"cleanup.policy": "compact"})
        log.clean()
        assert log.extents([topic])[TopicPartition(topic, 0)].end == 10
    append(log, topic, 0, range(10, 22))
    log.delete_records({TopicPartition(topic, 1): 2})


def read(log, topic) -> dict[int, list[Any]]:
    """All rows, by partition."""
    extents = log.extents([topic])
    return {
        at.partition: [row for chunk in log.read(at, extent.earliest, extent.end) for row in chunk.rows()]
        for at, extent in sorted(extents.items())
    }


def committed(log, group, topic):
    return {at.partition: offset for at, offset in log.committed(group).items() if at.topic == topic}


def check_translation(here, log, topic, copied):
    """Compares every translated offset with what a look at all copies says."""
    copies = read(log, f"{topic}-copy")
    for partition, originals in copied.items():
        pairs: list[Any] = [(original_offset(row[4], topic), row[0]) for row in copies[partition]]
        assert [original for original, _ in pairs] == originals
        behind = pairs[-1][1] + 1
        for wanted in range(originals[-1] + 3):
            expected = next((offset for original, offset in pairs if original >= wanted), behind)
            assert translate_offsets(here, f"{topic}-copy", {partition: wanted}, mirror=topic) == {partition: expected}


def test_offsets_are_translated_across_gaps(route, name):
    there, here = route
    with closing(open_log(there)) as original, closing(open_log(here)) as copy:
        append_with_gaps(there, original, name)
        mirror(there, here, name)
        rows = read(original, name)
        assert any(b[0] - a[0] > 1 for a, b in zip(rows[0], rows[0][1:], strict=False)), "there is no gap"
        copies = read(copy, f"{name}-copy")
        assert {at: [row[1:4] for row in some] for at, some in copies.items()} == {
            at: [row[1:4] for row in some] for at, some in rows.items()
        }
        check_translation(here, copy, name, {at: [row[0] for row in some] for at, some in rows.items()})


def test_a_group_goes_on_in_the_copy_where_it_was(route, name, capsys):
    there, here = route
    group = f"billing-{name}"
    with closing(open_log(there)) as original:
        append_with_gaps(there, original, name)
        mirror(there, here, name)
        rows = read(original, name)
        original.commit(group, {TopicPartition(name, 0): rows[0][3][0], TopicPartition(name, 1): rows[1][-1][0] + 1})
        append(original, name, 1, range(200, 203))
    mirror(there, here, name)
    command = ["groups", "translate", "--group", group, "--topic", name, "--from", there, "--log", here]
    command += ["--to-topic", f"{name}-copy", "--json"]
    shown = json.loads(Here(capsys)(*command, "--dry-run").out)
    with closing(open_log(here)) as copy:
        assert committed(copy, group, f"{name}-copy") == {}
        assert json.loads(Here(capsys)(*command).out) == shown
        assert committed(copy, group, f"{name}-copy") == {row["partition"]: row["offset"] for row in shown}
    with Consumer(here, group=group) as consumer:
        consumer.subscribe(f"{name}-copy")
        wanted, found = len(rows[0]) - 3 + 3, list[Any]()
        while len(found) < wanted:
            found += consumer.poll(1_000)
    assert sorted(int(record.value or b"") for record in found) == sorted(
        [*(int(row[2]) for row in rows[0][3:]), 200, 201, 202]
    )


def test_a_mirror_that_is_killed_at_every_step_has_every_offset_once(tmp_path, name):
    there, here = f"file:{tmp_path}/there", f"file:{tmp_path}/here"
    with closing(open_log(there)) as original:
        original.create_topic(name, 2)
        append(original, name, 0, range(90))
        append(original, name, 1, range(30))
    assert len(MOMENTS) == 2 * len(SOURCE_STEPS)
    for moment in MOMENTS:
        with pytest.raises(Crash):
            mirror(
                there,
                here,
                name,
                at_step=crash_at(moment, 2 if "open" not in moment and "takeover" not in moment else 1),
            )
    mirror(there, here, name)
    with closing(open_log(here)) as copy:
        check_translation(here, copy, name, {0: [*range(90)], 1: [*range(30)]})


def test_the_copy_gets_the_partitions_that_the_original_gets(tmp_path, name):
    there, here = f"file:{tmp_path}/there", f"file:{tmp_path}/here"
    with closing(open_log(there)) as original, closing(open_log(here)) as copy:
        original.create_topic(name, 2)
        append(original, name, 0, range(3))
        mirror(there, here, name)
        assert copy.topic(f"{name}-copy").partitions == 2
        original.add_partitions(name, 3)
        append(original, name, 2, range(4))
        mirror(there, here, name)
        assert [len(rows) for rows in read(copy, f"{name}-copy").values()] == [3, 0, 4]


@pytest.mark.slow
def test_bisection_finds_offsets_among_the_records_of_others(tmp_path, name):
    there, here = f"file:{tmp_path}/there", f"file:{tmp_path}/here"
    with closing(open_log(there)) as original, closing(open_log(here)) as copy:
        original.create_topic(name)
        for start in range(0, 6_000, 1_000):
            append(original, name, 0, range(start, start + 1_000))
            mirror(there, here, name)
            append(copy, f"{name}-copy", 0, range(500))  # another producer
        rows = read(copy, f"{name}-copy")[0]
        pairs = {original_offset(row[4], name): row[0] for row in rows}
        for wanted in (0, 1, 999, 1_000, 2_345, 5_999):
            assert translate_offsets(here, f"{name}-copy", {0: wanted}, mirror=name) == {0: pairs[wanted]}
        assert translate_offsets(here, f"{name}-copy", {0: 6_000}, mirror=name) == {0: pairs[5_999] + 1}


def test_what_cannot_be_translated_is_an_error(tmp_path, name, capsys):
    there, here = f"file:{tmp_path}/there", f"file:{tmp_path}/here"
    with closing(open_log(there)) as original:
        original.create_topic(name)
        append(original, name, 0, range(3))
        mirror(there, here, name)
        with pytest.raises(ConfigError, match=r"no record of .* has an offset of the mirror 'other'"):
            translate_offsets(here, f"{name}-copy", {0: 2}, mirror="other")
        with pytest.raises(ConfigError, match="has 1 partitions, and no partition 4"):
            translate_offsets(here, f"{name}-copy", {4: 2}, mirror=name)
        nobody = ["groups", "translate", "--group", "nobody", "--topic", name, "--from", there, "--log", here]
        assert "has no offsets of" in Here(capsys)(*nobody).err
        original.delete_topic(name)
        original.create_topic(name)
        with pytest.raises(ConfigError, match="was deleted and made anew"):
            mirror(there, here, name)


# ---------------------------------------------------------------------------------------------------------------- sinks
def write_parts(sink, number, *parts):
    context = SinkContext(application="shop", sink="orders", checkpoint="c" * 16)
    with closing(sink.open(context)) as writer:
        writer.write(SinkBatch(number, parts))


def part(partition, offsets, topic="orders", origin=None):
    records = [Record(b"k", str(offset).encode(), 5, (("trace", b"7"),)) for offset in offsets]
    orders = [(5, topic, partition if origin is None else origin, offset) for offset in offsets]
    return SinkPart(f"0_{partition}", partition, records, orders)


def test_a_sink_that_mirrors_keeps_partitions_and_offsets(tmp_path):
    here = f"file:{tmp_path}/here"
    sink = LogSink(here, "copies", mirrors="orders")
    write_parts(sink, 1, part(0, [3, 4]), part(2, [7]), SinkPart("1_0", 0, [Record(b"k", b"tick", 5)], [()]))
    write_parts(sink, 1, part(0, [3, 4]), part(2, [7]))  # again: nothing happens
    write_parts(sink, 2, part(0, [9]))
    assert translate_offsets(here, "copies", {0: 5, 2: 8}, mirror="orders") == {0: 3, 2: 1}
    with closing(open_log(here)) as log:
        rows = read(log, "copies")
        assert [[(original_offset(row[4], "orders"), row[2]) for row in rows[at]] for at in range(3)] == [
            [(3, b"3"), (4, b"4"), (None, b"tick"), (9, b"9")],
            [],
            [(7, b"7")],
        ]
        assert rows[2][0][4][0] == ("trace", b"7")
    with pytest.raises(StreamsError, match="partition 1 of 'orders' came to partition 0"):
        write_parts(sink, 3, part(0, [10], origin=1))
    with pytest.raises(ConfigError, match="needs partition='same'"):
        LogSink(here, "copies", partition="key", mirrors="orders")


@pytest.mark.spark
@pytest.mark.kafka
def test_an_application_mirrors_a_filtered_topic_to_kafka(broker_address, name, tmp_path):
    log = f"file:{tmp_path}/log"
    with Admin(log) as admin, Producer(log, key=serde.STRING, value=serde.LONG) as producer:
        admin.create_topic(name, partitions=2)
        for number in range(200):
            producer.send(name, str(number), number, partition=number % 2)
    builder = StreamsBuilder()
    numbers = builder.stream(name, key=serde.STRING, value=serde.LONG)
    numbers.filter(lambda number: number % 5 == 0).sink(
        LogSink(broker_address, f"{name}-copy", mirrors=name), name=name
    )
    place: dict[str, Any] = {"checkpoint": str(tmp_path / "checkpoint"), "state_dir": str(tmp_path / "state")}
    Application(f"filter-{name}", builder.build(), log, **place).run_available()
    with closing(open_log(broker_address)) as kafka:
        rows = read(kafka, f"{name}-copy")
        for partition, some in rows.items():
            values = [serde.LONG.decode(row[2]) for row in some]
            assert values == [number for number in range(0, 200, 5) if number % 2 == partition]
            assert [original_offset(row[4], name) for row in some] == [number // 2 for number in values]
        # The record at offset 12 was left out: the group goes on with the next one that was not.
        wanted = next(row[0] for row in rows[0] if serde.LONG.decode(row[2]) >= 24)
        assert translate_offsets(broker_address, f"{name}-copy", {0: 12}, mirror=name) == {0: wanted}
