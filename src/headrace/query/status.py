"""How an application is doing, as far as its checkpoint tells, and the application itself if it is at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.model.ids import TopicPartition
from headrace.query.follower import Follower
from headrace.query.history import Latencies
from headrace.query.rendering import ShownRecord

KEEPS_UP = 5.0  # seconds of work that may wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What only the running application knows; what it does not know stays empty."""

    state: str = (
        "UNKNOWN"  # in Kafka Streams' words: CREATED, REBALANCING, RUNNING, PENDING_SHUTDOWN, NOT_RUNNING, ERROR
    )
    paused: bool = False
    error: str | None = None
    delivered: int | None = None  # the last batch that the log has
    ends: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])  # of the source topics
    phases: Mapping[int, Mapping[str, float]] = field(default_factory=dict[int, Mapping[str, float]])  # ms, by batch
    batches: int = 0  # that were committed; this and all that follows: since the application was made
    read: Mapping[str, int] = field(default_factory=dict[str, int])  # records, by topic of the log
    sent: Mapping[str, int] = field(default_factory=dict[str, int])  # records written, by topic of the log
    nodes: Mapping[str, int] = field(default_factory=dict[str, int])  # records that sources took in and sinks sent out
    tasks: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])  # the same by task
    edges: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])  # as far as it is known
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])  # by task and reason
    dead_letters: int | None = None  # None: there is no topic for them
    stream_times: Mapping[str, int] = field(default_factory=dict[str, int])  # by task
    restored: Mapping[str, int] = field(default_factory=dict[str, int])  # how often, by how
    restored_entries: int = 0
    restored_seconds: float = 0.0
    latency: Latencies = field(default_factory=Latencies)  # from the timestamp of a record to the commit of its batch


class Observed(Protocol):
    """A running application, for whoever watches it. All of it may be called from any thread."""

    def observe(self) -> Observation: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def stop(self) -> None: ...
    def snapshot(self) -> None: ...
    def samples(self, node: str) -> Sequence[ShownRecord]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Everything that is shown about an application at one time."""

    application: str
    state: str
    verdict: str  # healthy or not, and why, in a sentence
    healthy: bool
    batch: int
    epoch: int
    clock: int
    age: int  # ms since the copy was certainly the last batch
    delivered: int
    rates: Mapping[str, float]  # records a second, by topic
    lag: Mapping[str, int] | None  # records, by partition; None if the log is not at hand
    catch_up: float | None  # seconds
    dropped: Mapping[str, int]
    state_bytes: int
    error: str | None = None


def status_of(follower: Follower, seen: Observation, now: int) -> Status:
    """Raises `StoreNotReadyError` before the first batch."""
    snapshot, fresh = follower.snapshot, follower.freshness
    lag = None
    if seen.ends:
        offsets = snapshot.position.offsets
        lag = {str(at): max(0, end - offsets.get(at, 0)) for at, end in sorted(seen.ends.items())}
    rates = follower.history.rate(now)
    speed, behind = sum(rates.values()), sum(lag.values()) if lag else 0
    healthy, verdict = _verdict(seen, fresh.error, behind, speed)
    return Status(
        application=snapshot.application,
        state="PAUSED" if seen.paused else seen.state,
        verdict=verdict,
        healthy=healthy,
        batch=snapshot.batch,
        epoch=snapshot.epoch,
        clock=snapshot.clock,
        age=fresh.age(now),
        delivered=snapshot.delivered if seen.delivered is None else seen.delivered,
        rates=rates,
        lag=lag,
        catch_up=behind / speed if behind and speed else None,
        dropped=snapshot.dropped,
        state_bytes=sum(snapshot.sizes.values()),
        error=seen.error or fresh.error,
    )


def _verdict(seen: Observation, trouble: str | None, behind: int, speed: float) -> tuple[bool, str]:
    if seen.error is not None or seen.state == "ERROR":
        return False, f"Stopped by an error: {seen.error or 'see the log'}"
    if trouble is not None:
        return False, f"The checkpoint cannot be read: {trouble}"
    if seen.paused:
        return True, "Paused: nothing is processed until it is resumed."
    if seen.state in {"CREATED", "REBALANCING"}:
        return True, "Starting: it takes over its checkpoint."
    if seen.state in {"NOT_RUNNING", "PENDING_SHUTDOWN"}:
        return True, "Not running."
    if seen.state == "UNKNOWN":
        return False, "Silent: its last sign of life is older than it should be. It was killed, or cannot write."
    if behind and not speed:
        return False, f"Stuck: {behind} records wait, and none was processed in the last 10 seconds."
    if behind > KEEPS_UP * speed:
        return True, f"Catching up: {behind} records wait."
    if behind:
        return True, f"Healthy: it keeps up; {behind} records wait, {behind / speed:.1f} seconds of work."
    return True, "Healthy: everything that is in the log has been processed." if seen.ends else "Healthy."


def batches_of(follower: Follower, seen: Observation, last: int = 120) -> list[dict[str, Any]]:
    """The last batches, for a strip of time."""
    return [
        {
            "number": note.number,
            "clock": note.clock,
            "records": sum(follower.history.records(note.number).values()),
            "tasks": note.tasks,
            "state_bytes": note.state_bytes,
            "outbox_bytes": note.outbox_bytes,
            "carried": note.carried,
            "phases": dict(seen.phases.get(note.number, {})),
        }
        for note in follower.history.notes()[-last:]
    ]
