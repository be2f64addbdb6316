"""The stores do what those of Apache Kafka Streams 4.3.0 do: the same calls, the same answers.

`vectors/stores.jsonl.gz` holds random calls (`vectors/random_calls.py`) and what the real stores made of them
(`vectors/StoreOracle.java`). They are run with commits and reopenings in between, which must not show.
"""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from headrace.model.windows import Window, Windowed
from headrace.serde import STRING
from headrace.state.engine import MemoryEngine, Version
from headrace.state.spec import KeyValueKind, LruKind, SessionKind, StoreSpec, VersionedKind, WindowKind
from headrace.state.task_state import TaskState

VECTORS = Path(__file__).parent / "vectors" / "stores.jsonl.gz"
CASES = [json.loads(line) for line in gzip.decompress(VECTORS.read_bytes()).decode().splitlines()]
LABELS = sorted({(case["kind"], case["persistent"], case.get("duplicates", False)) for case in CASES})


def kind_of(case):
    match case["kind"]:
        case "window":
            return WindowKind(case["retention"], case["size"], case["duplicates"])
        case "session":
            return SessionKind(case["retention"])
        case "versioned":
            return VersionedKind(case["history"])
        case "lru":
            return LruKind(case["max_entries"])
        case _:
            return KeyValueKind()


def rows(entries) -> list[list[Any]]:
    return [[key.key, *key.window, value] if isinstance(key, Windowed) else [key, value] for key, value in entries]


def answer(store, kind: str, call: list[Any]) -> Any:
    method, *args = call
    match kind, method:
        case "window", "get":
            return store.fetch(*args)
        case "session", "put":
            return store.put(Windowed(args[0], Window(*args[2:])), args[1])
        case "session", "remove":
            return store.remove(Windowed(args[0], Window(*args[1:])))
        case "versioned", "get_as_of":
            return listed(store.get(*args))
        case "versioned", "history":
            return [listed(version) for version in store.history(*args)]
        case _, "approximate_size":
            return store.approximate_size
    found = getattr(store, method)(*args)
    return rows(found) if hasattr(found, "__next__") else listed(found)


def listed(found: Any) -> Any:
    return list(found) if isinstance(found, tuple) else found


def ordered(method: str, kind: str, expected: Any) -> Any:
    """Kafka's window stores give many keys by segment or by time; ours by key, then time, as all stores do."""
    if kind == "window" and method in ("all", "fetch_all"):
        return sorted(expected, key=lambda row: (row[0].encode(), row[1]))
    return expected


def run(case, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 (a test wants it repeatable)
    spec = StoreSpec("store", kind_of(case), STRING, STRING, persistent=case["persistent"])
    engine, dropped = MemoryEngine(), list[int]()

    def opened() -> TaskState:
        return TaskState.open(
            {"store": spec}, engine, key=STRING, value=STRING, dropped=lambda _, count: dropped.append(count)
        )

    state = opened()
    for number, (call, expected) in enumerate(zip(case["ops"], case["results"], strict=True)):
        got = answer(state.store("store"), case["kind"], call)
        assert got == ordered(call[0], case["kind"], expected), (number, call)
        if chance.random() < 0.3:
            state.commit(Version(number, "x"))
            state = opened() if chance.random() < 0.3 else state
    assert sum(dropped) == case["dropped"]


@pytest.mark.parametrize("label", LABELS, ids=lambda label: "-".join(map(str, label)))
def test_a_store_gives_the_answers_of_kafka_streams(label):
    for number, case in enumerate(CASES):
        if (case["kind"], case["persistent"], case.get("duplicates", False)) == label:
            run(case, seed=number)
