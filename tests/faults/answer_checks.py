"""Asks over HTTP, and compares every answer with the tables at the answer's position."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from headrace.log.protocol import Log
from headrace.model.ids import TopicPartition
from headrace.testing import TopologyTestDriver
from tests.faults.queried_program import CONFIG, EARLIER, Answer, Question, questions, topology

TOPICS, PARTITIONS = ("lines", "states"), 3
PAUSE = 0.4  # seconds: who asks leaves time to those who work
NOT_NOW = {410, 503}  # the batch is not kept, or there is none yet


class Questioner:
    """Asks a server again and again in a thread of its own, whether it is there or not."""

    def __init__(self, by: str, url: Callable[[], str | None]) -> None:
        self.by, self._url, self.answers, self.refused = by, url, list[Answer](), Counter[str]()
        self.wrong: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"asks {by}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def position(self) -> dict[str, int]:
        """Of the last answer."""
        return self.answers[-1].offsets if self.answers else {}

    def _run(self) -> None:
        for turn in count():
            url = self._url()
            if self._over.wait(PAUSE):
                return
            if url is None:
                continue
            at = urlsplit(url)
            connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=30)
            try:
                self._ask_all(connection, earlier=turn % 4 == 3)
            except (OSError, http.client.HTTPException) as error:
                self.refused[type(error).__name__] += 1
            finally:
                connection.close()

    def _ask_all(self, connection: http.client.HTTPConnection, *, earlier: bool) -> None:
        batch = self.answers[-1].batch - EARLIER if earlier and self.answers else None
        for number, question in enumerate(questions()):
            path = f"/stores/{question.store}/{question.path}"
            if batch is not None:
                path += f"{'&' if '?' in path else '?'}as_of={batch}"
            connection.request("GET", path)
            response = connection.getresponse()
            found = json.loads(response.read())
            if response.status in NOT_NOW:
                self.refused[found.get("error", "")] += 1
            elif response.status == 200 or "found" in found:
                self.answers.append(answer_over_http(self.by, number, question, found))
            else:
                self.wrong.append(f"{path}: {response.status} {found}")


def answer_over_http(by: str, number: int, question: Question, found: dict[str, Any]) -> Answer:
    rows = found["rows"] if "rows" in found else [found] if found["found"] else []
    flat = [{**row, **row.get("window", {})} for row in rows]
    offsets = {
        f"{topic}-{part}": at for topic, some in found["position"]["offsets"].items() for part, at in some.items()
    }
    told = [[row[column] for column in question.columns] for row in flat]
    return Answer(by, number, found["position"]["batch"], offsets, told)


def answers_in(file: Path) -> list[Answer]:
    """What was written down; the last line may be cut off where its writer was killed."""
    lines = file.read_bytes().split(b"\n") if file.exists() else []
    return [msgspec.json.decode(line, type=Answer) for line in lines[:-1]]


class Truth:
    """The tables at a position: a driver for every partition, which has taken in exactly so many records."""

    def __init__(self, log: Log) -> None:
        self._drivers = [TopologyTestDriver(topology(), CONFIG) for _ in range(PARTITIONS)]
        places = [TopicPartition(topic, part) for topic in TOPICS for part in range(PARTITIONS)]
        self._rows = {at: [row for chunk in log.read(at, 0) for row in chunk.rows()] for at in places}
        self._taken = dict.fromkeys(places, 0)

    def go_on(self, offsets: dict[str, int]) -> None:
        """On to a position, which is not before the last one."""
        for at, taken in self._taken.items():
            end = offsets[f"{at.topic}-{at.partition}"]
            assert end >= taken, f"{at} went back from {taken} to {end}"
            for _, key, value, timestamp, headers in self._rows[at][taken:end]:
                self._drivers[at.partition].pipe_row(at.topic, key, value, timestamp, headers)
            self._taken[at] = end

    def rows(self, question: Question) -> list[Any]:
        found = [row for driver in self._drivers for row in question.of_store(driver.store(question.store))]
        return without_tags(question, question.joined(found))


def without_tags(question: Question, rows: Iterable[Any]) -> list[Any]:
    """Tags are by chance, so the reference has others."""
    if question.store != "tagged":
        return [list(row) for row in rows]
    return [[key, value.rpartition(" ")[0], time] for key, value, time in rows]


def check_answers(answers: Iterable[Answer], log: Log) -> Counter[str]:
    """How many answers there were, by who gave them, once each of them has proved to be true."""
    asked, found = questions(), Counter[str]()
    told: dict[int, dict[int, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))  # batch, question, rows, by
    positions: dict[int, dict[str, int]] = {}
    for answer in answers:
        found[answer.by] += 1
        position = positions.setdefault(answer.batch, answer.offsets)
        assert position == answer.offsets, f"batch {answer.batch} has two positions: {position}, {answer.offsets}"
        told[answer.batch][answer.question].setdefault(json.dumps(answer.rows), answer.by)
    truth, tags = Truth(log), tags_in(log)
    for batch in sorted(told):
        truth.go_on(positions[batch])
        for number, some in told[batch].items():
            assert len(some) == 1, f"batch {batch}, {asked[number]}: different answers {some}"
            ((rows, by),) = some.items()
            expected, plain = truth.rows(asked[number]), without_tags(asked[number], json.loads(rows))
            assert plain == expected, f"batch {batch}, {asked[number]}: {by} says {plain}, not {expected}"
            if asked[number].store == "tagged":
                assert {value for _, value, _ in json.loads(rows)} <= tags, f"batch {batch}: {rows} never was committed"
    return found


def tags_in(log: Log) -> set[str]:
    """Every tagged line that was committed: all of them are delivered."""
    places = log.extents(["tags"])
    return {(row[2] or b"").decode() for at in places for chunk in log.read(at, 0) for row in chunk.rows()}
