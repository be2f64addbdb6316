"""The settings of an application, in one frozen object."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from headrace.config import parsing
from headrace.config.parsing import Guarantee, Handler, StoreKind
from headrace.config.properties import read_properties
from headrace.errors import ConfigError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting under Kafka Streams' name, with an underscore for each dot, and some of our own.

    `default_key_serde`, `default_value_serde` and `default_timestamp_extractor` are kept as they were given: an object,
    or the name of a Kafka class. `extra` has what is not understood, under the names that were given.
    """

    application_id: str | None = None
    auto_create_topics_enable: bool = True  # topics that are named and not there
    auto_offset_reset: str | int = "earliest"  # or latest, none, by_duration:PT..., or so many ms back
    batch_max_records: int = 200_000  # of one partition, in one batch; ours
    batch_max_bytes: int = 64 * 1024 * 1024  # the same, as far as it can be told from the batch before; ours
    bootstrap_servers: str | None = None
    buffered_records_per_partition: int = 1000
    commit_interval_ms: int = 100
    dashboard_sample_records: int = 5  # the last of every topic that a task read and wrote, to be shown; 0: none; ours
    default_key_serde: object = None
    default_timestamp_extractor: object = None
    default_value_serde: object = None
    delivery_job_min_bytes: int = 64 * 1024 * 1024  # outputs of a batch that a Spark job delivers to Kafka; ours
    deserialization_exception_handler: Handler = "fail"
    dsl_store_format: str = "DEFAULT"
    dsl_store_suppliers_class: StoreKind = "persistent"
    emit_interval_ms: int = 1000
    ensure_explicit_internal_resource_naming: bool = False
    errors_dead_letter_queue_topic_name: str | None = None
    max_task_idle_ms: int = 0
    num_partitions: int = 1  # of topics that are created
    num_standby_replicas: int = 0
    num_stream_threads: int | None = None  # slots on this machine; None: one for each core
    processing_exception_handler: Handler = "fail"
    processing_exception_handler_global_enabled: bool = False
    processing_guarantee: Guarantee = "exactly_once"
    production_exception_handler: Handler = "fail"
    receipt_max_bytes: int = 262_144  # of what a task did that travel to the driver; more goes by file; ours
    replication_factor: int = -1
    state_cleanup_delay_ms: int = 600_000
    state_dir: str | None = None
    statestore_cache_max_bytes: int = 10_485_760
    stream_time_scope: str = "task"  # or application: all tasks see the latest time of any, as in the test driver; ours
    topology_optimization: frozenset[str] = frozenset()
    window_size_ms: int | None = None
    windowed_inner_class_serde: object = None
    windowstore_changelog_additional_retention_ms: int = 86_400_000
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def names(cls) -> frozenset[str]:
        """The settings that are understood, as keywords."""
        return frozenset(_READERS)

    @classmethod
    def of(cls, settings: Mapping[str, Any] | str | Path | None = None, /, **options: Any) -> Self:
        """A configuration of a mapping with dotted names or of a `.properties` file, and of keywords, which win.

        >>> Config.of({"statestore.cache.max.bytes": "0"}, emit_interval_ms=0).statestore_cache_max_bytes
        0
        """
        if isinstance(settings, (str, Path)):
            settings = read_properties(settings)
        understood: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, value in [*(settings or {}).items(), *options.items()]:
            setting = _FIELDS.get(name.replace("_", "."))
            if setting is None:
                extra[name] = value
            elif value is not None:
                understood[setting] = _read(name, value, _READERS[setting])
        _name_once(extra)
        config = cls(**understood, extra=MappingProxyType(extra))
        _check_dead_letters(config)
        return config


_READERS: dict[str, Callable[[Any], Any]] = {
    "application_id": parsing.text,
    "auto_create_topics_enable": parsing.yes_or_no,
    "auto_offset_reset": parsing.offset_reset,
    "batch_max_records": parsing.positive,
    "batch_max_bytes": parsing.positive,
    "bootstrap_servers": parsing.text,
    "buffered_records_per_partition": parsing.positive,
    "commit_interval_ms": parsing.milliseconds,
    "dashboard_sample_records": parsing.whole,
    "default_key_serde": parsing.as_given,
    "default_timestamp_extractor": parsing.as_given,
    "default_value_serde": parsing.as_given,
    "delivery_job_min_bytes": parsing.positive,
    "deserialization_exception_handler": parsing.handler,
    "dsl_store_format": parsing.store_format,
    "dsl_store_suppliers_class": parsing.store_kind,
    "emit_interval_ms": parsing.milliseconds,
    "ensure_explicit_internal_resource_naming": parsing.yes_or_no,
    "errors_dead_letter_queue_topic_name": parsing.text,
    "max_task_idle_ms": parsing.any_whole,
    "num_partitions": parsing.positive,
    "num_standby_replicas": parsing.whole,
    "num_stream_threads": parsing.positive,
    "processing_exception_handler": parsing.handler,
    "processing_exception_handler_global_enabled": parsing.yes_or_no,
    "processing_guarantee": parsing.guarantee,
    "production_exception_handler": parsing.handler,
    "receipt_max_bytes": parsing.whole,
    "replication_factor": parsing.any_whole,
    "state_cleanup_delay_ms": parsing.milliseconds,
    "state_dir": parsing.text,
    "statestore_cache_max_bytes": parsing.whole,
    "stream_time_scope": parsing.time_scope,
    "topology_optimization": parsing.optimization,
    "window_size_ms": parsing.positive,
    "windowed_inner_class_serde": parsing.as_given,
    "windowstore_changelog_additional_retention_ms": parsing.milliseconds,
}

# Names that Kafka Streams retired, and those of its internals that mean the same.
_OTHER_NAMES = {
    "cache.max.bytes.buffering": "statestore_cache_max_bytes",
    "default.deserialization.exception.handler": "deserialization_exception_handler",
    "default.dsl.store": "dsl_store_suppliers_class",
    "default.production.exception.handler": "production_exception_handler",
    "windowed.inner.deserializer.class": "windowed_inner_class_serde",
    "windowed.inner.serializer.class": "windowed_inner_class_serde",
    "..emit.interval.ms.kstreams.outer.join.spurious.results.fix..": "emit_interval_ms",
    "..emit.interval.ms.kstreams.windowed.aggregation..": "emit_interval_ms",
}
_FIELDS = {name.replace("_", "."): name for name in _READERS} | _OTHER_NAMES


def _read(name: str, value: Any, reader: Callable[[Any], Any]) -> Any:
    try:
        return reader(value)
    except ValueError as problem:
        raise ConfigError(f"{name}={value!r} cannot be used: {problem}") from None


# What is handed on to the clients of a Kafka log.
# What Kafka's clients share may stand without a prefix; the rest needs that of a kind of client.
SHARED_BY_CLIENTS = (
    "broker.", "client.", "connections.", "enable.sasl.", "enable.ssl.", "metadata.", "reconnect.", "sasl.",
    "security.", "socket.", "ssl.",
)  # fmt: skip
_OF_CLIENTS = ("admin.", "consumer.", "producer.", "default.api.timeout.ms", *SHARED_BY_CLIENTS)


def _name_once(extra: Mapping[str, Any]) -> None:
    unused = sorted(name for name in extra if not name.startswith(_OF_CLIENTS))
    if unused:
        _log.warning("settings without a meaning here, kept but not used: %s", ", ".join(unused))


def _check_dead_letters(config: Config) -> None:
    if config.errors_dead_letter_queue_topic_name is None:
        for name in ("deserialization", "processing", "production"):
            if getattr(config, f"{name}_exception_handler") == "dead_letter":
                raise ConfigError(
                    f"{name}.exception.handler='dead_letter' needs a topic to send to: "
                    "set errors.dead.letter.queue.topic.name"
                )
