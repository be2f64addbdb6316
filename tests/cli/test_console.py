"""`produce` and `consume`: lines become records and records lines, through real pipes."""

import json
import signal
from contextlib import closing

import pytest

from headrace import serde
from headrace.cli.consume import PROPERTIES as OF_CONSUME
from headrace.cli.consume import LineFormatter
from headrace.cli.output import CommandError, UsageError
from headrace.cli.produce import PROPERTIES as OF_PRODUCE
from headrace.cli.produce import LineParser
from headrace.cli.text_formats import FORMATS, find_format, parse_properties
from headrace.clients import ConsumerRecord, Producer
from headrace.log import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.model.windows import Window, Windowed
from tests.cli.commands import records, started


def given(properties, defaults):
    """Properties as the command gets them."""
    return parse_properties([f"{name.replace('_', '.')}={text}" for name, text in properties.items()], defaults)


def parser(key="string", value="string", **properties):
    return LineParser(given(properties, OF_PRODUCE), find_format(key), find_format(value))


def line(key, value, headers=(), **properties):
    record = ConsumerRecord("t", 1, 7, key, value, 10, headers)
    chosen = given(properties, OF_CONSUME)
    return LineFormatter(chosen, find_format("bytes"), find_format("bytes"), {}).format(record)


# ------------------------------------------------------------------------------------------------------- lines read
def test_a_line_is_a_value():
    assert parser().parse("a\tb", 1) == (None, "a\tb", ())


def test_a_line_has_a_key_if_that_is_asked_for():
    assert parser(parse_key="true").parse("k\tv\tw", 1) == ("k", "v\tw", ())
    assert parser(parse_key="true", key_separator=":").parse("k:v", 1) == ("k", "v", ())
    assert parser(parse_key="true", key_separator="\\t").parse("k\tv", 1) == ("k", "v", ())


def test_a_line_has_headers_before_the_key():
    read = parser(parse_key="true", parse_headers="true").parse("h1:a,h2:b:c\tk\tv", 1)
    assert read == ("k", "v", (("h1", b"a"), ("h2", b"b:c")))
    assert parser(parse_headers="true", headers_delimiter="|").parse("|v", 1) == (None, "v", ())


def test_a_marker_stands_for_null():
    given = parser(parse_key="true", parse_headers="true", null_marker="NULL")
    assert given.parse("NULL\tNULL\tNULL", 1) == (None, None, ())
    assert given.parse("h:NULL\tk\t", 1) == ("k", "", (("h", None),))


def test_a_line_without_the_separator_is_named():
    with pytest.raises(CommandError, match=r"no key separator found on line number 3: 'kv'"):
        parser(parse_key="true").parse("kv", 3)
    assert parser(parse_key="true", ignore_error="true").parse("kv", 3).value == "kv"


def test_a_value_that_is_none_of_its_kind_is_named():
    with pytest.raises(CommandError, match=r"the value on line number 2 is no LONG: 'x'"):
        parser(value="long").parse("x", 2)


def test_properties_that_there_are_not_are_refused():
    with pytest.raises(UsageError, match=r"there is no property 'parse\.keys'"):
        parser(parse_keys="true")


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("long", "-5", -5), ("integer", "5", 5), ("short", "5", 5), ("double", "2.5", 2.5), ("float", "2.5", 2.5),
        ("boolean", "true", True), ("json", '{"a":1}', {"a": 1}), ("string", "ä", "ä"), ("bytes", "a", b"a"),
        ("uuid", "5f0c7f1c-58a6-4a7c-8f0e-3c9ad44f02b9", None),
    ],
)  # fmt: skip
def test_what_is_typed_comes_back_as_it_was_typed(name, text, value):
    text_format = FORMATS[name]
    parsed = text_format.parse(text)
    assert value is None or parsed == value
    assert text_format.format(text_format.serde.decode(text_format.serde.encode(parsed))).decode() == text


def test_kafkas_classes_name_serdes_too():
    for name in ("StringSerializer", "org.apache.kafka.common.serialization.Serdes$StringSerde", "String", "string"):
        assert find_format(name).serde == serde.STRING
    assert find_format("org.apache.kafka.common.serialization.ByteArrayDeserializer").serde == serde.BYTES
    with pytest.raises(UsageError, match="there is no serde 'Sting'"):
        find_format("Sting")


# ---------------------------------------------------------------------------------------------------- lines written
def test_a_record_is_its_value():
    assert line(b"k", b"v") == b"v\n"


def test_a_record_is_shown_in_kafkas_order():
    everything = dict.fromkeys(
        ["print_key", "print_timestamp", "print_partition", "print_offset", "print_headers"], "true"
    )
    shown = line(b"k", b"v", (("h", b"1"), ("i", None)), **everything)
    assert shown == b"CreateTime:10\tPartition:1\tOffset:7\th:1,i:null\tk\tv\n"
    assert line(None, None, **everything, key_separator="|") == (
        b"CreateTime:10|Partition:1|Offset:7|NO_HEADERS|null|null\n"
    )
    assert line(None, b"v", print_key="true", print_value="false", null_literal="-") == b"-\n"


def test_bytes_that_are_no_text_are_shown_as_they_are():
    assert line(None, b"\xff\x00") == b"\xff\x00\n"


# ---------------------------------------------------------------------------------------------------- real processes
@pytest.fixture
def lines(address):
    log = open_log(address)
    log.create_topic("lines", 2)
    yield log
    log.close()


@pytest.mark.slow
def test_lines_go_in_while_the_pipe_is_open_and_come_out_again(headrace, lines, address):
    settings = ("--property", "parse.key=true", "--reader-property", "key.separator=:")
    with started(
        "produce", "--log", address, "--topic", "lines", "--partition", "1", "--timestamp", "5", *settings
    ) as producing:
        producing.stdin.write("k:first\n")
        producing.stdin.flush()
        (record,) = records(address, "lines", 1)
        assert record == ConsumerRecord("lines", 1, 0, b"k", b"first", 5, ())
        producing.stdin.write("k:second\n")
        producing.stdin.close()
        assert producing.wait(60) == 0
    shown = headrace(
        "consume", "--log", address, "--topic", "lines", "--from-beginning", "--max-messages", "1", "--json"
    )
    assert shown.err == "Processed a total of 1 messages\n"
    assert json.loads(shown.out) == {
        "topic": "lines", "partition": 1, "offset": 0, "timestamp": 5, "headers": [], "key": "k", "value": "first",
    }  # fmt: skip


@pytest.mark.slow
def test_ctrl_c_ends_a_consumer_in_good_order(lines, address):
    lines.append([(TopicPartition("lines", 0), Records([None], [b"one"], [1]))])
    with started("consume", "--log", address, "--topic", "lines", "--from-beginning", "--group", "g") as consuming:
        assert consuming.stdout.readline() == "one\n"
        consuming.send_signal(signal.SIGINT)
        out, err = consuming.communicate(timeout=60)
    assert (consuming.returncode, out, err) == (0, "", "Processed a total of 1 messages\n")
    assert lines.committed("g")[TopicPartition("lines", 0)] == 1


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_it_quietly(lines, address):
    lines.append([(TopicPartition("lines", 0), Records([None] * 5000, [b"x" * 100] * 5000, [1] * 5000))])
    with started("consume", "--log", address, "--topic", "lines", "--from-beginning") as consuming:
        consuming.stdout.readline()
        consuming.stdout.close()
        assert consuming.wait(60) == 0
        assert "Traceback" not in consuming.stderr.read()


# ------------------------------------------------------------------------------------------- which records, and where
def consume(headrace, address, *arguments):
    return headrace("consume", "--log", address, "--timeout-ms", "0", *arguments)


@pytest.fixture
def filled(lines, address):
    with Producer(lines, value=serde.LONG) as producer:
        for number in range(4):
            producer.send("lines", None, number, partition=0, timestamp=number)
    return lines


def numbers(outcome):
    assert outcome.code == 0
    return outcome.out.split()


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--from-beginning"], ["0", "1", "2", "3"]),
        ([], []),
        (["--partition", "0", "--offset", "2"], ["2", "3"]),
        (["--partition", "0", "--offset", "earliest", "--max-messages", "1"], ["0"]),
        (["--partition", "0", "--offset", "latest"], []),
        (["--partition", "1", "--from-beginning"], []),
        (["--from-beginning", "--max-messages", "0"], []),
    ],
)
def test_where_reading_begins_and_ends(headrace, address, filled, arguments, expected):
    shown = consume(headrace, address, "--topic", "lines", "--value-deserializer", "long", *arguments)
    assert numbers(shown) == expected
    assert shown.err == f"Processed a total of {len(expected)} messages\n"


def test_a_group_goes_on_where_it_was_and_counts_only_what_was_shown(headrace, address, filled):
    arguments = ("--topic", "lines", "--group", "g", "--from-beginning", "--value-deserializer", "long")
    assert numbers(consume(headrace, address, *arguments, "--max-messages", "3")) == ["0", "1", "2"]
    assert numbers(consume(headrace, address, *arguments)) == ["3"]


def test_topics_can_be_chosen_by_a_pattern(headrace, address, filled):
    assert (
        len(
            numbers(consume(headrace, address, "--include", "li.*", "--from-beginning", "--value-deserializer", "long"))
        )
        == 4
    )
    assert consume(headrace, address, "--include", "x.*").err.startswith("headrace: no topic matches 'x.*'")
    assert consume(headrace, address, "--include", "(").code == 2
    assert consume(headrace, address).code == 2


def test_windowed_keys_are_shown_with_their_windows(headrace, address):
    at, by_minute = TopicPartition("visits", 0), serde.windowed(serde.STRING, 60_000)
    by_session = serde.session_windowed(serde.STRING)
    with closing(open_log(address)) as log:
        log.create_topic("visits", 1)
        log.append([
            (at, Records([by_minute.encode(Windowed("ada", Window(60_000, 120_000)))], [b"3"], [61_000], None)),
            (at, Records([by_session.encode(Windowed("b", Window(5, 7)))], [b"1"], [7], None)),
        ])  # fmt: skip
    read = ("consume", "--log", address, "--topic", "visits", "--partition", 0, "--timeout-ms", 500)
    shown = ("--property", "print.key=true", "--max-messages", 1)
    sized = ("--key-format", "windowed-string", "--property", "window.size.ms=60000")
    assert headrace(*read, *sized, *shown, "--offset", 0).out == "[ada@60000/120000]\t3\n"
    assert json.loads(headrace(*read, *sized, "--json", "--max-messages", 1, "--offset", 0).out)["key"] == {
        "key": "ada", "window": {"start": 60_000, "end": 120_000}
    }  # fmt: skip
    sessions = headrace(*read, "--key-format", "session-windowed-string", *shown, "--offset", 1)
    assert sessions.out == "[b@5/7]\t1\n"
    refused = headrace(*read, "--key-format", "windowed-string", *shown, "--offset", 0)
    assert refused.code == 2
    assert "--property window.size.ms=60000" in refused.err


def test_what_is_none_of_its_kind_is_named_or_skipped(headrace, address, filled):
    arguments = ("--topic", "lines", "--from-beginning", "--value-deserializer", "json")
    refused = consume(headrace, address, *arguments)
    assert (refused.code, "the value at offset 0 of lines-0 is no JSON" in refused.err) == (1, True)
    assert consume(headrace, address, *arguments, "--skip-message-on-error").err.endswith("a total of 0 messages\n")


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["--offset", "1"], 2),
        (["--partition", "0", "--offset", "one"], 2),
        (["--partition", "0", "--offset", "1", "--from-beginning"], 2),
        (["--partition", "9"], 1),
        (["--property", "print.keys=true"], 2),
    ],
)
def test_what_makes_no_sense_is_refused(headrace, address, filled, arguments, code):
    assert consume(headrace, address, "--topic", "lines", *arguments).code == code
