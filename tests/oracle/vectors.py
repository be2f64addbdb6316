"""Files of cases, one JSON object per line, packed or not."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

from tests.oracle.language import Case

VECTORS = Path(__file__).parent / "vectors"
NAMED = VECTORS / "named.jsonl.gz"  # written by hand, each with a point to make
RANDOM = VECTORS / "random.jsonl.gz"  # random topologies and records
RIGHT = VECTORS / "right.jsonl.gz"  # tagged cases with what is right, see twins.py


@cache
def cases(path: Path) -> list[Case]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def untagged(path: Path) -> list[Case]:
    """The cases in which Headrace does as Kafka Streams does."""
    return [case for case in cases(path) if not case.get("tags")]


def tagged(tag: str) -> list[Case]:
    """The cases that touch a defect of Kafka Streams and that can be built."""
    found = {case["name"]: case for path in (RIGHT, NAMED, RANDOM) for case in cases(path)}
    return [case for case in found.values() if tag in case.get("tags", ()) and "error" not in case["expected"]]


def families(case: Case) -> list[str]:
    return [case["family"]] if isinstance(case["family"], str) else case["family"]
