"""A server of a finished program, and requests to it that are made by hand."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headrace.checkpoint.sink_delivery import SinkReport
from headrace.model.ids import TopicPartition
from headrace.query import Follower
from headrace.query.history import BatchLatency, LatencyHistogram
from headrace.query.status import ApplicationReport, SampledRecord, SlotReport, SourceReport
from headrace.web import ApplicationView, Server
from tests.query.programs import every_kind, finished


class FakeApplication:
    """An application that reports what the test says, and records the actions that it is asked for."""

    def __init__(self, **reported: Any) -> None:
        self.reported, self.actions = ApplicationReport(**{"state": "RUNNING", **reported}), list[str]()
        self.records: dict[str, list[SampledRecord]] = {}  # by node

    def report(self) -> ApplicationReport:
        return self.reported

    def pause(self) -> None:
        self.actions.append("pause")

    def resume(self) -> None:
        self.actions.append("resume")

    def stop(self) -> None:
        self.actions.append("stop")

    def snapshot(self) -> None:
        self.actions.append("snapshot")

    def scale(self, slots: int) -> int:
        self.actions.append(f"scale {slots}")
        return min(slots, 2)

    def samples(self, node: str) -> list[SampledRecord]:
        return self.records.get(node, [])


def latencies() -> LatencyHistogram:
    """Nine records: three took 100 ms, the others a second."""
    found = LatencyHistogram()
    found.add([100, 1000, 1000], 9, 0)
    return found


def counted() -> dict[str, Any]:
    """What an application has counted, one of each."""
    return {
        "tasks": {"KSTREAM-SOURCE-0000000000": {"0_0": 10, "0_1": 20}},
        "sent": {"out": 30},
        "dead_letters": 1,
        "stream_times": {"0_0": 400},
        "restored": {"caught up": 2},
        "restored_entries": 70,
        "restored_seconds": 0.5,
        "latency": latencies(),
        "latencies": {4: BatchLatency(wait=5, p50=30, p99=80)},
        "slots": [
            SlotReport(0, "one", 11, ("0_0", "1_0"), {"0_1": 0}),
            SlotReport(1, "two", 12, ("0_1",), {"0_0": 2, "1_0": 0}),
        ],
        "moves": 3,
        "queued_slots": 1,
        "sources": [SourceReport("customers", "customers", "RETRYING", 7, 120, "no answer", 2)],
        "sinks": [SinkReport("lake", "atomic", 4, 2, 50, 1, "no answer", 3)],
    }


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    url: str,
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    context: ssl.SSLContext | None = None,
    **headers: str,
) -> Answer:
    """A request as it is: nothing is quoted, resolved or followed. An underscore in a header's name is a hyphen."""
    at = urlsplit(url)
    if at.scheme == "https":
        connection = http.client.HTTPSConnection(at.hostname or "", at.port, timeout=10, context=context)
    else:
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=10)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


@contextmanager
def served(
    cluster: Any = None, application: FakeApplication | None = None, view: dict[str, Any] | None = None, **options: Any
):
    """A server of a program. Without a token everybody may read, unless `insecure=False`."""
    cluster = cluster or finished(limit=3)
    follower = Follower(cluster.storage, every_kind(), cluster.config)
    shown = ApplicationView(
        follower=follower, application=application, topology=every_kind().describe(), **(view or {})
    )
    with Server(shown, **{"follow": 5, "insecure": "token" not in options, **options}) as server:
        yield server


def ends(cluster: Any) -> dict[TopicPartition, int]:
    return {at: extent.end for at, extent in cluster.log.extents(["lines", "states"]).items()}


def lines_of(answer: Answer) -> Iterator[Any]:
    return (json.loads(line) for line in answer.body.splitlines())
