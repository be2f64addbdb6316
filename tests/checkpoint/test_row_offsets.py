"""Behind a repartition the offsets of records go on from batch to batch and from start to start, as in a topic."""

import pytest

from headrace import Processor, StreamsBuilder, Topology, serde
from headrace.checkpoint.storage import open_storage
from tests.checkpoint.cluster import Cluster, Ground, outputs
from tests.checkpoint.programs import LINES, TEXTS, Program


class TellOffset(Processor):
    """Replaces the value by the offset of the record."""

    def init(self, context):
        self.context = context

    def process(self, record):
        metadata = self.context.record_metadata
        assert metadata is not None
        self.context.forward(record.with_value(str(metadata.offset)))


def process_rows() -> Topology:
    builder = StreamsBuilder()
    builder.stream("lines", **TEXTS).repartition().process(TellOffset).to("out", **TEXTS)
    return builder.build()


def extract_topic() -> Topology:
    builder = StreamsBuilder()
    repartitioned = builder.stream("lines", **TEXTS).repartition(name="again")
    repartitioned.to(lambda _key, _value, context: "out" if context.offset % 2 else "even", **TEXTS)
    return builder.build()


def process_counts() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("lines", **TEXTS).flat_map_values(str.split).group_by(lambda _, word: word, **TEXTS)
    words.count().to_stream().process(TellOffset).to("out", key=serde.STRING, value=serde.STRING)
    return builder.build()


@pytest.mark.parametrize("build", [process_rows, extract_topic, process_counts])
def test_offsets_are_those_of_the_driver(tmp_path, build):
    program = Program(build, {"lines": LINES})
    log = program.log()
    ground = Ground(log=log, storage=open_storage(tmp_path / "checkpoint"), state=tmp_path / "state")
    for batches in (1, 2, 1000):  # each after a start of its own
        cluster = Cluster(ground, program)
        cluster.run(batches)
        cluster.close()
    assert [row[1:4] for row in outputs(log)["out", 0]] == program.expected()
