"""The benchmarks beside the peers: what the loop by hand makes of the data is what the judges hold to be right."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.table import Table

from benchmarks import lookup, report, serdes
from benchmarks.peers.cells import LATENCIES, cells
from benchmarks.peers.latency import output_key
from benchmarks.peers.outcome import Outcome
from benchmarks.peers.programs.run_bare import program
from benchmarks.peers.programs.run_headrace import PROGRAMS
from benchmarks.peers.results import markdown_of_choice
from benchmarks.peers.systems import HEADRACE, KAFKA_STREAMS, KAFKA_STREAMS_10
from benchmarks.peers.workload import Given, Workload
from benchmarks.peers.workloads import NAMES, workload
from headrace import StreamsBuilder, serde
from headrace.testing import TopologyTestDriver
from tests.connect.servers import RedisServer

TINY = 0.0005


@dataclass
class Message:
    """What a consumer gives."""

    given: Given

    def topic(self) -> str:
        return f"room-{self.given.topic}"

    def partition(self) -> int:
        return self.given.partition or 0

    def key(self) -> bytes | None:
        return self.given.key

    def value(self) -> bytes:
        return self.given.value

    def timestamp(self) -> tuple[int, int]:
        return 1, self.given.timestamp


def outputs(given: Workload) -> list[tuple[bytes, bytes]]:
    _, take, flush = program(given.name, "room")
    made = []
    for records in (given.first(), given.backlog()):
        take([Message(record) for record in records])
        made += flush() + flush()  # the second time nothing has come any more
    return [(key, value) for key, value, _ in made]


@pytest.mark.parametrize("name", NAMES)
def test_the_judge_of_a_workload_accepts_what_is_right_and_nothing_less(name: str):
    given = workload(name, TINY)
    judge, made = given.judge(), outputs(given)
    counted = [record for record in made if judge.sees(*record)]
    assert judge.wrong() is None
    judge.anew()
    for record in counted[:-1]:
        judge.sees(*record)
    assert judge.wrong() is not None


@pytest.mark.parametrize("name", NAMES)
def test_the_data_of_a_workload_are_the_same_every_time_and_of_the_size_it_says(name: str):
    backlogs = [list(workload(name, TINY).backlog()) for _ in range(2)]
    assert backlogs[0] == backlogs[1]
    assert len(backlogs[0]) == workload(name, TINY).size


@pytest.mark.parametrize("name", LATENCIES)
def test_every_record_of_a_latency_has_one_output_whose_key_says_which_it_is(name: str):
    cell, builder = LATENCIES[name], StreamsBuilder()
    PROGRAMS[name](builder, "room")
    topology = builder.build()
    assert len(topology.describe().subtopologies) == cell.repartitions + 1
    driver = TopologyTestDriver(topology)
    for number in range(3):
        key, value = cell.record(number)
        driver.pipe_row(f"room-{cell.workload.topics[0]}", key, value, number, ())
    found = driver.output_topic("room-out", key=serde.BYTES, value=serde.LONG).read_records()
    assert [record.key for record in found] == [output_key(number) for number in range(3)]


def test_latencies_with_repartitions_are_measured_beside_kafka_streams_in_both_forms():
    assert [system for _, system, _ in cells(["latency-2"], [], [])] == [HEADRACE, KAFKA_STREAMS, KAFKA_STREAMS_10]
    assert all(system != KAFKA_STREAMS_10 for _, system, _ in cells(["W5"], [], []))


@pytest.mark.parametrize("enrich", [enrich for _, enrich, _, _ in lookup.WAYS])
def test_every_way_of_enrichment_has_a_result_for_each_order(enrich):
    assert lookup.measure(enrich, 10) > 0


@pytest.mark.slow
def test_local_and_remote_state_count_every_order():
    with RedisServer() as server:
        assert [row["state"] for row in lookup.measure_states(server.url, 10)] == [name for name, _, _ in lookup.STATES]


@pytest.mark.slow
def test_all_serdes_let_the_same_records_through():
    assert {row["serde"] for row in serdes.measure(serdes.BATCH, rounds=1)} == {case.name for case in serdes.CASES}


def test_a_benchmark_replaces_its_own_section_of_the_results_and_keeps_the_others(tmp_path: Path):
    path = tmp_path / "results.md"
    table = Table(title="Speed", caption="Goal: 5.")
    table.add_column("what")
    table.add_column("records/s", justify="right")
    table.add_row("[green]append[/]", "1,000")
    report.write_section("peers", "# Beside the peers\n\n```bash\n# not a section\n```\n", path)
    report.write_tables("log", "The log", table, "One line.", path=path)
    first = path.read_text()
    assert first.startswith("<!-- benchmarks.peers -->\n# Beside the peers\n\n```bash\n# not a section\n```\n")
    assert "\n<!-- benchmarks.log -->\n# The log\n\n`python -m benchmarks.log`, " in first
    assert first.endswith(
        "\n\n**Speed**\n\n| what | records/s |\n| --- | ---: |\n| append | 1,000 |\n\nGoal: 5.\n\nOne line.\n"
    )
    report.write_section("peers", "# Anew", path)
    report.write_tables("log", "The log", table, "One line.", path=path)
    assert path.read_text() == "<!-- benchmarks.peers -->\n# Anew\n\n" + first[first.index("<!-- benchmarks.log") :]


def test_a_choice_of_systems_has_a_section_with_what_was_measured():
    fast, slow = (
        Outcome("W4", "headrace", 2, 2_000_000, 4.0, 6.0),
        Outcome("W4", "kafka-streams", 2, 2_000_000, 8.0, 9.0),
    )
    text = markdown_of_choice({some.cell: some for some in (fast, slow)}, 1.0, ["--workload", "W4"])
    assert text.startswith("# Headrace beside Kafka Streams\n\n`python -m benchmarks.peers --workload W4`, ")
    assert "| W4: records/s, times kafka-streams's | 2.00 | ≥ 1.5 | reached |" in text
    assert "W5" not in text


def test_every_benchmark_of_make_bench_writes_a_section():
    root = Path(__file__).parent.parent
    recipe = (root / "Makefile").read_text().partition("\nbench:")[2].partition("\n\n")[0]
    names = re.findall(r"-m benchmarks\.(\w+)", recipe)
    assert len(names) == recipe.count("$(BIN)/python") >= 8
    for name in names:
        file = root / "benchmarks" / (f"{name}.py" if name != "peers" else "peers/__main__.py")
        assert re.search(rf'write_(tables|section)\("{name}"', file.read_text()), name
    assert report.BEGIN.match(report.RESULTS.read_text())
