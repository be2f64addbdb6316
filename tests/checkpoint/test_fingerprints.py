"""Whether a checkpoint fits a topology, and if not, what differs."""

import pickle

import pytest

from headrace import Materialized, SessionWindows, Stores, StreamsBuilder, TimeWindows, serde
from headrace.checkpoint.fingerprint import Fingerprint, compute_fingerprint, find_differences
from headrace.config import Config
from headrace.model.windows import DailyWindows
from headrace.topology.subtopologies import partition_counts, plan, task_counts
from tests.checkpoint.programs import TEXTS, Watch, join_by_reference

WINDOWS = "WindowKind(window_size=10, retain_duplicates=False, timestamped=True, by_time=False)"


def fingerprint(topology, partitions=2, **settings) -> Fingerprint:
    graph = topology.graph()
    found = plan(graph)
    known = {topic: partitions for stage in found.stages.values() for topic in stage.topics}
    internal = partition_counts(graph, found, known)
    config = Config.of({"application.id": "app"}, **settings)
    return compute_fingerprint(graph, found, config, tasks=task_counts(found, known, internal), partitions=internal)


def counting(*, topic="in", store: str | None = "counts", value=None, windows=None, before=lambda stream: stream):
    builder = StreamsBuilder()
    grouped = before(builder.stream(topic, **TEXTS)).group_by(lambda _, word: word, **TEXTS)
    if windows is not None:
        grouped = grouped.windowed_by(windows)
    grouped.count(store=Materialized(store, value=value) if value else store)
    return builder.build()


def test_the_same_topology_fits():
    for build in (counting, join_by_reference):
        assert find_differences(fingerprint(build()), fingerprint(build())) == []
        assert fingerprint(build()) == fingerprint(build())


def test_a_fingerprint_says_what_there_is():
    found = fingerprint(counting())
    assert [(group.number, group.tasks) for group in found.groups] == [(0, 2), (1, 2)]
    (store,) = found.groups[1].stores
    assert (store.name, store.key, store.value, store.logged) == ("counts", "STRING", "LONG", True)
    assert store.kind == "KeyValueKind(timestamped=True)"
    assert list(found.partitions.values()) == [2]


def test_what_leaves_no_trace_in_the_state_may_change():
    more = counting(before=lambda stream: stream.filter(lambda _, v: bool(v)).map_values(str.upper))
    assert find_differences(fingerprint(counting()), fingerprint(more)) == []
    short, long = TimeWindows.of(10), TimeWindows.of(10, grace=5)
    assert find_differences(fingerprint(counting(windows=short)), fingerprint(counting(windows=long))) == []


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"store": "tally"}, ["store counts of sub-topology 1 is gone", "store tally of sub-topology 1 is new"]),
        ({"value": serde.INTEGER}, ["store counts had the value serde LONG and now has INTEGER"]),
        ({"topic": "lines"}, ["sub-topology 0 read in and now reads lines"]),
        (
            {"windows": TimeWindows.of(10)},
            [f"store counts had the kind KeyValueKind(timestamped=True) and now has {WINDOWS}"],
        ),
    ],
)
def test_differences_are_named(changed, says):
    found = find_differences(fingerprint(counting()), fingerprint(counting(**changed)))
    assert [line for line in found if "repartition" not in line] == says


def test_stores_of_windows_differ_by_size_and_kind():
    shapes = [
        fingerprint(counting(windows=windows))
        for windows in (TimeWindows.of(10), TimeWindows.of(20), SessionWindows.of(10), DailyWindows.of("UTC"))
    ]
    for place, one in enumerate(shapes):
        for other in shapes[place + 1 :]:
            assert any("store counts had the kind" in line for line in find_differences(one, other))


def test_a_store_that_moved_is_named():
    before, after = StreamsBuilder(), StreamsBuilder()
    before.stream("in", **TEXTS).group_by_key().count(store="counts")
    after.stream("another", **TEXTS).to("out")
    after.stream("in", **TEXTS).group_by_key().count(store="counts")
    found = find_differences(fingerprint(before.build()), fingerprint(after.build()))
    assert "store counts was in sub-topology 0 and now is in sub-topology 1" in found
    assert "sub-topology 1 is new" in found


def test_global_stores_belong_to_it():
    builder = StreamsBuilder()
    builder.global_table("names", **TEXTS, store="names")
    builder.stream("in", **TEXTS).to("out")
    plain = StreamsBuilder()
    plain.stream("in", **TEXTS).to("out")
    found = find_differences(fingerprint(builder.build()), fingerprint(plain.build()))
    assert found == ["store names of the global stores is gone"]


def test_stores_without_a_log_are_told_apart():
    def build(spec):
        builder = StreamsBuilder()
        builder.add_store(spec)
        builder.stream("in", **TEXTS).process(Watch, spec.name).to("out")
        return builder.build()

    spec = Stores.key_value("s", key=serde.STRING, value=serde.STRING)
    found = find_differences(fingerprint(build(spec)), fingerprint(build(spec.without_logging())))
    assert found == ["store s had the logging True and now has False"]


# -------------------------------------------------------------------------------------------------------- partitions
def test_more_partitions_are_taken_up_where_there_is_no_state():
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).to("out")
    topology = builder.build()
    assert find_differences(fingerprint(topology, 2), fingerprint(topology, 3)) == []
    assert find_differences(fingerprint(topology, 3), fingerprint(topology, 2)) == [
        "sub-topology 0 had 3 tasks and now has 2"
    ]


def test_more_partitions_of_state_need_rescaling():
    found = find_differences(fingerprint(counting(), 2), fingerprint(counting(), 3))
    assert found == ["sub-topology 1 had 2 tasks and now has 3, and its state (counts) would have to be rescaled"]


def test_defaults_of_the_configuration_count():
    builder = StreamsBuilder()
    builder.table("in", store="t")
    topology = builder.build()
    text, number = (
        fingerprint(topology, default_key_serde=serde.STRING),
        fingerprint(topology, default_key_serde=serde.LONG),
    )
    assert find_differences(text, number) == ["store t had the key serde STRING and now has LONG"]


def test_a_fingerprint_is_the_same_in_every_process():
    class Mine:
        size, grace = 10, 0

        def windows_for(self, timestamp):
            return []

    found = fingerprint(counting(windows=Mine()))
    assert "0x" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found
