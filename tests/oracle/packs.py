"""Many cases as one application on Spark: a batch then runs a step of all of them.

Every name in a case gets a prefix of its own, so the cases share nothing but the application. A case whose result
depends on that is run by itself: `SparkHost` with one case.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import headrace as hr
from headrace.topology.subtopologies import plan
from tests.oracle.comparing import in_outputs, in_stores
from tests.oracle.language import Case
from tests.oracle.running import Result, rows, shown
from tests.oracle.spark_host import SparkHost
from tests.oracle.topologies import Program, optimization

# The fields of statements and functions that name something.
NAMES = {
    "id", "from", "other", "topic", "topics", "pattern", "store", "stores", "named", "name", "parents", "processors",
    "then", "else", "prefix",
}  # fmt: skip
WALL_CLOCK = {"times", "v_times"}  # processors that read it


def config_of(case: Case) -> Mapping[str, Any]:
    return case.get("config", {})


def can_be_packed(case: Case) -> bool:
    """True for a case that does not fail, and whose result depends on no clock.

    An application has a wall clock of its own. The cases of a pack would share one stream time, or their tasks have one
    each; in Kafka Streams' test driver all tasks of a case share it.
    """
    processors = [s["processor"] for s in case["topology"] if "processor" in s]
    return (
        "error" not in case["expected"]
        and not config_of(case).get("emit_interval_ms")
        and not any(some["fn"] in WALL_CLOCK or "clock" in some for some in processors)
    )


def can_be_cut(case: Case) -> bool:
    """True for a case with the same output however its steps are cut into batches."""
    topics = {step["pipe"]["topic"] for step in case["steps"] if "pipe" in step}
    decided = "error" not in case["expected"] and not case["expected"].get("multi_internal_steps")
    if len(topics) > 1 or not decided or config_of(case).get("cache_max_bytes"):
        return False
    return not any(edge.back for edge in plan(Program(case).topology.graph()).edges)


def packs(cases: Iterable[Case], size: int = 60) -> Iterator[list[Case]]:
    """Puts cases of the same configuration together. It leaves out cases that cannot be packed."""
    by_config: dict[str, list[Case]] = {}
    for case in filter(can_be_packed, cases):
        by_config.setdefault(json.dumps(config_of(case), sort_keys=True), []).append(case)
    for some in by_config.values():
        yield from (some[start : start + size] for start in range(0, len(some), size))


def add_prefix(spec: Any, prefix: str, field: str = "") -> Any:
    """Returns a part of a case with a prefix before every name.

    >>> add_prefix({"op": "to", "from": "n1", "topic": "out"}, "c0-")
    {'op': 'to', 'from': 'c0-n1', 'topic': 'c0-out'}
    """
    match spec:
        case Mapping():
            return {name: add_prefix(part, prefix, name) for name, part in spec.items()}
        case list():
            return [add_prefix(part, prefix, field) for part in spec]
        case str() if field in NAMES:
            return prefix + spec
        case _:
            return spec


class Member:
    """A case of a pack."""

    def __init__(self, case: Case, number: int, builder: hr.StreamsBuilder) -> None:
        self.case, self.prefix = case, f"c{number}-"  # no prefix begins with another one
        renamed = {**case, **{part: add_prefix(case[part], self.prefix) for part in ("topology", "steps")}}
        self.renamed: Case = renamed
        self.program = Program(renamed, builder)
        self.outputs: dict[str, list[Result]] = {topic: [] for topic in case["expected"]["outputs"]}

    def read(self, host: SparkHost, produced: Sequence[str], step: int) -> None:
        """Reads what a step has written."""
        mine = [topic for topic in produced if topic.startswith(self.prefix)]
        for topic, types in self.program.outputs(mine).items():
            if topic in mine:
                found = [self._plain(shown(record, step)) for record in host.read(topic, **types.serdes)]
                self.outputs.setdefault(topic.removeprefix(self.prefix), []).extend(found)

    def _plain(self, result: Result) -> Result:
        """Removes the prefix from values that name a topic."""
        return json.loads(json.dumps(result).replace(self.prefix, ""))

    def differences(self, host: SparkHost, cut: int) -> list[str]:
        expected = self.case["expected"]
        outputs = {
            topic: [record | {"step": record["step"] // cut} for record in records]
            for topic, records in expected["outputs"].items()
        }
        stores = {
            name: rows(host.store(self.prefix + name), self.program.stores[self.prefix + name], self.case)
            for name in expected["stores"]
        }
        actual = {"outputs": self.outputs, "stores": stores}
        return [*in_outputs(expected | {"outputs": outputs}, actual), *in_stores(expected, actual)]


def run_pack(
    cases: Sequence[Case], cut: int = 1, disturb: Callable[[SparkHost], None] = lambda host: None
) -> dict[str, list[str]]:
    """Runs cases of the same configuration; returns what differs from Kafka Streams' results, by case.

    What `cut` steps cause has happened before the next steps begin. `disturb` is called when steps have begun.
    """
    builder = hr.StreamsBuilder()
    members = [Member(case, number, builder) for number, case in enumerate(cases)]
    uses_builder = any(not s["op"].startswith("papi_") for case in cases for s in case["topology"])
    topology = builder.build(optimize=optimization(cases[0])) if uses_builder else hr.Topology()
    for member in members:
        member.program.add_by_hand(topology, member.renamed)
    pipes = [[step.get("pipe") for step in member.renamed["steps"]] for member in members]
    whole = {"steps": [step for member in members for step in member.renamed["steps"]], "config": config_of(cases[0])}
    with closing(SparkHost(topology, whole, scope="task")) as host:
        for number in range(-(-max(map(len, pipes)) // cut)):
            host.append(
                (member.program, pipe)
                for member, some in zip(members, pipes, strict=True)
                for pipe in some[number * cut : (number + 1) * cut]
                if pipe is not None
            )
            disturb(host)
            host.settle()
            produced = list(host.produced_topics())
            for member in members:
                member.read(host, produced, number)
        found = {str(member.case["name"]): member.differences(host, cut) for member in members}
        dropped = sum(case["expected"]["metrics"]["dropped_records_total"] for case in cases)
        if host.dropped_records() != dropped:
            found["dropped records of all"] = [f"expected {dropped}, got {host.dropped_records()}"]
    return {name: some for name, some in found.items() if some}
