"""Random calls to stores, for `StoreOracle.java` to answer. The vectors were made by

    python random_calls.py 4 40 | java -cp "<jars: kafka-streams-test-utils 4.3.0, jackson>:." StoreOracle | gzip -9n

Times dwell around the bounds: of the retention, of the segments, of what was put before.
"""

import json
import random
import sys

KEYS = ["a", "ab", "b", "a\0", "é"]
CALLS = 40
END = 10**12


class Calls:
    """Calls to one store, while its time goes on."""

    def __init__(self, chance: random.Random, retention: int, step: int) -> None:
        self.chance, self.retention, self.step = chance, retention, max(1, step)
        self.now = 0
        self.spans: list[tuple[int, int]] = []

    def key(self) -> str:
        return self.chance.choice(KEYS)

    def value(self, missing: float = 0.15) -> str | None:
        return None if self.chance.random() < missing else f"v{self.chance.randint(0, 999)}"

    def time(self) -> int:
        draw = self.chance.random()
        if draw < 0.45:
            self.now += self.chance.randint(0, self.step)
            return self.now
        if draw < 0.9:
            return max(
                0, self.now - self.chance.randint(0, int(self.retention * 1.5) + 3) // self.chance.choice([1, 1, 8])
            )
        return max(0, self.now - self.retention + self.chance.choice([-1, 0, 1]))

    def times(self) -> list[int]:
        return sorted((self.time(), self.time()))

    def span(self) -> tuple[int, int]:
        if not self.spans or self.chance.random() < 0.5:
            end = self.time()
            self.spans.append((max(0, end - self.chance.choice([0, 1, 5, self.retention // 3])), end))
        return self.chance.choice(self.spans)

    def one_of(self, weighted: list[tuple[int, list]]) -> list:
        return self.chance.choices([call for _, call in weighted], [weight for weight, _ in weighted])[0]


def window(calls: Calls) -> list:
    first, last = calls.times()
    fetch = calls.chance.choice(["fetch", "backward_fetch"])
    return calls.one_of([
        (11, ["put", calls.key(), calls.value(), calls.time()]),
        (2, ["get", calls.key(), calls.time()]),
        (4, [fetch, calls.key(), first, calls.chance.choice([last, END])]),
        (2, ["fetch_all", first, last]),
        (1, ["all"]),
    ])  # fmt: skip


def session(calls: Calls) -> list:
    find, fetch = calls.chance.choice([("find_sessions", "fetch"), ("backward_find_sessions", "backward_fetch")])
    return calls.one_of([
        (9, ["put", calls.key(), calls.value(), *calls.span()]),
        (2, ["remove", calls.key(), *calls.span()]),
        (2, ["fetch_session", calls.key(), *calls.span()]),
        (5, [find, calls.key(), calls.chance.choice([calls.time(), 0]), calls.chance.choice([calls.time(), END])]),
        (2, [fetch, calls.key()]),
    ])  # fmt: skip


def versioned(calls: Calls) -> list:
    # The history up to a moment in the past is left out: Kafka then forgets versions that end in a later segment.
    return calls.one_of([
        (10, ["put", calls.key(), calls.value(0.3), calls.time()]),
        (2, ["delete", calls.key(), calls.time()]),
        (1, ["get", calls.key()]),
        (5, ["get_as_of", calls.key(), calls.time()]),
        (2, ["history", calls.key(), calls.time(), END]),
    ])  # fmt: skip


def key_value(calls: Calls) -> list:
    bounds = [calls.chance.choice([None, *KEYS, "", "c"]) for _ in range(2)]
    return calls.one_of([
        (8, ["put", calls.key(), calls.value()]),
        (2, ["get", calls.key()]),
        (2, ["put_if_absent", calls.key(), calls.value()]),
        (2, ["delete", calls.key()]),
        (3, [calls.chance.choice(["range", "reverse_range"]), *bounds]),
        (1, ["prefix_scan", calls.key()]),
        (2, [calls.chance.choice(["all", "reverse_all"])]),
    ])  # fmt: skip


def cases(chance: random.Random):
    retention = chance.choice([1, 50, 1_000, 100_000, 150_000, 400_000])
    timed = Calls(chance, retention, chance.choice([retention // 4, 40_000, 20]))
    for persistent in (True, False):
        for duplicates in (True, False):
            size = min(retention, chance.choice([1, 10, 1_000]))
            settings = {"retention": retention, "size": size, "duplicates": duplicates}
            yield "window", persistent, settings, window, timed
        yield "session", persistent, {"retention": retention}, session, timed
        yield "kv", persistent, {}, key_value, timed
    history = chance.choice([0, 5, 50, 5_000, 60_000, 100_000, 1_000_000])
    yield "versioned", True, {"history": history}, versioned, Calls(chance, history, chance.choice([2, history // 5]))
    yield "lru", False, {"max_entries": chance.choice([1, 2, 3])}, key_value, timed


def main(seed: int, rounds: int) -> None:
    chance = random.Random(seed)  # noqa: S311 (repeatable)
    for _ in range(rounds):
        for kind, persistent, settings, call, calls in cases(chance):
            calls.now, calls.spans = 0, []
            ops = [call(calls) for _ in range(CALLS)]
            case = {"kind": kind, "persistent": persistent, **settings, "ops": ops}
            sys.stdout.write(json.dumps(case, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
