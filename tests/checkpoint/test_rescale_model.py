"""Random topologies and random sequences of (records, run, grow, kill): every key has the values of the test driver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import JoinWindows, Materialized, SessionWindows, StreamsBuilder, TimeWindows, Topology
from headrace.checkpoint.steps import MANIFEST, RESCALE, TAKEOVER
from headrace.checkpoint.storage import ObjectStorage
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from tests.checkpoint.cluster import Cluster, Ground, Killed, Killer
from tests.checkpoint.memory_log import MemoryLog
from tests.checkpoint.programs import TEXTS, Program
from tests.expected import driver_rows, values_by_key
from tests.profiles import examples

HOUR = 3_600_000
KEYS = [f"k{n}" for n in range(9)]


def counted(builder: StreamsBuilder) -> Any:
    return builder.stream("in", **TEXTS).group_by_key(**TEXTS).count(store="counts").to_stream().map_values(str)


def appended(builder: StreamsBuilder) -> Any:
    grouped = builder.stream("in", **TEXTS).filter(lambda key, value: value != "v3").group_by_key(**TEXTS)
    return grouped.reduce(lambda all_of, value: f"{all_of} {value}", store=Materialized("all", **TEXTS)).to_stream()


def windowed(builder: StreamsBuilder) -> Any:
    windows = TimeWindows.of(500, grace=HOUR)
    counts = builder.stream("in", **TEXTS).group_by_key(**TEXTS).windowed_by(windows).count(store="windows").to_stream()
    return counts.map(lambda key, count: (key.key, f"{key.window.start}: {count}"))


def in_sessions(builder: StreamsBuilder) -> Any:
    windows = SessionWindows.of(200, grace=HOUR)
    counts = builder.stream("in", **TEXTS).group_by_key(**TEXTS).windowed_by(windows).count(store="s").to_stream()
    return counts.map(lambda key, count: (key.key, f"{key.window.start} {key.window.end}: {count}"))


def joined(builder: StreamsBuilder) -> Any:
    left = builder.stream("in", **TEXTS)
    windows = JoinWindows.of(300, grace=HOUR)
    return left.join(left.filter(lambda key, value: value[-1] in "02468"), lambda a, b: f"{a}+{b}", windows=windows)


SHAPES = [counted, appended, windowed, in_sessions, joined]
STEPS = st.one_of(
    st.tuples(st.just("send"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=12)),
    st.tuples(st.just("run"), st.integers(2, 9)),
    st.tuples(st.just("grow"), st.integers(1, 3)),
    st.tuples(st.just("learn"), st.none()),
    st.tuples(
        st.just("kill"),
        st.sampled_from([f"{when} {name}" for name in (MANIFEST, TAKEOVER, RESCALE) for when in ("before", "after")]),
    ),
)


@given(shape=st.sampled_from(SHAPES), first=st.integers(1, 4), steps=st.lists(STEPS, min_size=3, max_size=9))
@settings(max_examples=examples(16), deadline=None)
def test_results_are_those_of_the_driver(shape, first, steps):
    def build() -> Topology:
        builder = StreamsBuilder()
        shape(builder).to("out", **TEXTS)
        return builder.build()

    log, program = MemoryLog(**{"in": first, "out": 1}), Program(build, {})
    ground = Ground(log=log, storage=ObjectStorage.at("memory:///", {}))
    sent: list[tuple[str, str, int]] = []
    known = first  # the number of partitions that the producer knows

    def live(limit: int, killer: Killer | None = None) -> None:
        cluster = None
        try:
            cluster = Cluster(ground, program, limit=limit, at_step=killer or (lambda moment: None))
            cluster.run()
            cluster.close()
        except Killed:
            if cluster is not None:
                cluster.kill()

    # The application begins before the topic grows: what has grown before its first start, it cannot know.
    for step, value in [("run", 1), *steps, ("run", 100)]:
        match step:
            case "send":
                for key in value:
                    number = len(sent)
                    sent.append((key, f"v{number}", 1_000 + 10 * number))
                    at = TopicPartition("in", partition_of(key.encode(), known) or 0)
                    row = (key.encode(), f"v{number}".encode(), 1_000 + 10 * number, ())
                    log.append([(at, Records.from_rows([row]))])
            case "run":
                live(value)
            case "kill":
                live(5, Killer(value, 1))
            case "grow":
                topic = log.topics()["in"]
                log.topics()["in"] = replace(topic, partitions=topic.partitions + value)
            case "learn":
                known = log.topics()["in"].partitions
    records = [("in", key.encode(), value.encode(), timestamp) for key, value, timestamp in sent]
    expected = driver_rows(build(), records, ("out",), {"statestore.cache.max.bytes": 0})["out"]
    written = [(key, value, timestamp) for key, value, timestamp, _ in log.rows[TopicPartition("out", 0)]]
    assert values_by_key(written) == values_by_key(expected)
