"""Files of cases, one JSON object per line, packed or not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from tests.oracle.language import Case

VECTORS = Path(__file__).parent / "vectors"
NAMED = VECTORS / "named.jsonl.gz"  # written by hand, each with a point to make
RANDOM = VECTORS / "random.jsonl.gz"  # random topologies and records


def cases(path: Path) -> Iterator[Case]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def untagged(path: Path) -> list[Case]:
    """The cases in which Headrace does as Kafka Streams does."""
    return [case for case in cases(path) if not case.get("tags")]


def tagged(tag: str) -> list[Case]:
    """The cases that record a defect of Kafka Streams, see test_where_kafka_streams_is_wrong.py."""
    return [case for path in (NAMED, RANDOM) for case in cases(path) if tag in case.get("tags", ())]


def families(case: Case) -> list[str]:
    return [case["family"]] if isinstance(case["family"], str) else case["family"]
