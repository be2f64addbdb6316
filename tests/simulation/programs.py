"""What a run of the simulation runs: a random topology, its input, and what must come out by the test driver.

topology    one partition, any topology of the oracle's language: every topic has exactly the driver's records
words       several partitions and two levels: every key has exactly the driver's values, in order. Some runs have
            several versions of the program, with other task counts and stores; some have a sink for another system
tags        a function that never gives the same twice: every record once, and the state is what was delivered
references  a foreign-key join, whose rows are carried from batch to batch: the driver's table at the end
globals     a global table and a global store: every record shows what the batch before its own has left in them
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from headrace import FixedKeyRecord, Record, Stores, StreamsBuilder, Topology, serde
from headrace.checkpoint.change_plan import align_fingerprint
from headrace.checkpoint.fingerprint import Fingerprint, compute_fingerprint
from headrace.checkpoint.rescale import Divider
from headrace.config import Config
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from headrace.runtime.partitioning import lay_out_state
from headrace.spark.job import Job
from headrace.spark.topics import find_global_topics
from headrace.testing import TopologyTestDriver
from headrace.topology.graph import Graph
from headrace.topology.subtopologies import Plan, partition_counts, plan, task_counts
from tests.oracle.running import configuration
from tests.properties.cases import Case, random_case
from tests.properties.processor_verbs import PUNCTUATE
from tests.properties.smaller import without_statement
from tests.properties.test_driver import decided, pipe
from tests.simulation.log import Row, StoredLog
from tests.simulation.sink import NAME, SimulatedSink, Target

APPLICATION = "oracle"
TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
Outputs = dict[str, list[Row]]  # by topic
FAMILIES = ("topology", "words", "tags", "references", "globals")
GLOBALS = ("names", "notes")  # the topics of global tables


class Commit(NamedTuple):
    """What a manifest says of the input; its number is its place in a list of all of them."""

    epoch: int
    positions: Mapping[TopicPartition, int]  # up to where all batches have read
    ends: Mapping[TopicPartition, int]  # of the log, when the manifest was created


Commits = Sequence[Commit]


class Shape(NamedTuple):
    """How a version of the program that counts words differs from the others."""

    partitions: int | None = None  # of the sub-topology that counts
    has_store: bool = False  # it also counts lines


@dataclass
class Input:
    """The choices of a run, which the search for a smaller failure reduces."""

    family: str
    case: Case | None  # of the family "topology"
    records: list[tuple[str, str | None, str | None, int]]  # topic, key, value, time; of the other families
    partitions: int = 1
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    shapes: tuple[Shape, ...] = ()  # of the versions of the program; of the family "words"
    has_sink: bool = False

    def leave_out(self, statement: int) -> Input:
        """Without a statement of the topology: what was made of it is made of what it was made of."""
        assert self.case is not None
        rest = next(without_statement(replace(self.case, sinks={}), statement))
        return replace(self, case=replace(self.case, topology=rest))

    @property
    def size(self) -> int:
        return len(self.records) if self.case is None else len(self.case.records)

    def shorten(self, count: int) -> Input:
        """With the first records only."""
        if self.case is None:
            return replace(self, records=self.records[:count])
        return replace(self, case=replace(self.case, records=self.case.records[:count]))


@dataclass(frozen=True)
class Version:
    """A version of a program, with which an instance may start."""

    topology: Topology
    config: Config
    topics: Mapping[str, int]

    def plan(self, before: Fingerprint | None) -> tuple[Job, Fingerprint]:
        """Plans the job, as `spark.job_planner` does. `before` is the fingerprint in the checkpoint."""
        return self._first if before is None else self._plan(before)

    @cached_property
    def _graph(self) -> Graph:
        return self.topology.graph()

    @cached_property
    def _stages(self) -> Plan:
        return plan(self._graph)

    @cached_property
    def _first(self) -> tuple[Job, Fingerprint]:
        return self._plan(None)

    def _plan(self, before: Fingerprint | None) -> tuple[Job, Fingerprint]:
        graph, config, stages = self._graph, self.config, self._stages
        before = align_fingerprint(before, graph, stages, config)
        internal = partition_counts(graph, stages, self.topics, before.partitions if before else None)
        tasks = dict(task_counts(stages, self.topics, internal))
        if stages.global_nodes:
            tasks[len(stages.stages)] = 1
        job = Job(APPLICATION, graph, stages, config, tasks, internal, "simulated", "simulated", "simulated")
        return job, compute_fingerprint(graph, stages, config, tasks=tasks, partitions=internal, before=before)

    @cached_property
    def divider(self) -> Divider:
        graph, stages = self._graph, self._stages.stages
        return Divider(layout_of=lambda number: lay_out_state(graph, stages[number], self.config))


@dataclass(frozen=True)
class Program:
    """An input, planned: its versions, the topics of its log, the records to write, and the comparison at the end."""

    versions: list[Version]
    topics: Mapping[str, int]
    sources: list[str]
    feed: list[tuple[TopicPartition, Row]]
    compare: Callable[[StoredLog, Commits], None]
    target: Target | None = None  # of the sink


class UnfitError(Exception):
    """A topology whose output the driver does not determine."""


# -------------------------------------------------------------------------------------------------------------- choice
def random_input(random: Random, family: str | None = None) -> Input:
    """Draws an input. `plan_program` may find that its topology is unfit: then another one is drawn."""
    family = family or random.choice(["topology"] * 4 + ["words"] * 3 + ["tags", "references"])
    settings = {
        "batch.max.records": random.choice([1, 2, 3, 5, 8]),
        "receipt.max.bytes": random.choice([0, 0, 200, 1 << 20]),
    }
    if family == "topology":
        return Input(family, random_case(random.getrandbits(48)), [], settings=settings)
    partitions, count = random.choice([1, 2, 3]), random.randrange(1, 25)
    records = RECORDS[family](random, count)
    shapes: tuple[Shape, ...] = ()
    if family in ("words", "globals") and random.random() < 0.7:
        sizes = random.sample([1, 2, 3, 4], random.choice([2, 3]))
        shapes = tuple(Shape(size, random.random() < 0.4) for size in sizes)
    has_sink = family in ("words", "tags") and random.random() < 0.5
    return Input(family, None, records, partitions, settings, shapes, has_sink)


def random_lines(random: Random, count: int) -> list[tuple[str, str | None, str | None, int]]:
    words = ["a", "b", "c", "d"]
    return [
        ("lines", random.choice(words), " ".join(random.choices(words, k=random.randint(1, 3))), 10 * at)
        for at in range(count)
    ]


def random_references(random: Random, count: int) -> list[tuple[str, str | None, str | None, int]]:
    found: list[tuple[str, str | None, str | None, int]] = []
    for at in range(count):
        if random.random() < 0.5:
            value = None if random.random() < 0.15 else f"r{random.randrange(3)} {at}"
            found.append(("left", f"l{random.randrange(4)}", value, 10 * at))
        else:
            value = None if random.random() < 0.15 else f"value {at}"
            found.append(("right", f"r{random.randrange(3)}", value, 10 * at))
    return found


def random_lookups(random: Random, count: int) -> list[tuple[str, str | None, str | None, int]]:
    """Lines begin with the name that they look up. Between them come changes, often enough for deltas to be merged."""
    names, most = ["n0", "n1", "n2", "n3"], random.choice([2, 8, 20])
    found: list[tuple[str, str | None, str | None, int]] = []
    for at in range(count):
        found.append(("lines", random.choice("abcdef"), f"{random.choice(names)} {at}", 10 * len(found)))
        for change in range(random.randrange(most) if len(found) < 100 else 0):
            value = None if random.random() < 0.1 else f"value {at}.{change}"
            found.append((random.choice(["names", "names", "notes"]), random.choice(names), value, 10 * len(found)))
    return found


RECORDS = {
    "words": random_lines,
    "tags": random_lines,
    "references": random_references,
    "globals": random_lookups,
}


# ---------------------------------------------------------------------------------------------------------- topologies
def count_words(tag: Callable[[], str], shape: Shape, target: Target | None) -> Topology:
    builder = StreamsBuilder()
    lines = builder.stream("lines", **TEXTS)
    lines.map_values(str.upper).to("upper", **TEXTS)
    words = lines.flat_map_values(lambda line: line.split())
    if shape.partitions is None:
        grouped = words.group_by(lambda _, word: word, **TEXTS)
    else:
        keyed = words.select_key(lambda _, word: word)
        grouped = keyed.repartition(name="by-word", partitions=shape.partitions, **TEXTS).group_by_key(**TEXTS)
    counts = grouped.count(store="counts").to_stream().map_values(str)
    counts.to("out", **TEXTS)
    if target is not None:
        counts.sink(SimulatedSink(target), name=NAME, **TEXTS)
    if shape.has_store:
        lines.group_by_key(**TEXTS).count(store="lines-seen")
    return builder.build()


def tag_lines(tag: Callable[[], str], shape: Shape, target: Target | None) -> Topology:
    builder = StreamsBuilder()
    tagged = builder.stream("lines", **TEXTS).map_values(lambda line: f"{line} {tag()}")
    tagged.to("tagged", **TEXTS)
    chain = tagged.group_by_key(**TEXTS).reduce(lambda old, new: f"{old.rpartition(' ')[2]}<{new}", store="latest")
    chain.to_stream().to("out", **TEXTS)
    if target is not None:
        chain.to_stream().sink(SimulatedSink(target), name=NAME, **TEXTS)
    return builder.build()


def join_references(tag: Callable[[], str], shape: Shape, target: Target | None) -> Topology:
    builder = StreamsBuilder()
    left, right = builder.table("left", **TEXTS), builder.table("right", **TEXTS)
    # An inner join may lose a deletion between two quick changes of a key, in Kafka Streams, too: its answers are late.
    joined = left.left_join(right, lambda a, b: f"{a}+{b}", on=lambda value: value.split()[0])
    joined.to_stream().to("out", **TEXTS)
    return builder.build()


class KeepNote:
    """Fills the global store: the last value of a key, and how many it has had."""

    def init(self, context: Any) -> None:
        self._notes = context.store("notes")

    def process(self, record: Record[str, str]) -> None:
        count, _, _ = (self._notes.get(record.key) or "0 ").partition(" ")
        self._notes.put(record.key, f"{int(count) + 1} {record.value}")


class ShowNote:
    """Appends what the global store has of the name in a line."""

    def init(self, context: Any) -> None:
        self._notes, self._context = context.store("notes"), context

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        note = self._notes.get(record.value.split()[0])
        self._context.forward(record.with_value(f"{record.value}|{note}"))


def look_up_globals(tag: Callable[[], str], shape: Shape, target: Target | None) -> Topology:
    """Looks up each line in the task that reads it, and behind a repartition.

    The counts are state: a task with state runs only when it has input, and misses changes of the global table.
    """
    builder = StreamsBuilder().add_global_store(Stores.key_value("notes", **TEXTS), "notes", KeepNote, **TEXTS)
    names = builder.global_table("names", **TEXTS)
    lines = builder.stream("lines", **TEXTS)
    by_name = lines.select_key(lambda _, line: line.split()[0])
    moved = by_name.repartition(name="by-name", partitions=shape.partitions, **TEXTS)
    for stream, topic in ((lines, "direct"), (moved, "moved")):
        joined = stream.left_join(names, lambda line, name: f"{line}|{name}", on=lambda _, line: line.split()[0])
        joined.process_values(ShowNote).to(topic, **TEXTS)
        counts = stream.group_by_key(**TEXTS).count(store=f"{topic}-counts")
        counts.to_stream().map_values(str).to(f"{topic}-counts", **TEXTS)
    if shape.has_store:  # of a sub-topology of its own: the global stores get another number
        lines.group_by(lambda _, line: line.split()[0], **TEXTS).count(store="names-seen")
    return builder.build()


TOPOLOGIES = {"words": count_words, "tags": tag_lines, "references": join_references, "globals": look_up_globals}


# ------------------------------------------------------------------------------------------------------------ planning
def plan_program(given: Input, random: Random) -> Program:
    """Plans an input. `random` is what a function that never gives the same twice draws from."""
    if given.case is not None:
        return _plan_case(given, given.case)

    def tag() -> str:
        return f"{random.getrandbits(32):08x}"

    build, target = TOPOLOGIES[given.family], Target() if given.has_sink else None
    shapes = given.shapes or (Shape(),)
    topologies = [build(tag, shape, target) for shape in shapes]
    settings = {"application.id": APPLICATION, "statestore.cache.max.bytes": 0, **given.settings}
    graph = topologies[0].graph()
    stages = plan(graph).stages
    sources = sorted({topic for stage in stages.values() for topic in stage.topics} | find_global_topics(graph))
    rows = [(topic, key.encode() if key else None, value.encode() if value else None, at)
            for topic, key, value, at in given.records]  # fmt: skip
    feed = [
        (TopicPartition(topic, partition_of(key, given.partitions) or 0), (key, value, at, ()))
        for topic, key, value, at in rows
    ]
    with TopologyTestDriver(build(lambda: "", shapes[0], None), settings) as driver:
        for topic, key, value, at in rows:
            driver.pipe_row(topic, key, value, at, ())
        produced = {topic: [(row[2], row[3], row[4], row[5]) for row in driver.queue(topic)]
                    for topic in driver.produced_topics if not topic.startswith(f"{APPLICATION}-")}  # fmt: skip
    written = {
        "words": ["out", "upper"],
        "tags": ["out", "tagged"],
        "references": ["out"],
        "globals": ["direct", "direct-counts", "moved", "moved-counts"],
    }[given.family]
    topics = dict.fromkeys([*sources, *written], given.partitions)
    compare = {
        "words": compare_keys,
        "tags": compare_tags,
        "references": compare_tables,
        "globals": compare_counts,
    }[given.family]

    def compare_all(log: StoredLog, commits: Commits) -> None:
        if given.family == "globals":
            check_lookups(log, commits)
        compare(log, produced, written)
        if target is not None:
            compare_target(log, target)

    config = Config.of(settings)
    versions = [Version(topology, config, topics) for topology in topologies]
    return Program(versions, topics, sources, feed, compare_all, target)


def _plan_case(given: Input, case: Case) -> Program:
    program = case.program()
    graph = program.topology.graph()
    stages = plan(graph)
    if any(edge.back for edge in stages.edges):
        raise UnfitError
    if case.says("times", "v_times"):
        raise UnfitError  # they show what the clock says
    if len(stages.stages) > 1 and case.says(PUNCTUATE):
        raise UnfitError  # each stage has a time of its own, the driver one for all of them
    settings = configuration({"config": case.config}) | given.settings
    produced = defaultdict[str, list[Row]](list)
    rows = case.rows(program)
    with TopologyTestDriver(case.program().topology, configuration({"config": case.config})) as driver:
        for row in rows:
            some = pipe(driver, row)
            if not decided(stages, some):
                raise UnfitError
            for topic, records in some.items():
                if not topic.startswith(f"{APPLICATION}-"):
                    produced[topic] += [(key, value, at, headers) for key, value, at, headers in records]
    written = sorted(program.outputs(produced).keys() | produced.keys())
    topics = dict.fromkeys(["in", *written], 1)
    feed = [(TopicPartition("in", 0), (row[3], row[4], row[5], row[6])) for row in rows]
    versions = [Version(program.topology, Config.of(settings), topics)]
    return Program(versions, topics, ["in"], feed, lambda log, _: compare_records(log, produced, written))


# ---------------------------------------------------------------------------------------------------------- comparison
def compare_records(log: StoredLog, expected: Mapping[str, list[Row]], topics: list[str]) -> None:
    """Every topic has exactly these records, in this order."""
    for topic in topics:
        (rows,) = log.written(topic)
        wanted = [(k, v, at, headers) for k, v, at, headers in expected.get(topic, [])]
        _expect(f"topic {topic}", without_repeats(log, rows, wanted), wanted)


def compare_keys(log: StoredLog, expected: Mapping[str, list[Row]], topics: list[str]) -> None:
    """Every key has exactly these values, in this order, in one partition."""
    for topic in topics:
        found = [by_key(rows) for rows in log.written(topic)]
        _expect(f"keys of {topic} in two partitions", sum(map(len, found)), len(set().union(*found)))
        everything = {key: values for some in found for key, values in some.items()}
        wanted = by_key(expected.get(topic, []))
        for key in sorted(everything.keys() | wanted.keys(), key=str):
            due = wanted.get(key, [])
            _expect(f"topic {topic}, key {key!r}", without_repeats(log, everything.get(key, []), due), due)


def without_repeats(log: StoredLog, rows: list[Any], wanted: list[Any]) -> list[Any]:
    """The rows; if deliveries are at least once, what is wanted, if every row is the next one of it or was before."""
    if not log.may_repeat:
        return rows
    reached = {0}  # up to where in what is wanted, for each way to see it
    for row in rows:
        repeated = {at for at in reached if row in wanted[:at]}
        reached = repeated | {at + 1 for at in reached if at < len(wanted) and wanted[at] == row}
    return wanted if len(wanted) in reached else rows


def compare_tags(log: StoredLog, expected: Mapping[str, list[Row]], topics: list[str]) -> None:
    """Every record once, and what the state has of a key is always the record of that key before."""
    tagged = {key: values for rows in log.written("tagged") for key, values in by_key(rows).items()}
    chained = {key: values for rows in log.written("out") for key, values in by_key(rows).items()}
    if log.may_repeat:  # no tag is there twice, unless it was delivered twice
        tagged = {key: list(dict.fromkeys(values)) for key, values in tagged.items()}
        chained = {key: list(dict.fromkeys(values)) for key, values in chained.items()}
    wanted = by_key(expected.get("tagged", []))
    for key in sorted(tagged.keys() | wanted.keys() | chained.keys(), key=str):
        lines = [value.rpartition(b" ")[0] for value in tagged.get(key, [])]
        _expect(f"lines of {key!r}", lines, [value.rpartition(b" ")[0] for value in wanted.get(key, [])])
        values = tagged.get(key, [])
        pairs = values[:1] + [old.rpartition(b" ")[2] + b"<" + new for old, new in pairwise(values)]
        _expect(f"state of {key!r}", chained.get(key), pairs)


def compare_target(log: StoredLog, target: Target) -> None:
    """The system behind the sink has every record of the topic once, each key in order."""
    written = {key: values for rows in log.written("out") for key, values in by_key(rows).items()}
    if log.may_repeat:  # the topic may have a record twice, the sink may not
        written = {key: list(dict.fromkeys(values)) for key, values in written.items()}
    stored = defaultdict[bytes, list[bytes]](list)
    for key, value in target.rows:
        stored[key.encode()].append(value.encode())
    _expect("keys behind the sink", sorted(stored), sorted(written))
    for key in sorted(written):
        _expect(f"key {key!r} behind the sink", stored[key], written[key])


def compare_tables(log: StoredLog, expected: Mapping[str, list[Row]], topics: list[str]) -> None:
    """The last value of every key is the driver's. If deliveries are at least once, an earlier one may come again."""
    for topic in topics:
        found = {key: values[-1] for rows in log.written(topic) for key, values in by_key(rows).items()}
        if log.may_repeat:
            _expect(f"keys of {topic}", set(found), set(by_key(expected.get(topic, []))))
            continue
        wanted = {key: values[-1] for key, values in by_key(expected.get(topic, [])).items()}
        for key in sorted(found.keys() | wanted.keys(), key=str):
            _expect(f"table {topic}, key {key!r}", found.get(key), wanted.get(key))


def compare_counts(log: StoredLog, expected: Mapping[str, list[Row]], topics: list[str]) -> None:
    """What does not depend on the global tables is the driver's."""
    compare_keys(log, expected, [topic for topic in topics if topic.endswith("-counts")])


def check_lookups(log: StoredLog, commits: Commits) -> None:
    """A line shows the global tables as of the manifest before that of its batch, in the tasks of every level.

    An owner reads no line before it has read the topics of the tables up to the ends that they had when it started.
    """
    lines = [at for at in sorted(log.rows) if at.topic == "lines"]
    partitions = {row[1]: at.partition for at in lines for row in log.rows[at]}
    wanted = defaultdict[Any, list[bytes]](list)  # by topic, key, and partition of the line
    starts = {commit.epoch: commit for commit in reversed(commits)}  # the first manifest of an epoch has no batch
    for number, (before, commit) in enumerate(pairwise(commits), 1):
        read = {at: log.rows[at][before.positions.get(at, 0) : commit.positions.get(at, 0)] for at in lines}
        if not any(read.values()):
            continue
        unread = [
            at for at, end in starts[commit.epoch].ends.items() if at.topic in GLOBALS and before.positions[at] < end
        ]
        _expect(f"what batch {number} leaves unread of global tables", unread, [])
        names, notes = read_globals(log, before.positions)
        for at, rows in read.items():
            for key, line, *_ in rows:
                assert line is not None
                name = line.split()[0]
                shown = b"%b|%b|%b" % (line, names.get(name) or b"None", notes.get(name, b"None"))
                wanted["direct", key, at.partition].append(shown)
                wanted["moved", name, at.partition].append(shown)
    found = defaultdict[Any, list[bytes]](list)
    for topic in ("direct", "moved"):
        for key, value, *_ in (row for rows in log.written(topic) for row in rows):
            assert value is not None
            found[topic, key, partitions.get(value.partition(b"|")[0])].append(value)
    for place in sorted(found.keys() | wanted.keys(), key=str):
        due = wanted.get(place, [])
        rows = without_repeats(log, found.get(place, []), due)
        _expect("topic {}, key {!r}, lines of partition {}".format(*place), rows, due)


def read_globals(log: StoredLog, positions: Mapping[TopicPartition, int]) -> tuple[dict[Any, Any], dict[Any, bytes]]:
    """Returns what the global table and the global store have when their topics are read up to these positions."""
    names, counts, notes = dict[Any, Any](), Counter[Any](), dict[Any, bytes]()
    for at, end in positions.items():
        for key, value, *_ in log.rows[at][:end] if at.topic in GLOBALS else ():
            if at.topic == "names":
                names[key] = value
            else:
                counts[key] += 1
                notes[key] = b"%d %b" % (counts[key], value or b"None")
    return names, notes


def by_key(rows: list[Row]) -> dict[Any, list[Any]]:
    found = defaultdict[Any, list[Any]](list)
    for row in rows:
        found[row[0]].append(row[1])
    return dict(found)


def _expect(what: str, actual: Any, expected: Any) -> None:
    if actual != expected:
        raise AssertionError(f"{what}: {actual!r} instead of {expected!r}")
