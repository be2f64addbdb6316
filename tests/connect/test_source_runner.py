"""The runner of a source, on both logs: positions, crashes, fencing, errors that pass and errors that do not."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count

import pytest

from headrace import StreamsBuilder, serde
from headrace.connect import GeneratorSource, SourceBatch, SourceRecord
from headrace.connect.source import SOURCE_STEPS, RunningSources, SourceRunner, SourceState
from headrace.errors import ProducerFencedError, SerializationError, TopologyError, summarize
from headrace.log.open import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import TopologyTestDriver, check_source
from headrace.topology.connectors import SourceSpec
from tests.connect.test_sink_delivery import lines_above_debug
from tests.kafka.fixtures import broker_address

__all__ = ["broker_address"]
_names = count()
MOMENTS = [f"{when} {name}" for name in SOURCE_STEPS for when in ("before", "after")]


class Crash(BaseException):
    pass


@pytest.fixture(params=["file", pytest.param("kafka", marks=pytest.mark.kafka)])
def address(request, tmp_path):
    return f"file:{tmp_path}" if request.param == "file" else request.getfixturevalue("broker_address")


@pytest.fixture
def name():
    return f"numbers-{next(_names)}"


def numbers(name, limit=7, **options):
    return GeneratorSource(name, lambda number: (number % 3, number), limit=limit, **options)


def spec_of(source, **options):
    return SourceSpec(source=source, topic=source.name, key=source.key, value=source.value, **options)


def run_to_end(runner):
    while not runner.is_caught_up:
        runner.advance()


def values(log, topic):
    return sorted(
        serde.JSON.decode(row[2])
        for at, extent in log.extents([topic]).items()
        for chunk in log.read(at, extent.earliest, extent.end)
        for row in chunk.rows()
    )


def crash_at(moment, occurrence):
    left = [occurrence]

    def at_step(now):
        left[0] -= now == moment
        if now == moment and left[0] == 0:
            raise Crash

    return at_step


def test_crashes_before_and_after_every_step(address, name):
    """One source is crashed again and again, each time at another step; every process takes it over anew."""
    spec = spec_of(numbers(name, limit=40), partitions=3)
    for moment in MOMENTS:
        with closing(open_log(address)) as log:
            runner = SourceRunner(f"shop-{name}", spec, log, max_records=3, at_step=crash_at(moment, 1))
            with pytest.raises(Crash):
                run_to_end(runner)
    with closing(open_log(address)) as log:
        run_to_end(SourceRunner(f"shop-{name}", spec, log, max_records=3))
        assert values(log, name) == [*range(40)]


def test_a_second_runner_fences_the_first(address, name):
    spec = spec_of(numbers(name, limit=20))
    with closing(open_log(address)) as one, closing(open_log(address)) as two:
        first = SourceRunner(f"shop-{name}", spec, one, max_records=2)
        for _ in range(4):
            first.advance()
        second = SourceRunner(f"shop-{name}", spec, two, max_records=2)
        second.advance()
        with pytest.raises(ProducerFencedError, match="another process runs the source"):
            first.advance()
        assert first.report().state == SourceState.FENCED
        run_to_end(second)
        assert values(two, name) == [*range(20)]


class Flaky:
    """A reader that fails at every third call, and a source that cannot be opened at first."""

    name, key, value = "flaky", serde.JSON, serde.JSON

    def __init__(self):
        self.calls = count()

    def open(self, position):
        if next(self.calls) < 2:
            raise ConnectionError("postgresql://ada:secret@host is away")
        return FlakyReader(self.calls, position or 0)


class FlakyReader:
    def __init__(self, calls, position):
        self.calls, self.position = calls, position

    def read(self, max_records, timeout):
        if next(self.calls) % 3 == 0:
            raise ConnectionError("it broke off")
        if self.position == 6:
            return None
        self.position += 1
        return SourceBatch([SourceRecord(None, self.position)], self.position)

    def acknowledge(self, position):
        pass

    def lag(self):
        return 6 - self.position

    def close(self):
        raise ConnectionError("it was broken already")


def test_a_source_that_is_away_is_retried_and_nothing_is_lost(tmp_path):
    with closing(open_log(f"file:{tmp_path}")) as log:
        runner = SourceRunner("shop-flaky", spec_of(Flaky()), log)
        runner.advance()
        pauses = [runner.advance(), runner.advance()]
        report = runner.report()
        assert (report.state, report.error) == ("RETRYING", "postgresql://***@host is away")
        assert pauses == [0.1, 0.2]
        run_to_end(runner)
        assert (runner.report().state, runner.report().lag) == ("RUNNING", 0)
        assert values(log, "flaky") == [1, 2, 3, 4, 5, 6]


class Quoting(Flaky):
    """A source that cannot be opened at first, and whose reader fails with an error that quotes a record."""

    def open(self, position):
        reader = super().open(position)

        def read(max_records, timeout):
            raise ValueError("4111-1111 is no number")

        reader.read = read
        return reader


@pytest.mark.parametrize("allowed", [False, True])
def test_the_log_says_why_a_source_cannot_be_opened_and_does_not_quote_what_it_reads(tmp_path, caplog, allowed):
    caplog.set_level(logging.DEBUG, "headrace")
    with closing(open_log(f"file:{tmp_path}")) as log:
        runner = SourceRunner("shop-flaky", spec_of(Quoting()), log, log_record_values=allowed)
        for _ in range(5):  # takes over, does not open twice, opens, reads
            runner.advance()
        assert runner.report().error == "4111-1111 is no number"
    said = lines_above_debug(caplog)
    assert "is away" in said
    assert ("ValueError" in said) == (not allowed)
    assert ("4111-1111" in said) == allowed


def test_a_record_that_the_serde_rejects_stops_the_source(tmp_path):
    with closing(open_log(f"file:{tmp_path}")) as log:
        spec = spec_of(numbers("numbers", value=serde.STRING))
        runner = SourceRunner("shop-numbers", spec, log)
        with pytest.raises(
            SerializationError, match=r"the value of a record of the source 'numbers'.*value="
        ) as raised:
            run_to_end(runner)
        assert runner.report().state == SourceState.FAILED
        assert summarize(raised.value).startswith(
            "the value of a record of the source 'numbers' cannot be written with"
        )


def test_threads_run_the_sources_of_an_application(tmp_path):
    specs = [spec_of(numbers("one")), spec_of(numbers("two"))]
    sources = RunningSources("shop", specs, lambda: open_log(f"file:{tmp_path}"))
    try:
        while not sources.is_caught_up:
            sources.check()
    finally:
        sources.close()
    assert [(report.name, report.records, report.state) for report in sources.reports()] == [
        ("one", 7, "STOPPED"), ("two", 7, "STOPPED")
    ]  # fmt: skip
    with closing(open_log(f"file:{tmp_path}")) as log:
        assert "shop-one-source-position" in log.topics()
        assert log.ends([TopicPartition("one", 0)]) == {TopicPartition("one", 0): 7}


class Forgetful(GeneratorSource):
    """A source that does not begin where it is told to."""

    def open(self, position):
        return super().open(0)


def test_the_check_finds_a_source_that_repeats_itself():
    with pytest.raises(AssertionError, match=r"after a crash .* the log has"):
        check_source(lambda: Forgetful("n", lambda n: (n, n), limit=4), [(n, n) for n in range(4)])


def test_the_stream_of_a_source_has_its_topic_and_its_serdes():
    builder = StreamsBuilder()
    builder.stream(source=numbers("numbers"), partitions=2).map_values(lambda value: value + 1).to(
        "next", value=serde.JSON
    )
    builder.table(source=numbers("prices"), topic="all-prices", key=serde.LONG, store="prices")
    topology = builder.build()
    found = [(spec.name, spec.topic, spec.partitions, spec.key, dict(spec.config)) for spec in topology.sources]
    assert found == [
        ("numbers", "numbers", 2, serde.JSON, {}),
        ("prices", "all-prices", None, serde.LONG, {"cleanup.policy": "compact"}),
    ]
    with TopologyTestDriver(topology) as driver:  # a test pipes the records that the source would write
        driver.input_topic("numbers", key=serde.JSON, value=serde.JSON).pipe(1, 41)
        driver.input_topic("all-prices", key=serde.LONG, value=serde.JSON).pipe(7, 10)
        assert driver.output_topic("next", key=serde.JSON, value=serde.JSON).read_key_values() == [(1, 42)]
        assert driver.store("prices").get(7).value == 10


def test_mistakes_are_explained():
    builder = StreamsBuilder()
    builder.stream(source=numbers("numbers"))
    with pytest.raises(TopologyError, match="two sources have the name 'numbers'"):
        builder.table(source=numbers("numbers"), topic="others")
    with pytest.raises(TypeError, match="a source fills one topic"):
        builder.stream("lines", source=numbers("lines"))
    with pytest.raises(TypeError, match=r"a source of headrace\.connect"):
        builder.stream(source="lines")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="belong to a source"):
        builder.stream("lines", partitions=3)
    with pytest.raises(TypeError, match="a topic, or a source"):
        builder.table()


@dataclass(frozen=True)
class Customer:
    id: int
    name: str = "?"


def test_rows_are_written_as_objects_of_a_type(tmp_path):
    rows = [{"id": 1, "name": "Ada"}, {"id": 2}, {"id": "three"}]
    source = GeneratorSource("customers", lambda number: (None, rows[number]), limit=2)
    typed = SourceSpec(source=source, topic="customers", key=serde.JSON, value=serde.json_of(Customer))
    with closing(open_log(f"file:{tmp_path}")) as log:
        run_to_end(SourceRunner("shop-customers", typed, log))
        chunks = log.read(TopicPartition("customers", 0), 0)
        written = [serde.json_of(Customer).decode(row[2] or b"") for chunk in chunks for row in chunk.rows()]
        assert written == [Customer(1, "Ada"), Customer(2)]
        source = GeneratorSource("customers", lambda number: (None, rows[number]), limit=3)
        runner = SourceRunner("shop-customers", replace(typed, source=source), log)
        with pytest.raises(SerializationError, match="Expected `int`, got `str`"):
            run_to_end(runner)


# ---------------------------------------------------------------------------------- records that Headrace did not write
def test_foreign_records_in_the_position_topic_do_not_hide_the_position(address, name):
    with closing(open_log(address)) as log:
        for _ in range(2):
            runner = SourceRunner(f"shop-{name}", spec_of(numbers(name)), log)
            run_to_end(runner)
            runner.close()
            foreign = Records([b"other"] * 100, [b"x"] * 100, [1] * 100)
            log.append([(TopicPartition(f"shop-{name}-position", 0), foreign)])
        assert values(log, name) == list(range(7))


def test_a_damaged_position_is_named(address, name):
    with closing(open_log(address)) as log:
        runner = SourceRunner(f"shop-{name}", spec_of(numbers(name)), log)
        run_to_end(runner)
        runner.close()
        log.append([(TopicPartition(f"shop-{name}-position", 0), Records([b"position"], [b"{"], [1]))])
        runner = SourceRunner(f"shop-{name}", spec_of(numbers(name)), log)
        assert runner.advance() > 0
        assert runner.report().state is SourceState.RETRYING
        assert f"shop-{name}-position-0 has a record that is no position of a source" in (runner.report().error or "")
        runner.close()
        assert values(log, name) == list(range(7))
