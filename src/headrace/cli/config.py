"""`headrace config`: every setting, what it is if nothing is said, and what it means."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from headrace.cli.options import AsJson
from headrace.cli.printing import show
from headrace.config import Config

MEANINGS = {
    "application.id": "the name of the application: of its checkpoint, and of its deliveries in the log",
    "auto.create.topics.enable": "make topics that the topology names and the log does not have; else that is refused",
    "auto.offset.reset": "where to begin in a topic without a position: earliest, latest, none or by_duration:PT…",
    "batch.max.bytes": "how many bytes of a partition a batch reads at most, going by the batch before",
    "batch.max.records": "how many records of a partition a batch reads at most",
    "bootstrap.servers": "the log: file:DIRECTORY, or the brokers of a Kafka cluster",
    "buffered.records.per.partition": "how many records of a partition wait in memory while others are older",
    "commit.interval.ms": "how often a batch is committed, at most",
    "dashboard.sample.records": "how many of the last records of every topic are shown; 0: none leave their task",
    "default.key.serde": "the serde of keys that have none: an object, or the name of Kafka's class",
    "default.timestamp.extractor": "where the time of a record comes from",
    "default.value.serde": "the serde of values that have none",
    "delivery.job.min.bytes": "how large the outputs of a batch are that a Spark job delivers to Kafka, in shares",
    "deserialization.exception.handler": "fail, continue or dead_letter: what happens to a record that is no record",
    "dsl.store.format": "DEFAULT, PLAIN or HEADERS: what stores of the DSL keep beside values",
    "dsl.store.suppliers.class": "persistent or memory: where the stores of the DSL live",
    "emit.interval.ms": "how often, by the wall clock, closed windows and unmatched records are looked for",
    "ensure.explicit.internal.resource.naming": "refuse stores and internal topics that have no name of their own",
    "errors.dead.letter.queue.topic.name": "the topic for records that failed, with dead_letter",
    "max.task.idle.ms": "how long a task waits for an input that has no records yet",
    "num.partitions": "how many partitions topics have that are made",
    "num.standby.replicas": "taken and not used: state is in the checkpoint",
    "num.stream.threads": "how many tasks run at once on this machine; without it, one for each core",
    "processing.exception.handler": "fail, continue or dead_letter: what happens when a function raises",
    "processing.exception.handler.global.enabled": "let global tables have that handler, too",
    "processing.guarantee": "exactly_once or at_least_once",
    "production.exception.handler": "fail, continue or dead_letter: what happens to a result that cannot be written",
    "receipt.max.bytes": "how large the results of a task may be to travel with its receipt; larger ones go by file",
    "replication.factor": "taken and not used: internal topics are not in the log",
    "state.cleanup.delay.ms": "how long a local copy of state that nobody uses is kept",
    "state.dir": "where local copies of the state lie",
    "statestore.cache.max.bytes": "how much is cached before tables; 0: every update is passed on",
    "stream.time.scope": "task, or application: all tasks see the latest time of any",
    "topology.optimization": "none, all, or names of optimizations",
    "window.size.ms": "the size of windows in keys that are read without one",
    "windowed.inner.class.serde": "the serde inside windowed keys that are read without one",
    "windowstore.changelog.additional.retention.ms": "how much longer than asked for windows are kept",
}


def settings() -> list[dict[str, Any]]:
    """A row for each setting."""
    return [
        {"setting": name, "default": _plain(_default(one)), "meaning": MEANINGS.get(name, "")}
        for one in fields(Config)
        if (name := one.name.replace("_", ".")) != "extra"
    ]


def config(as_json: AsJson = False) -> None:
    """All settings, with their defaults and what they mean."""
    show(settings(), ["setting", "default", "meaning"], as_json=as_json)


def _default(field: Any) -> Any:
    return None if field.default is MISSING else field.default


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return ",".join(sorted(map(str, value))) or "none"  # pyright: ignore[reportUnknownArgumentType]
    return value
