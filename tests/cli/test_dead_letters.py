"""`headrace dead-letters` and `headrace drops`: what failed and what was left out, seen and sent again."""

import json

import pytest

from headrace import StreamsBuilder, TimeWindows, serde
from headrace.checkpoint.storage import DiskStorage
from headrace.log import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import TopologyTestDriver
from tests.checkpoint.cluster import Cluster, Ground
from tests.checkpoint.programs import TEXTS, Program

DEAD = TopicPartition("dead", 0)
AGAIN = "Branches of the topology that had processed them the first time process them again.\n"


def cause(topic, partition, offset=4, message="no number"):
    told = {"exception": "builtins.ValueError", "message": message, "stacktrace": "Traceback\n …", "topic": topic,
            "partition": str(partition), "offset": str(offset)}  # fmt: skip
    return tuple((f"__streams.errors.{name}", text.encode()) for name, text in told.items())


LETTERS = [
    (b"a", b"one", 10, (("trace", b"7"), *cause("orders", 1))),
    (None, b"\xff", 11, cause("orders", 0, 5, "not UTF-8\nat all")),
    (b"b", None, 12, cause("shop-counts-repartition", 0)),
    (None, None, 13, cause("", -1, -1)),
    (b"c", b"two", 14, cause("orders", 2)),
    (b"d", b"three", 15, ()),
]


@pytest.fixture
def log(address):
    log = open_log(address)
    log.create_topic("orders", 2)
    log.create_topic("dead")
    log.append([(DEAD, Records.from_rows(LETTERS))])
    yield log
    log.close()


@pytest.fixture
def letters(headrace, address, log):
    def run(command, *arguments):
        return headrace("dead-letters", command, "--topic", "dead", "--log", address, *arguments)

    return run


def orders(log):
    return {
        at.partition: [row[1:] for chunk in log.read(at, 0) for row in chunk.rows()] for at in log.extents(["orders"])
    }


def test_they_are_listed_with_where_they_came_from_and_why_they_failed(letters):
    listed = json.loads(letters("list", "--json").out)
    assert listed[0] == {
        "partition": 0, "offset": 0, "timestamp": 10, "topic": "orders", "from_partition": 1, "from_offset": 4,
        "exception": "builtins.ValueError", "message": "no number", "stacktrace": "Traceback\n …",
        "headers": [["trace", "7"]], "key": "a", "value": "one", "replayed": False,
    }  # fmt: skip
    assert [row["topic"] for row in listed] == [
        "orders", "orders", "shop-counts-repartition", None, "orders", None,
    ]  # fmt: skip
    assert listed[1]["value"] == {"base64": "/w=="}
    shown = letters("list", "--max-messages", "2").out.splitlines()
    assert shown[0].split() == ["partition", "offset", "topic", "from", "partition", "from", "offset", "exception",
                                "message", "key", "value", "replayed"]  # fmt: skip
    assert [line.split()[-5:-1] for line in shown[1:]] == [
        ["no", "number", "a", "one"], ["UTF-8", "-", "{'base64':", "'/w=='}"],
    ]  # fmt: skip


def test_a_dry_run_sends_nothing(letters, log):
    outcome = letters("replay", "--dry-run", "--json")
    assert (outcome.code, outcome.err) == (1, f"2 would be sent, 4 cannot be.\n{AGAIN}")
    assert next((row["key"], row["value"]) for row in json.loads(outcome.out)) == ("a", "one")
    assert [row["problem"] for row in json.loads(outcome.out)] == [
        None,
        None,
        "the log has no topic 'shop-counts-repartition': it is internal to the application, or was deleted",
        "its headers name no partition that it came from",
        "'orders' has only 2 partitions",
        "its headers name no partition that it came from",
    ]
    assert orders(log) == {0: [], 1: []}
    assert log.committed("headrace-dead-letters") == {}


def test_what_is_replayed_is_the_record_that_failed_and_is_sent_once(letters, log):
    outcome = letters("replay")
    assert outcome.err == f"2 were sent, 4 cannot be.\n{AGAIN}"
    assert outcome.out.splitlines()[1].split() == ["0", "0", "orders", "1", "a", "one", "-"]
    sent = {0: [(None, b"\xff", 11, ())], 1: [(b"a", b"one", 10, (("trace", b"7"),))]}
    assert orders(log) == sent
    listed = json.loads(letters("list", "--json").out)
    assert [row["replayed"] for row in listed] == [True, True, False, False, False, False]
    outcome = letters("replay")
    assert (outcome.code, outcome.err) == (0, "0 were sent, 0 cannot be.\n")
    assert orders(log) == sent
    log.append([(DEAD, Records.from_rows([(b"e", b"four", 16, cause("orders", 1))]))])
    assert letters("replay").code == 0
    assert orders(log) == {0: sent[0], 1: [*sent[1], (b"e", b"four", 16, ())]}
    letters("replay", "--again", "--max-messages", "1")
    assert [row[0] for row in orders(log)[1]] == [b"a", b"e", b"a"]


@pytest.mark.slow
def test_many_are_sent_in_their_order(letters, log):
    letters("replay")
    log.append([(DEAD, Records.from_rows([(b"k", b"%d" % n, n, cause("orders", 0)) for n in range(1201)]))])
    assert letters("replay").err == f"1201 were sent, 0 cannot be.\n{AGAIN}"
    assert [row[2] for row in orders(log)[0][1:]] == list(range(1201))


def test_what_an_application_writes_is_understood(letters, log):
    builder = StreamsBuilder()
    builder.stream("orders", key=serde.STRING, value=serde.STRING).map_values(int).to("out", value=serde.LONG)
    settings = {"processing.exception.handler": "dead_letter", "errors.dead.letter.queue.topic.name": "dead"}
    with TopologyTestDriver(builder.build(), config=settings) as driver:
        driver.input_topic("orders", serde.STRING, serde.STRING).pipe("k", "many", timestamp=20)
        dead = driver.output_topic("dead", serde.BYTES, serde.BYTES).read_record()
    log.append([(DEAD, Records.from_rows([(dead.key, dead.value, dead.timestamp, tuple(dead.headers))]))])
    told = json.loads(letters("list", "--json").out)[-1]
    assert (told["topic"], told["from_partition"], told["from_offset"]) == ("orders", 0, 0)
    assert (told["exception"], "'many'" in told["message"]) == ("builtins.ValueError", True)
    letters("replay")
    assert orders(log)[0][-1] == (b"k", b"many", 20, ())


def test_a_topic_that_is_not_there_is_named(headrace, address):
    outcome = headrace("dead-letters", "list", "--topic", "none", "--log", address)
    assert (outcome.code, "there is no topic 'none'" in outcome.err) == (1, True)


def counted():
    builder = StreamsBuilder()
    builder.stream("lines", **TEXTS).group_by_key(**TEXTS).count(store="counts")
    return builder.build()


def test_drops_are_shown_by_reason(headrace, tmp_path):
    program = Program(counted, {"lines": [("a", "x"), ("a", None), ("b", None)]})
    cluster = Cluster(Ground(log=program.log(), storage=DiskStorage(tmp_path / "checkpoint")), program)
    cluster.run()
    cluster.close()
    outcome = headrace("drops", "--checkpoint", tmp_path / "checkpoint", "--json")
    (row,) = json.loads(outcome.out)
    assert (row["reason"], row["records"]) == ("null key or value", 2)
    assert "the operator needs both" in row["why"]
    shown = headrace("drops", "--checkpoint", tmp_path / "checkpoint")
    assert shown.out.splitlines()[1].split()[:5] == ["null", "key", "or", "value", "2"]
    assert shown.err.endswith(" 2 records in all.\n")


def test_drops_are_found_by_the_application(headrace, tmp_path, monkeypatch):
    program = Program(counted, {"lines": [("a", None)]})
    cluster = Cluster(Ground(log=program.log(), storage=DiskStorage(tmp_path / "checkpoint")), program)
    cluster.run()
    cluster.close()
    text = "from headrace import Application, StreamsBuilder\nbuilder = StreamsBuilder()\nbuilder.stream('lines')\n"
    text += (
        f"app = Application('app', builder.build(), log='file:{tmp_path}/log', checkpoint='{tmp_path}/checkpoint')\n"
    )
    (tmp_path / "dropping_program.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = headrace("drops", "--topology", "dropping_program:app", "--json")
    assert [row["records"] for row in json.loads(outcome.out)] == [1]


def test_a_checkpoint_that_is_not_there_is_not_made(headrace, tmp_path):
    outcome = headrace("drops", "--checkpoint", tmp_path / "none")
    assert (outcome.code, outcome.err) == (1, f"headrace: there is no checkpoint in {tmp_path}/none\n")
    assert not (tmp_path / "none").exists()


def test_dropped_records_go_to_their_topic_and_are_replayed_from_there(headrace, address, log):
    builder = StreamsBuilder()
    stream = builder.stream("orders", **TEXTS)
    stream.group_by_key().windowed_by(TimeWindows.of(10, advance=5)).count(name="count")
    settings = {"dropped.records.topic.name": "dropped"}
    with TopologyTestDriver(builder.build(), config=settings) as driver:
        given = driver.input_topic("orders", **TEXTS)
        given.pipe(None, "no key", timestamp=100)
        given.pipe("k", "in time", timestamp=101)
        given.pipe("k", "late", timestamp=7, headers=[("own", b"1")])
        found = driver.output_topic("dropped", serde.BYTES, serde.BYTES).read_records()
        assert driver.metrics()["dropped-records-total/late"] == 2  # for two windows, and written once
    log.create_topic("dropped")
    rows = [(record.key, record.value, record.timestamp, record.headers) for record in found]
    log.append([(TopicPartition("dropped", 0), Records.from_rows(rows))])
    options = ("--topic", "dropped", "--log", address, "--json")
    listed = json.loads(headrace("dead-letters", "list", *options).out)
    assert [(row["exception"], row["message"], row["from_offset"], row["value"]) for row in listed] == [
        ("null key", "count left it out: null key", 0, "no key"),
        ("late", "count left it out: late", 2, "late"),
    ]
    assert listed[1]["headers"] == [["own", "1"]]
    assert headrace("dead-letters", "replay", *options).code == 0
    assert orders(log)[0] == [(None, b"no key", 100, ()), (b"k", b"late", 7, (("own", b"1"),))]


def test_a_dead_letter_is_not_written_to_the_topic_of_dropped_records_too():
    builder = StreamsBuilder()
    builder.stream("orders", **TEXTS).map_values(int).to("out", value=serde.LONG)
    settings = {
        "processing.exception.handler": "dead_letter",
        "errors.dead.letter.queue.topic.name": "dead",
        "dropped.records.topic.name": "dropped",
    }
    with TopologyTestDriver(builder.build(), config=settings) as driver:
        driver.input_topic("orders", **TEXTS).pipe("k", "many")
        assert driver.output_topic("dead").size == 1
        assert driver.output_topic("dropped").is_empty
