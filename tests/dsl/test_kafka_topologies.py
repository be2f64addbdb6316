"""The DSL builds what Apache Kafka Streams 4.3.0 builds: the same nodes, names, stores, topics, and the same refusals.

The cases are large random topologies, half of them optimized, and many small ones that are refused or nearly so. What
Kafka Streams made of them is in `vectors/`.
"""

from pathlib import Path

import pytest

from tests.oracle.comparing import ERRORS, in_description
from tests.oracle.running import described
from tests.oracle.topologies import Program
from tests.oracle.vectors import cases
from tests.profiles import sample

TOPOLOGIES = list(cases(Path(__file__).parent / "vectors" / "topologies.jsonl.gz"))
BUILT = [case for case in TOPOLOGIES if "error" not in case["expected"]]
REFUSED = [case for case in TOPOLOGIES if "error" in case["expected"]]


@pytest.mark.parametrize("case", sample(BUILT), ids=lambda case: case["name"])
def test_a_topology_is_described_as_kafka_streams_describes_it(case):
    program = Program(case)
    assert list(in_description(case["expected"], {"describe": described(program)})) == []
    assert program.topology.internal_topics == case["expected"]["internal_topics"]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_a_topology_is_refused_where_kafka_streams_refuses_it(case):
    with pytest.raises(ERRORS.get(case["expected"]["error"], Exception)):
        Program(case)
