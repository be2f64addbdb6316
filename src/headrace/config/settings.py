"""Every setting of an application: one table, and the object that holds the values.

The fields of `Config` are the table. A row gives the name (an underscore for each dot of Kafka Streams' name), the
type, the default, the function that parses what a user gives, the meaning, and the module that reads the setting.
`tests/config/test_settings_table.py` fails for a row that its module does not read.

A setting that only one trigger reads names the trigger. A start with the other trigger says in the log that the setting
has no effect.

Three kinds of names are not in the table: `OTHER_NAMES` are older names of settings, `WITHOUT_EFFECT` are settings of
Kafka Streams that mean nothing here (each is named once in the log, with the reason), and the settings of Kafka's
clients (`CLIENT_PREFIXES`), which `Config.client_settings` passes on to them.

Environment variables give settings, too: `HEADRACE_COMMIT_INTERVAL_MS` is `commit.interval.ms`.
"""

# ruff: noqa: RUF009 - setting() returns a dataclass field

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from headrace.config import parsing
from headrace.config.parsing import Guarantee, Handler, StoreKind, Trigger
from headrace.config.properties import read_properties
from headrace.errors import ConfigError
from headrace.secrets import mask_settings

_log = logging.getLogger(__name__)
_MB = 1024 * 1024


def setting(
    default: Any, parse: Callable[[Any], Any], meaning: str, read_by: str, trigger: Trigger | None = None
) -> Any:
    """One row of the table, as a field of `Config`. `trigger` is the only one that reads the setting."""
    metadata = {"parse": parse, "meaning": meaning, "read_by": read_by, "trigger": trigger}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config:
    """The settings of one application, frozen.

    `default_key_serde`, `default_value_serde` and `default_timestamp_extractor` hold what was given: an object, or the
    name of a Kafka class. `extra` holds every setting that is not in the table, under the name that was given.

    >>> config = Config.of({"commit.interval.ms": "500"}, emit_interval_ms=0)
    >>> config.commit_interval_ms, config.emit_interval_ms, config.num_partitions
    (500, 0, 1)
    """

    application_id: str | None = setting(
        None,
        parsing.application_id,
        "the name of the application, of its checkpoint and of its deliveries",
        "spark.topics",
    )
    auto_create_topics_enable: bool = setting(
        True,
        parsing.yes_or_no,
        "create topics that the topology names; false: a missing one is an error",
        "spark.topics",
    )
    auto_offset_reset: str | int = setting(
        "earliest", parsing.offset_reset,
        "where to start in a topic without a position: earliest, latest, none or by_duration:PT…", "spark.topics",
    )  # fmt: skip
    batch_max_bytes: int = setting(
        64 * _MB, parsing.positive, "how many bytes of a partition one batch reads at most", "spark.batch_planner"
    )
    batch_max_records: int = setting(
        200_000, parsing.positive, "how many records of a partition one batch reads at most", "spark.batch_planner"
    )
    bootstrap_servers: str | None = setting(
        None, parsing.text, "the log: HOST:PORT of Kafka brokers, or file:DIRECTORY", "spark.job"
    )
    checkpoint_keep_batches: int = setting(
        10, parsing.positive,
        "how many batches the checkpoint keeps at least: for trace, replay-batch and queries as of an earlier batch",
        "spark.run",
    )  # fmt: skip
    checkpoint_max_deltas: int = setting(
        16, parsing.positive, "how many deltas of a task's state the checkpoint has at most before they are merged",
        "spark.run",
    )  # fmt: skip
    commit_interval_ms: int | None = setting(
        None, parsing.milliseconds,
        "how often, at most, a batch starts; not set: whenever records have arrived (micro-batch: 100)",
        "spark.batch_planner",
    )  # fmt: skip
    dashboard_sample_records: int = setting(
        5,
        parsing.whole,
        "how many of the last records of a topic the dashboard shows; 0: none",
        "spark.slot_runner",
    )
    default_key_serde: object = setting(
        None, parsing.as_given, "the serde of keys that have none: an object, or the name of Kafka's class",
        "runtime.serdes",
    )  # fmt: skip
    default_timestamp_extractor: object = setting(
        None, parsing.as_given, "where the time of a record comes from", "runtime.compile"
    )
    default_value_serde: object = setting(
        None, parsing.as_given, "the serde of values that have none: an object, or the name of Kafka's class",
        "runtime.serdes",
    )  # fmt: skip
    delivery_job_min_bytes: int = setting(
        64 * _MB, parsing.positive, "from how many bytes on the slots, not the driver, deliver outputs to Kafka",
        "spark.run",
    )  # fmt: skip
    deserialization_exception_handler: Handler = setting(
        "fail", parsing.handler, "what happens to a record that cannot be decoded: fail, continue or dead_letter",
        "runtime.serdes",
    )  # fmt: skip
    dsl_store_format: str = setting(
        "DEFAULT", parsing.store_format,
        "DEFAULT, PLAIN or HEADERS: with HEADERS the results of cached session windows have no headers", "runtime.task",
    )  # fmt: skip
    dsl_store_suppliers_class: StoreKind = setting(
        "persistent", parsing.store_kind, "where the stores of the DSL are: persistent or memory", "runtime.task"
    )
    dropped_records_topic_name: str | None = setting(
        None, parsing.text, "the topic for records that operators drop, with the reason and the operator in headers",
        "runtime.task",
    )  # fmt: skip
    emit_interval_ms: int = setting(
        1000, parsing.milliseconds,
        "how often, by the wall clock, closed windows and unmatched outer-join records are emitted", "runtime.task",
    )  # fmt: skip
    ensure_explicit_internal_resource_naming: bool = setting(
        False,
        parsing.yes_or_no,
        "true: a store or internal topic with a generated name is an error",
        "topology.builder",
    )
    errors_dead_letter_queue_topic_name: str | None = setting(
        None, parsing.text, "the topic for records that fail, where a handler says dead_letter", "runtime.serdes"
    )
    log_record_values: bool = setting(
        False, parsing.yes_or_no,
        "true: log lines have the messages of exceptions about records, which may quote keys and values",
        "runtime.serdes",
    )  # fmt: skip
    max_record_processing_ms: int = setting(
        300_000, parsing.milliseconds,
        "how long your functions may work on one record before it fails, see processing.exception.handler; 0: any time",
        "spark.slot_runner",
    )  # fmt: skip
    max_task_idle_ms: int = setting(
        0, parsing.any_whole, "how long a task waits for an input that has no records yet", "spark.batch_planner"
    )
    num_partitions: int = setting(1, parsing.positive, "how many partitions a created topic has", "spark.topics")
    num_standby_replicas: int = setting(
        0, parsing.whole, "how many copies of each task's state other hosts keep ready, for the loss of a slot",
        "spark.real_time", "real-time",
    )  # fmt: skip
    num_stream_threads: int | None = setting(
        None, parsing.positive, "how many slots run tasks at the same time; not set: one for each core", "spark.run"
    )
    processing_trigger: Trigger = setting(
        "real-time", parsing.trigger, "real-time: slots that stay alive; micro-batch: a Spark job for every batch",
        "spark.run",
    )  # fmt: skip
    schema_registry_url: str | None = setting(
        None, parsing.text, "the schema registry of serdes that name none: http://HOST:PORT, or mock://NAME for tests",
        "runtime.serdes",
    )  # fmt: skip
    slot_bind_address: str | None = setting(
        None, parsing.text,
        "the address that slots listen on; not set: SPARK_LOCAL_IP, or the one by which they reach the driver",
        "spark.real_time", "real-time",
    )  # fmt: skip
    slot_lease_ms: int = setting(
        10_000,
        parsing.positive,
        "after how many ms without a heartbeat a slot is replaced",
        "spark.real_time",
        "real-time",
    )
    slot_ports: tuple[int, int] | None = setting(
        None,
        parsing.ports,
        "the ports that slots listen on, as 7100-7199; not set: any free one",
        "spark.real_time",
        "real-time",
    )
    slots_free_cores: int = setting(
        1, parsing.whole,
        "cores that slots leave to other jobs, on a cluster or in a session that was not made by Headrace", "spark.job",
    )  # fmt: skip
    driver_advertised_address: str | None = setting(
        None,
        parsing.text,
        "where slots on other hosts reach the driver; not set: spark.driver.host",
        "spark.real_time",
        "real-time",
    )
    driver_bind_address: str | None = setting(
        None, parsing.text, "the address that the driver listens on for slots", "spark.real_time", "real-time"
    )
    driver_ports: tuple[int, int] | None = setting(
        None, parsing.ports, "the ports that the driver listens on for slots, as 7000-7099; not set: any free one",
        "spark.real_time", "real-time",
    )  # fmt: skip
    processing_exception_handler: Handler = setting(
        "fail", parsing.handler, "what happens when a function of yours raises: fail, continue or dead_letter",
        "runtime.serdes",
    )  # fmt: skip
    processing_exception_handler_global_enabled: bool = setting(
        False, parsing.yes_or_no, "true: processing.exception.handler applies to processors of global stores too",
        "runtime.serdes",
    )  # fmt: skip
    processing_guarantee: Guarantee = setting(
        "exactly_once", parsing.guarantee, "exactly_once or at_least_once", "spark.run"
    )
    production_exception_handler: Handler = setting(
        "fail", parsing.handler, "what happens to a result that cannot be written: fail, continue or dead_letter",
        "runtime.serdes",
    )  # fmt: skip
    receipt_max_bytes: int = setting(
        262_144, parsing.whole, "how large the results of a task in its receipt may be; larger ones go by file",
        "spark.slot_runner",
    )  # fmt: skip
    replication_factor: int = setting(
        -1, parsing.replication_factor, "how many copies Kafka keeps of a created topic; -1: the broker's default",
        "config.settings",
    )  # fmt: skip
    sink_backlog_max_batches: int = setting(
        100, parsing.positive, "how many batches a sink may lack, because its target is away, before batches wait",
        "spark.run",
    )  # fmt: skip
    sink_retry_backoff_max_ms: int = setting(
        10_000, parsing.positive, "the longest pause before the target of a sink that is away is asked again",
        "spark.run",
    )  # fmt: skip
    state_cleanup_delay_ms: int = setting(
        600_000, parsing.milliseconds,
        "how long the local state of tasks that a host no longer has is kept after its last use",
        "spark.job",
    )  # fmt: skip
    state_dir: str | None = setting(
        None, parsing.text, "where the local copies of the state are; none: ~/.local/state/headrace on each host",
        "spark.job",
    )  # fmt: skip
    statestore_cache_max_bytes: int = setting(
        10 * _MB, parsing.whole, "how much is cached in front of tables; 0: every update is passed on", "runtime.task"
    )
    stream_time_scope: str = setting(
        "task", parsing.time_scope, "task, or application: all tasks see the latest time of any", "spark.batch_planner"
    )
    topology_optimization: frozenset[str] = setting(
        frozenset(), parsing.optimization,
        "none, all, or names of optimizations: for a topology that build() made without optimize=", "topology.builder",
    )  # fmt: skip
    windowstore_changelog_additional_retention_ms: int = setting(
        86_400_000, parsing.milliseconds,
        "how much longer than the store the changelog topics that write-changelogs creates keep windows",
        "checkpoint.changelog_export",
    )  # fmt: skip
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __repr__(self) -> str:
        """The settings that differ from their defaults, with passwords and tokens masked.

        >>> Config.of({"num.partitions": 3, "sasl.password": "secret"})
        Config(num.partitions=3, sasl.password=***)
        """
        return f"Config({', '.join(f'{name}={value}' for name, value in mask_settings(self.changed).items())})"

    @property
    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults, by dotted names. Passwords and tokens are not masked.

        >>> Config.of(num_partitions=3).changed
        {'num.partitions': 3}
        """
        given = {row: getattr(self, row.name) for row in _TABLE.values()}
        changed = {row.name.replace("_", "."): value for row, value in given.items() if value != row.default}
        return {**changed, **self.extra}

    @classmethod
    def names(cls) -> frozenset[str]:
        """The settings of the table, as keywords.

        >>> "commit_interval_ms" in Config.names()
        True
        """
        return frozenset(_TABLE)

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any] | str | Path | None = None,
        /,
        *,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Self:
        """The configuration from a mapping with dotted names or a `.properties` file, and from keywords, which win.

        `environment` has the lowest priority: `HEADRACE_COMMIT_INTERVAL_MS` is `commit.interval.ms`.

        >>> Config.of({"num.partitions": 3}, environment={"HEADRACE_NUM_PARTITIONS": "8"}).num_partitions
        3
        >>> Config.of({"num.partitons": 3})
        Traceback (most recent call last):
        ...
        headrace.errors.ConfigError: there is no setting 'num.partitons': did you mean 'num.partitions'?
        """
        parsed: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        surroundings = settings_in(environment or {}, [*_FIELDS, *WITHOUT_EFFECT], CLIENT_PREFIXES)
        for given in (surroundings, settings_of(settings), options):
            for name, value in given.items():
                known = _FIELDS.get(name.replace("_", "."))
                if known is None:
                    extra[name] = value
                elif value is not None:
                    parsed[known] = _parsed(name, value, _TABLE[known].metadata["parse"])
        for name in extra:
            _check_extra(name)
        config = cls(**parsed, extra=MappingProxyType(extra))
        _check_dead_letters(config)
        return config

    @property
    def client_settings(self) -> dict[str, Any]:
        """The settings for the clients of a Kafka log: TLS, SASL, timeouts, and the replication factor of new topics.

        >>> Config.of({"security.protocol": "SSL"}).client_settings
        {'security.protocol': 'SSL', 'replication.factor': -1}
        """
        return {**self.extra, "replication.factor": self.replication_factor}


_TABLE: dict[str, Field[Any]] = {row.name: row for row in fields(Config) if row.name != "extra"}

# Older names of Kafka Streams, and names of its internals that mean the same.
OTHER_NAMES = {
    "cache.max.bytes.buffering": "statestore_cache_max_bytes",
    "default.deserialization.exception.handler": "deserialization_exception_handler",
    "default.dsl.store": "dsl_store_suppliers_class",
    "default.production.exception.handler": "production_exception_handler",
    "key.serde": "default_key_serde",
    "value.serde": "default_value_serde",
    "timestamp.extractor": "default_timestamp_extractor",
    "..emit.interval.ms.kstreams.outer.join.spurious.results.fix..": "emit_interval_ms",
    "..emit.interval.ms.kstreams.windowed.aggregation..": "emit_interval_ms",
}
_FIELDS = {name.replace("_", "."): name for name in _TABLE} | OTHER_NAMES

_NO_CLIENTS = "Spark schedules the tasks, so that there is no consumer group with members, threads or assignors"
_NO_ROCKSDB = "stores are kept in LMDB, not in RocksDB"
_NO_METRICS = "metrics are always recorded; `headrace run --web` serves them"
_NO_STANDBY = "num.standby.replicas says how many standbys there are; a slot gets a task when it has a recent copy"
_NO_WINDOWED_CLASS = "a windowed serde is an object here: serde.windowed(inner, size)"
# Settings of Kafka Streams that mean nothing here, with the reason.
WITHOUT_EFFECT = {
    "acceptable.recovery.lag": _NO_STANDBY,
    "allow.os.group.write.access": "local state belongs to the user who runs the application",
    "application.server": "every instance answers for all keys: it reads the checkpoint",
    "buffered.records.per.partition": "a batch reads as much as batch.max.records and batch.max.bytes allow",
    "built.in.metrics.version": _NO_METRICS,
    "client.tag.": _NO_STANDBY,
    "config.providers": "the settings are read as they are; take secrets from the environment (HEADRACE_…)",
    "default.client.supplier": "the clients are Headrace's own",
    "default.list.key.serde.inner": "a serde of lists is an object here: serde.list_of(inner)",
    "default.list.key.serde.type": "a serde of lists is an object here: serde.list_of(inner)",
    "default.list.value.serde.inner": "a serde of lists is an object here: serde.list_of(inner)",
    "default.list.value.serde.type": "a serde of lists is an object here: serde.list_of(inner)",
    "enable.metrics.push": _NO_METRICS,
    "group.instance.id": _NO_CLIENTS,
    "group.protocol": _NO_CLIENTS,
    "heartbeat.interval.ms": _NO_CLIENTS,
    "internal.leave.group.on.close": _NO_CLIENTS,
    "log.summary.interval.ms": _NO_METRICS,
    "max.poll.interval.ms": _NO_CLIENTS,
    "max.poll.records": "a batch reads as much as batch.max.records and batch.max.bytes allow",
    "max.warmup.replicas": _NO_STANDBY,
    "metric.reporters": _NO_METRICS,
    "metrics.num.samples": _NO_METRICS,
    "metrics.recording.level": _NO_METRICS,
    "metrics.sample.window.ms": _NO_METRICS,
    "partition.assignment.strategy": _NO_CLIENTS,
    "partition.grouper": _NO_CLIENTS,
    "poll.ms": "commit.interval.ms says how often a batch starts",
    "probing.rebalance.interval.ms": _NO_CLIENTS,
    "processor.wrapper.class": "processors are not wrapped",
    "rack.aware.assignment.non_overlap_cost": _NO_CLIENTS,
    "rack.aware.assignment.strategy": _NO_CLIENTS,
    "rack.aware.assignment.tags": _NO_CLIENTS,
    "rack.aware.assignment.traffic_cost": _NO_CLIENTS,
    "repartition.purge.interval.ms": "repartitioned records go from slot to slot, or through Spark, not by topics",
    "rocksdb.config.setter": _NO_ROCKSDB,
    "session.timeout.ms": _NO_CLIENTS,
    "statestore.uncommitted.max.bytes": "the state of a batch is kept until the batch is committed",
    "task.assignor.class": _NO_CLIENTS,
    "task.timeout.ms": "default.api.timeout.ms says how long a call to Kafka is retried",
    "topic.": "internal topics are not in the log",
    "transactional.id": "Headrace names its transactions after the application",
    "upgrade.from": "an upgrade needs no rolling restart: stop the application, start the new version",
    "window.size.ms": _NO_WINDOWED_CLASS,
    "windowed.inner.class.serde": _NO_WINDOWED_CLASS,
    "windowed.inner.deserializer.class": _NO_WINDOWED_CLASS,
    "windowed.inner.serializer.class": _NO_WINDOWED_CLASS,
}
# Settings of Kafka's clients. Those that all kinds of clients share need no prefix; the others need one.
SHARED_BY_CLIENTS = (
    "broker.", "client.", "connections.", "enable.sasl.", "enable.ssl.", "metadata.", "reconnect.", "sasl.",
    "security.", "socket.", "ssl.",
)  # fmt: skip
CLIENT_PREFIXES = (
    "admin.", "consumer.", "producer.", "schema.registry.", "default.api.timeout.ms", *SHARED_BY_CLIENTS
)  # fmt: skip
_CLIENT_ONLY = frozenset((
    "acks", "auto.commit.interval.ms", "batch.size", "buffer.memory", "check.crcs", "compression.type",
    "delivery.timeout.ms", "enable.auto.commit", "enable.idempotence", "fetch.max.bytes", "fetch.max.wait.ms",
    "fetch.min.bytes", "interceptor.classes", "isolation.level", "linger.ms", "max.block.ms",
    "max.in.flight.requests.per.connection", "max.partition.fetch.bytes", "max.request.size", "partitioner.class",
    "receive.buffer.bytes", "request.timeout.ms", "retries", "retry.backoff.max.ms", "retry.backoff.ms",
    "send.buffer.bytes", "transaction.timeout.ms",
))  # fmt: skip
_named: set[str] = set()  # settings without effect and unknown variables that this process has named in the log


def settings_of(given: Mapping[str, Any] | str | Path | None) -> Mapping[str, Any]:
    """Settings as a mapping, whether they were given as one or as the path of a `.properties` file."""
    return read_properties(given) if isinstance(given, (str, Path)) else given or {}


def field_of(name: str) -> str:
    """The keyword of a setting; the name itself if no setting of Headrace has it.

    >>> field_of("num.stream.threads"), field_of("sasl.username")
    ('num_stream_threads', 'sasl.username')
    """
    return _FIELDS.get(name.replace("_", "."), name)


def client_settings(given: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """The settings for the clients of a Kafka log, from a mapping or a `.properties` file.

    A setting that no client has is named once in the log; one that looks misspelt is an error.

    >>> client_settings({"security.protocol": "SASL_SSL"})
    {'security.protocol': 'SASL_SSL'}
    >>> client_settings({"securty.protocol": "SASL_SSL"})
    Traceback (most recent call last):
    ...
    headrace.errors.ConfigError: there is no setting 'securty.protocol': did you mean 'security.protocol'?
    """
    known = {name: value for name, value in settings_of(given).items() if value is not None}
    for name in known:
        if name.replace("_", ".") not in _FIELDS:
            _check_extra(name)
        elif name not in ("bootstrap.servers", "replication.factor", "schema.registry.url"):
            name_once(name, "it is a setting of an application, not of a client")
    return known


def client_settings_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of Kafka's clients that environment variables give.

    >>> client_settings_in({"HEADRACE_SASL_PASSWORD": "secret", "HEADRACE_NUM_PARTITIONS": "3"})
    {'sasl.password': 'secret'}
    """
    found = settings_in(environment, [*_FIELDS, *WITHOUT_EFFECT], CLIENT_PREFIXES)
    return {name: value for name, value in found.items() if name not in _FIELDS and name.startswith(CLIENT_PREFIXES)}


def name_settings_of_other_trigger(config: Config) -> None:
    """Says in the log which settings have no effect because only the trigger reads them that does not run."""
    for name in config.changed:
        row = _TABLE.get(field_of(name))
        if row is not None and row.metadata["trigger"] not in (None, config.processing_trigger):
            name_once(
                name,
                f"only the {row.metadata['trigger']} trigger reads it, and processing.trigger is "
                f"{config.processing_trigger}",
            )


def name_once(name: str, reason: str) -> None:
    """Says in the log that a setting has no effect, once in the life of the process."""
    if name not in _named:
        _named.add(name)
        _log.warning("the setting %s has no effect: %s", name, reason)


def _parsed(name: str, value: Any, parse: Callable[[Any], Any]) -> Any:
    try:
        return parse(value)
    except ValueError as problem:
        raise ConfigError(f"{name}={value!r} cannot be used: {problem}") from None


def _check_extra(name: str) -> None:
    """Checks a setting that is not in the table: logs once if it has no effect, and raises if it looks misspelt."""
    if reason := _reason(name):
        name_once(name, reason)
    elif name in _CLIENT_ONLY:
        name_once(name, f"give it to one kind of client, as consumer.{name}, producer.{name} or admin.{name}")
    elif not name.startswith(CLIENT_PREFIXES):
        guess = get_close_matches(name, [*_FIELDS, *WITHOUT_EFFECT, *_SHARED_EXAMPLES], 1, 0.85)
        if guess:
            raise ConfigError(f"there is no setting {name!r}: did you mean {guess[0]!r}?")
        name_once(name, "nothing here reads it (`headrace config` lists the settings)")


def _reason(name: str) -> str | None:
    if name in WITHOUT_EFFECT:
        return WITHOUT_EFFECT[name]
    return next((why for start, why in WITHOUT_EFFECT.items() if start.endswith(".") and name.startswith(start)), None)


# Common settings of clients, which `_check_extra` suggests for a misspelt name.
_SHARED_EXAMPLES = (
    "client.id", "default.api.timeout.ms", "sasl.mechanism", "sasl.password", "sasl.username", "security.protocol",
    "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
)  # fmt: skip


def _check_dead_letters(config: Config) -> None:
    if config.errors_dead_letter_queue_topic_name is None:
        for name in ("deserialization", "processing", "production"):
            if getattr(config, f"{name}_exception_handler") == "dead_letter":
                raise ConfigError(
                    f"{name}.exception.handler='dead_letter' needs a topic to send to: "
                    "set errors.dead.letter.queue.topic.name"
                )


# ---------------------------------------------------------------------------------------------- environment variables
PREFIX = "HEADRACE_"
# Variables with the same prefix that are not settings of an application: options of commands, tests and tools.
OF_TOOLS = frozenset(
    PREFIX + name
    for name in (
        "BROKER", "CHECKPOINT", "DEBUG", "EXAMPLES", "FAULTS", "FUZZ_DECODERS", "FUZZ_KIND_SECONDS", "FUZZ_SECONDS",
        "HOME", "KEYS", "LOG", "NO_SKIPS", "PROFILE", "SEED", "STEPS", "TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN",
        "TOKEN_FILE", "URL", "WITHOUT_BROWSER",
    )
)  # fmt: skip


def settings_in(
    environment: Mapping[str, str], names: Iterable[str], client_prefixes: tuple[str, ...]
) -> dict[str, str]:
    """The settings that environment variables give; a variable that looks like a misspelt one is named once in the log.

    >>> variables = {"HEADRACE_NUM_PARTITIONS": "3", "HEADRACE_SASL_USERNAME": "ada", "HOME": "/root"}
    >>> settings_in(variables, ["num.partitions"], ("sasl.",))
    {'num.partitions': '3', 'sasl.username': 'ada'}
    """
    known = {variable_of(name): name for name in names}
    found: dict[str, str] = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in OF_TOOLS:
            continue
        dotted = variable.removeprefix(PREFIX).lower().replace("_", ".")
        if variable in known:
            found[known[variable]] = value
        elif dotted.startswith(client_prefixes):
            found[dotted] = value
        else:
            _warn_of_variable(variable, [*known, *OF_TOOLS])
    return found


def variable_of(name: str) -> str:
    """The environment variable of a setting.

    >>> variable_of("commit.interval.ms")
    'HEADRACE_COMMIT_INTERVAL_MS'
    """
    return PREFIX + name.strip(".").replace(".", "_").upper()


def _warn_of_variable(variable: str, known: list[str]) -> None:
    if variable in _named:
        return
    _named.add(variable)
    guess = get_close_matches(variable, known, 1, 0.8)
    hint = f"did you mean {guess[0]}?" if guess else "`headrace config` lists the settings"
    _log.warning("the environment variable %s is no setting: %s", variable, hint)
