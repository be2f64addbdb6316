"""Makes a failing case smaller, as long as it fails in the same way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.properties.cases import Case, Piped
from tests.properties.functions import Spec

OPTIONAL = ("named", "store", "caching", "retention_ms", "emit", "grace_ms", "versioned_ms", "extractor", "router")


def smaller(case: Case, fails: Callable[[Case], bool], *, most: int = 1500) -> Case:
    """The smallest case that a greedy search finds, with at most so many tries."""
    tries, found = 0, True
    while found:
        found = False
        for candidate in simpler(case):
            tries += 1
            if tries > most:
                return case
            if fails(candidate):
                case, found = candidate, True
                break
    return case


def simpler(case: Case) -> Iterator[Case]:
    """What to try next, the largest steps first."""
    for some in without_parts(case.records):
        yield replace(case, records=some)
    for at in reversed(range(len(case.topology))):
        yield from (replace(case, topology=rest) for rest in without_statement(case, at))
    for name in case.config:
        yield replace(case, config={key: value for key, value in case.config.items() if key != name})
    for some in without_parts(case.cut):
        yield replace(case, cut=some)
    for at, (size, restart) in enumerate(case.cut):
        if restart:
            yield replace(case, cut=[*case.cut[:at], (size, False), *case.cut[at + 1 :]])
    for at, record in enumerate(case.records):
        for plainer in plainer_records(record, case.records):
            yield replace(case, records=[*case.records[:at], plainer, *case.records[at + 1 :]])


def without_parts(items: list) -> Iterator[list]:
    """Without a half, a quarter, … a single one."""
    size = len(items)
    while size := size // 2 if size > 1 else 0 if len(items) > 1 and size == 1 else size:
        for at in range(0, len(items), size):
            yield items[:at] + items[at + size :]
    if len(items) == 1:
        yield []


def without_statement(case: Case, at: int) -> Iterator[list[Spec]]:
    """Without what nothing refers to; or, where nothing is claimed, with what it was made of in its place."""
    statement, others = case.topology[at], [*case.topology[:at], *case.topology[at + 1 :]]
    names = [statement[field] for field in ("id", "store", "name", "branches") if field in statement]
    text = json.dumps(others)
    if not any(json.dumps(name) in text for name in names if isinstance(name, str)):
        yield others
    if case.sinks:
        return
    if "id" in statement and isinstance(statement.get("from"), str):
        replaced = json.dumps(others).replace(f'"{statement["id"]}"', f'"{statement["from"]}"')
        yield json.loads(replaced)
    for field in OPTIONAL:
        if field in statement and statement["op"] != "store":
            plainer = {key: value for key, value in statement.items() if key != field}
            yield [*case.topology[:at], plainer, *case.topology[at + 1 :]]


def plainer_records(record: Piped, records: list[Piped]) -> Iterator[Piped]:
    if record.headers:
        yield record._replace(headers=[])
    first = records[0]
    for value in ("a", 1, first.value):
        if value is not None and type(value) is type(record.value) and value != record.value:
            yield record._replace(value=value)
            break
    if record.key not in (None, first.key) and first.key is not None:
        yield record._replace(key=first.key)
