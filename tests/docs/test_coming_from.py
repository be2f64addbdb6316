"""docs/coming-from/kafka-streams.md has every public method of Kafka Streams' classes."""

import re
import shutil
import subprocess

import pytest

from headrace.testing.broker import STREAMS, kafka_jars
from tests.docs.test_code_blocks import ROOT

CLASSES = {
    "": ["StreamsBuilder", "Topology", "KafkaStreams"],
    "kstream": [
        "KStream",
        "KTable",
        "KGroupedStream",
        "KGroupedTable",
        "CogroupedKStream",
        "TimeWindowedKStream",
        "SessionWindowedKStream",
        "BranchedKStream",
        "TimeWindows",
        "SlidingWindows",
        "SessionWindows",
        "JoinWindows",
        "UnlimitedWindows",
        "Materialized",
        "Suppressed",
        "EmitStrategy",
    ],
    "state": [
        "Stores",
        "KeyValueStore",
        "ReadOnlyKeyValueStore",
        "WindowStore",
        "ReadOnlyWindowStore",
        "SessionStore",
        "ReadOnlySessionStore",
        "VersionedKeyValueStore",
    ],
    "processor.api": ["Record", "ProcessorContext"],
}  # by package
PACKAGE = "org.apache.kafka.streams"
OF_EVERY_OBJECT = {"equals", "hashCode", "toString"}


@pytest.mark.kafka
def test_the_page_has_every_method_of_kafka_streams():
    javap = shutil.which("javap")
    assert javap is not None, "the test needs a JDK: `make jdk` installs it"
    path = f"{kafka_jars('java', module=STREAMS)}/*"
    names = [".".join(filter(None, (PACKAGE, part, name))) for part, some in CLASSES.items() for name in some]
    listed = subprocess.run([javap, "-cp", path, "-public", *names], capture_output=True, text=True, check=True).stdout
    methods = set(re.findall(r" (\w+)\(", listed)) - OF_EVERY_OBJECT
    assert len(methods) > 100
    page = (ROOT / "docs/coming-from/kafka-streams.md").read_text(encoding="utf-8")
    assert sorted(name for name in methods if not re.search(rf"\b{name}\b", page)) == []
