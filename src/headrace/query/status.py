"""The status of an application: from its checkpoint, and from its own report if it runs in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headrace.checkpoint.sink_delivery import SinkReport
from headrace.config import Config
from headrace.model.ids import TopicPartition
from headrace.model.record import Sample
from headrace.model.windows import Windowed
from headrace.query.follower import Follower
from headrace.query.history import BatchLatency, LatencyHistogram
from headrace.query.json_values import dump_json
from headrace.runtime.task import serdes_of
from headrace.serde.protocol import Serde
from headrace.topology.graph import Graph
from headrace.topology.nodes import Sink, Source

KEEPS_UP = 5.0  # seconds: an application keeps up if it can process all waiting records in this time


class SlotReport(NamedTuple):
    """A slot of the real-time trigger: where it runs, its tasks, and its standbys.

    `standbys` says for each task how many batches the standby is behind the task's state.
    """

    slot: int
    host: str
    process: int
    tasks: tuple[str, ...]
    standbys: Mapping[str, int]


class SourceReport(NamedTuple):
    """A source: its state, the records that it has written since the start, its lag if known, and the last error.

    `failures` counts the attempts that failed since the start.
    """

    name: str
    topic: str
    state: str  # STARTING, RUNNING, RETRYING (it or the log is away), FENCED, FAILED, STOPPED
    records: int
    lag: int | None
    error: str | None
    failures: int = 0


def encode_slots(slots: Sequence[SlotReport], moves: int, queued: int = 0) -> dict[str, Any]:
    """Makes plain JSON of slots, for the heartbeat of an application; `decode_slots` reads it.

    >>> encoded = encode_slots([SlotReport(0, "one", 11, ("0_0",), {"0_1": 2})], moves=3)
    >>> decode_slots(encoded)["slots"]
    (SlotReport(slot=0, host='one', process=11, tasks=('0_0',), standbys={'0_1': 2}),)
    """
    return {"slots": [slot._asdict() for slot in slots], "moves": moves, "queued_slots": queued}


def decode_slots(description: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a heartbeat describes as fields of an `ApplicationReport`."""
    slots = [SlotReport(**slot) for slot in description.get("slots", ())]
    return {
        "slots": tuple(slot._replace(tasks=tuple(slot.tasks)) for slot in slots),
        "moves": description.get("moves", 0),
        "queued_slots": description.get("queued_slots", 0),
        "sources": tuple(SourceReport(**source) for source in description.get("sources", ())),
        "sinks": tuple(SinkReport(**sink) for sink in description.get("sinks", ())),
        "ready": description.get("ready", True),
        "changes": description.get("changes"),
    }


class Traffic(NamedTuple):
    """The messages between the driver and its slots, in frames and bytes. Records go from slot to slot."""

    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationReport:
    """What only the running application knows. Fields that it does not know stay empty.

    Counts are since the application was created.
    """

    state: str = "UNKNOWN"  # Kafka Streams': CREATED, REBALANCING, RUNNING, PENDING_SHUTDOWN, NOT_RUNNING, ERROR
    ready: bool = True  # False while an application that is RUNNING waits for Spark: no batch can run yet
    paused: bool = False
    error: str | None = None
    changes: Mapping[str, Any] | None = None  # what the last start changed in the checkpoint: `ChangePlan.to_json()`
    delivered: int | None = None  # the last batch that the log has
    ends: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])  # of the source topics
    phases: Mapping[int, Mapping[str, float]] = field(default_factory=dict[int, Mapping[str, float]])  # ms, by batch
    sinks: Sequence[SinkReport] = ()  # for other systems than the log
    slots: Sequence[SlotReport] = ()  # none with the micro-batch trigger
    moves: int = 0  # tasks that were given to another slot
    queued_slots: int = 0  # wait for a core of Spark
    sources: Sequence[SourceReport] = ()
    traffic: Traffic = field(default_factory=Traffic)  # between driver and slots, since the last start of the run
    batches: int = 0  # committed
    read: Mapping[str, int] = field(default_factory=dict[str, int])  # records, by topic of the log
    sent: Mapping[str, int] = field(default_factory=dict[str, int])  # records written, by topic of the log
    nodes: Mapping[str, int] = field(default_factory=dict[str, int])  # records into sources and out of sinks
    tasks: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])  # the same by task
    edges: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])  # as far as known
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])  # by task and reason
    dead_letters: int | None = None  # None: the application has no dead letter topic
    dead_letter_topic: str | None = None
    stream_times: Mapping[str, int] = field(default_factory=dict[str, int])  # by task
    restored: Mapping[str, int] = field(default_factory=dict[str, int])  # restores, by their kind
    restored_entries: int = 0
    restored_seconds: float = 0.0
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)  # from a record's timestamp to its commit
    latencies: Mapping[int, BatchLatency] = field(default_factory=dict[int, BatchLatency])  # of the last batches


class RunningApplication(Protocol):
    """An application that runs in this process. Every method may be called from any thread."""

    def report(self) -> ApplicationReport: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def stop(self) -> None: ...
    def snapshot(self) -> None: ...
    def scale(self, slots: int) -> int: ...
    def samples(self, node: str) -> Sequence[SampledRecord]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of an application at one moment."""

    application: str
    state: str
    verdict: str  # one sentence: is it healthy, and why
    healthy: bool
    batch: int
    epoch: int
    clock: int
    age: int  # ms since `batch` was certainly the last one
    delivered: int
    rates: Mapping[str, float]  # records a second, by topic
    lag: Mapping[str, int] | None  # records, by partition; None if the log is not known
    catch_up: float | None  # seconds
    dropped: Mapping[str, int]
    state_bytes: int
    slots: Sequence[Mapping[str, Any]] = ()  # the fields of `SlotReport`
    moves: int = 0  # of tasks to other slots, since the application was started
    queued_slots: int = 0  # wait for a core of Spark
    sources: Sequence[Mapping[str, Any]] = ()  # the fields of `SourceReport`
    sinks: Sequence[Mapping[str, Any]] = ()  # the fields of `SinkReport`
    changes: Mapping[str, Any] | None = None  # that the last start made to the checkpoint
    error: str | None = None


def build_status(follower: Follower, report: ApplicationReport, now: int) -> Status:
    """Combine the checkpoint and the report. Raises `StoreNotReadyError` before the first batch."""
    snapshot, fresh = follower.snapshot, follower.freshness
    lag = None
    if report.ends:
        offsets = snapshot.position.offsets
        lag = {str(at): max(0, end - offsets.get(at, 0)) for at, end in sorted(report.ends.items())}
    rates = follower.history.rate(now)
    rate, behind = sum(rates.values()), sum(lag.values()) if lag else 0
    healthy, verdict = _judge(report, fresh.error, behind, rate)
    return Status(
        application=snapshot.application,
        state="PAUSED" if report.paused else report.state,
        verdict=verdict,
        healthy=healthy,
        batch=snapshot.batch,
        epoch=snapshot.epoch,
        clock=snapshot.clock,
        age=fresh.age(now),
        delivered=snapshot.delivered if report.delivered is None else report.delivered,
        rates=rates,
        lag=lag,
        catch_up=behind / rate if behind and rate else None,
        dropped=snapshot.dropped,
        state_bytes=sum(snapshot.sizes.values()),
        **encode_slots(report.slots, report.moves, report.queued_slots),
        sources=[source._asdict() for source in report.sources],
        sinks=[sink._asdict() for sink in report.sinks],
        changes=report.changes,
        error=report.error or fresh.error,
    )


def _judge(report: ApplicationReport, read_error: str | None, behind: int, rate: float) -> tuple[bool, str]:
    if report.error is not None or report.state == "ERROR":
        return False, f"Stopped by an error: {report.error or 'see the log'}"
    if read_error is not None:
        return False, f"The checkpoint cannot be read: {read_error}"
    return _judge_state(report) or _judge_connectors(report) or _judge_progress(report, behind, rate)


def _judge_state(report: ApplicationReport) -> tuple[bool, str] | None:
    """Return the verdict on an application in which no batch can run now; None if one can."""
    if report.paused:
        return True, "Paused: no record is processed until the application is resumed."
    if report.state in {"CREATED", "REBALANCING"}:
        if report.batches:
            return True, "Planning again: the topics have changed, or Spark has lost the job."
        return False, "Starting: the application takes over its checkpoint."
    if report.state == "PENDING_SHUTDOWN":
        return True, "Stopping."
    if report.state == "NOT_RUNNING":
        lacking = ", ".join(f"{sink.name} lacks {sink.waiting} batches" for sink in report.sinks if sink.waiting)
        return True, f"Not running. {lacking}: the next start delivers them." if lacking else "Not running."
    if report.state == "UNKNOWN":
        return False, "Silent: the last heartbeat is older than the lease. The application was killed, or cannot write."
    if not report.ready and report.queued_slots:
        return False, "Waiting for Spark: it has no core for the slots, so no batch can run."
    return None if report.ready else (False, "Starting: the slots are not there yet, so no batch can run.")


def _judge_connectors(report: ApplicationReport) -> tuple[bool, str] | None:
    if lost := [f"{sink.name} ({sink.waiting} batches wait)" for sink in report.sinks if sink.is_away]:
        return False, f"Waiting for {', '.join(lost)}: the target of the sink fails and is asked again."
    if away := [source.name for source in report.sources if source.state == "RETRYING"]:
        return False, f"Waiting for {', '.join(away)}: the source fails and is tried again."
    return None


def _judge_progress(report: ApplicationReport, behind: int, rate: float) -> tuple[bool, str]:
    wait = "1 record waits" if behind == 1 else f"{behind} records wait"
    if behind and not rate and not report.batches:
        return False, f"Starting: the first batch runs, and {wait}."
    if behind and not rate:
        return False, f"Stuck: {wait}, and none was processed in the last 10 seconds."
    if behind > KEEPS_UP * rate:
        return True, f"Catching up: {wait}."
    if behind:
        return True, f"Healthy: it keeps up; {wait}, {behind / rate:.1f} s of work."
    return True, "Healthy: every record in the log has been processed." if report.ends else "Healthy."


def summarize_batches(follower: Follower, report: ApplicationReport, last: int = 120) -> list[dict[str, Any]]:
    """Return the last batches as plain data, oldest first."""
    return [
        {
            "number": batch.number,
            "clock": batch.clock,
            "records": sum(follower.history.records(batch.number).values()),
            "tasks": batch.tasks,
            "state_bytes": batch.state_bytes,
            "outbox_bytes": batch.outbox_bytes,
            "carried": batch.carried,
            "phases": dict(report.phases.get(batch.number, {})),
            "latency": describe_latency(report, batch.number),
        }
        for batch in follower.history.batches()[-last:]
    ]


def describe_latency(report: ApplicationReport, number: int) -> dict[str, float] | None:
    """Return how many ms the records of a batch took from log to log; None if it read none.

    Until the results are in the log, this is the time until the commit.
    """
    latency = report.latencies.get(number)
    if latency is None:
        return None
    deliver = report.phases.get(number, {}).get("deliver", 0.0)
    return {"wait": latency.wait, "p50": latency.p50 + deliver, "p99": latency.p99 + deliver}


# ---------------------------------------------------------------------------------------------------- sampled records
class SampledRecord(NamedTuple):
    """A record that entered through a source or left through a sink, with its key and value as text."""

    topic: str
    partition: int | None  # None: the hash of the key decides
    offset: int | None  # None: it is not in the log yet, or never
    timestamp: int
    key: str | None
    value: str | None


def format_samples(graph: Graph, config: Config, node: str, samples: Iterable[Sample]) -> list[SampledRecord]:
    """Decode the samples of a source or a sink with its serdes."""
    found = graph.nodes.get(node)
    if not isinstance(found, Source | Sink):
        return []
    topics = found.topics if isinstance(found, Source) else (found.topic,)
    serdes, is_internal = serdes_of(config), any(topic in graph.internal_topics for topic in topics)
    key, value = serdes.key(found.key), (serdes.inner_value if is_internal else serdes.value)(found.value)
    return [
        SampledRecord(
            sample.topic,
            sample.partition if sample.partition >= 0 else None,
            sample.offset if sample.offset >= 0 else None,
            sample.timestamp,
            format_bytes(sample.key, key, cut=sample.cut),
            format_bytes(sample.value, value, cut=sample.cut),
        )
        for sample in samples
    ]


def format_bytes(raw: bytes | None, serde: Serde, *, cut: bool = False) -> str | None:
    r"""Decode bytes with a serde for display. Bytes that are cut off or not of the serde are shown as characters.

    >>> from headrace import serde
    >>> format_bytes(b'{"a": [1]}', serde.JSON), format_bytes(b"\x00\xff{", serde.JSON)
    ('{"a":[1]}', '\x00\ufffd{')
    """
    if raw is None:
        return None
    if not cut:
        try:
            return _format_value(serde.decode(raw))
        except Exception:  # noqa: BLE001, S110 - a user's serde may raise anything; the bytes are shown then
            pass
    return raw.decode(errors="replace") + "…" * cut


def _format_value(value: Any) -> str:
    match value:
        case str():
            return value
        case Windowed(window=window):
            return f"{_format_value(value[0])} [{window.start}, {window.end})"
        case bytes():
            return value.decode(errors="replace")
        case _:
            return dump_json(value)
