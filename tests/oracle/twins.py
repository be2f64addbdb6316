"""Where Kafka Streams is wrong, a program that means the same and that Kafka Streams gets right: its twin.

- A result on window close is lost when its window is older than the store's retention: the twin's retention is longer.
- Below a `suppress` an aggregate of a table subtracts what was never added: in the twin the suppressed table is written
  to a topic and read again.

`vectors/right.jsonl.gz` holds tagged cases with what Kafka Streams made of their twins, which Headrace has to make of
the cases themselves. To make such a file: python -m tests.oracle.twins < cases.jsonl, let Kafka Streams run the twins,
and put what it gave into the cases.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.oracle.language import Case, Spec
from tests.oracle.topologies import Program

LONG_TIME = 10**12
AGAIN = "suppressed-"  # how the topics begin that twins write and read


def twin(case: Case) -> dict[str, Any]:
    return by_way_of_a_topic(with_long_retention(case))


def means_the_same(case: Case) -> bool:
    """Whether a case and its twin differ in nothing else.

    Who looks a row up, as joins do, sees a longer retention; so do sessions, which records join as long as they are
    there. And the way by a topic is put only right above a grouping.
    """
    ids = {s["id"] for s in case["topology"] if s.get("emit") == "close" or s["op"] == "suppress"}
    below = {s["id"] for s in case["topology"] if ids & set(inputs(s)) and "id" in s} | ids
    sessions = any(s["windows"]["type"] == "session" for s in case["topology"] if s.get("emit") == "close")
    tables = [s for s in case["topology"] if s["op"] in JOINS_AND_TABLES and below & set(inputs(s))]
    return not sessions and not tables


JOINS_AND_TABLES = ("join", "leftJoin", "outerJoin", "filter", "filterNot", "mapValues", "transformValues")


def inputs(statement: Spec) -> list[str]:
    origin = statement.get("from", [])
    return [*([origin] if isinstance(origin, str) else origin), statement.get("other", "")]


def with_long_retention(case: Case) -> dict[str, Any]:
    closing = [s["id"] for s in case["topology"] if s.get("emit") == "close"]
    statements = [s | {"retention_ms": LONG_TIME} if s.get("from") in closing else s for s in case["topology"]]
    return {**case, "topology": statements}


def by_way_of_a_topic(case: Case) -> dict[str, Any]:
    """A suppressed table that is grouped by another key is read from a topic."""
    suppressed = [s["id"] for s in case["topology"] if s["op"] == "suppress"]
    groupings = [s["id"] for s in case["topology"] if s["op"] == "groupBy" and s["from"] in suppressed]
    if not groupings:
        return dict(case)
    program, statements = Program(case), list[Spec]()
    for s in case["topology"]:
        if s.get("id") not in groupings:
            statements.append(s)
            continue
        topic, types = AGAIN + s["id"], program.types_at(s["from"])
        statements += [
            {"id": f"{s['id']}-stream", "op": "toStream", "from": s["from"]},
            {"op": "to", "from": f"{s['id']}-stream", "topic": topic},
            {"id": f"{s['id']}-again", "op": "table", "topic": topic, "key": types.key.name, "value": types.value.name},
            s | {"from": f"{s['id']}-again"},
        ]
    return {**case, "topology": statements}


if __name__ == "__main__":
    for line in sys.stdin:
        if means_the_same(json.loads(line)):
            sys.stdout.write(json.dumps(twin(json.loads(line))) + "\n")
