"""The description of an application: `Setup` as its user gives it, `Job` as it is planned and sent to the processes.

`Application` makes a `Setup` of its arguments and settings. A run makes a `Job` of the setup, and every process that
runs tasks loads the job once and keeps it: `ship_job` writes the job to a file, `pickle_job` makes it bytes. Such a
process returns an error with `encode_failure`, and the driver raises it with `decode_failure`.

Loading a pickle runs code that is in it. So a process loads only pickles that the driver or a slot has sent over an
authenticated connection, or that have the digest that Spark has brought to the process (`load_job`).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from headrace.checkpoint.backfill_checkpoint import Progress, ignore_progress
from headrace.checkpoint.fingerprint import mark_old_values
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.manifest import Changelog
from headrace.checkpoint.steps import AtStep, ignore_step
from headrace.config import Config, parsing
from headrace.config.settings import name_once
from headrace.directories import check_directory, check_folder, state_directory, write_file
from headrace.errors import ConfigError, StreamsError
from headrace.extras import lazy_extra
from headrace.hints import guess, snake_case
from headrace.model.ids import TaskId, TopicPartition
from headrace.secrets import has_credentials, is_secret, mask_secrets
from headrace.spark.topics import SourceStart
from headrace.spark.wire_format import Failed
from headrace.topology.graph import Graph
from headrace.topology.nodes import Process, Sink, Source, TableTransformValues
from headrace.topology.subtopologies import Plan

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

pyspark = lazy_extra("pyspark", "spark")  # importing it takes a second, which a test of a topology need not spend
cloudpickle = lazy_extra("pyspark.cloudpickle", "spark")


class PartOfRun(NamedTuple):
    """A run that fills stores of the application from history. Nothing that it writes reaches the log.

    `tasks` are the task counts of the application's sub-topologies, which the run uses too.
    """

    tasks: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A topology with its settings, and where its log, its checkpoint and its local state are."""

    application_id: str
    graph: Graph
    config: Config
    log: str = field(repr=False)  # its address and that of the checkpoint may have a password
    checkpoint: str = field(repr=False)
    state_dir: str | None  # None: the default of each host
    at_step: AtStep = ignore_step
    spark: Any = None  # a SparkSession; without one Headrace makes its own
    master: str | None = None
    backfill: bool = False  # whether new stores are filled from history
    on_backfill: Callable[[Progress], None] = ignore_progress
    starts: Mapping[str, SourceStart] = field(default_factory=dict[str, SourceStart])  # where new sources begin
    part: PartOfRun | None = None  # set if this run fills stores of another run

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that were given, passwords and tokens included."""
        places = {"application.id": self.application_id, "log": self.log, "checkpoint": self.checkpoint}
        return {**self.config.changed, **places, "state.dir": self.state_dir}


# The options of Application that are no settings, or are settings under a shorter name.
EXPLICIT_OPTIONS = (
    "log", "checkpoint", "guarantee", "commit_interval", "trigger", "spark", "master", "backfill", "starts", "config",
)  # fmt: skip
BACKFILL_STATE = "+backfill"  # is appended to the application id; no id has a plus sign


def make_config(
    application_id: str,
    config: Mapping[str, Any] | str | Path | None,
    options: Mapping[str, Any],
    *,
    guarantee: str | None,
    commit_interval: int | timedelta | None,
    trigger: str | None = None,
) -> Config:
    """The settings of an application: keywords win over `config`, which wins over the environment."""
    unknown = sorted(options.keys() - Config.names())
    if unknown:
        known = [*Config.names(), *EXPLICIT_OPTIONS]
        guesses = [found for found in (guess(snake_case(option), known) for option in unknown) if found is not None]
        hint = f": did you mean {', '.join(f'{option}=' for option in guesses)}?" if guesses else ""
        words = ", ".join(f"{option}=" for option in unknown)
        listed = ", ".join(f"{option}=" for option in EXPLICIT_OPTIONS)
        raise TypeError(
            f"Application() has no option{'s' * (len(unknown) > 1)} {words}{hint} "
            f"(options: {listed} and every setting with underscores; `headrace config` lists them)"
        )
    given = {
        "processing_guarantee": guarantee,
        "commit_interval_ms": commit_interval,
        "processing_trigger": trigger,
    }
    named = {name: value for name, value in given.items() if value is not None}
    return Config.of(config, environment=os.environ, **{**options, **named, "application_id": application_id})


def log_address(log: str | None, config: Config) -> str:
    """The address of the log: the one given, else `bootstrap.servers`, which may be `file:DIRECTORY` too.

    >>> log_address(None, Config.of({"bootstrap.servers": "one:9092,two:9092"}))
    'kafka://one:9092,two:9092'
    >>> log_address(None, Config.of({"bootstrap.servers": "file:///var/log"}))
    'file:///var/log'
    """
    address = config.bootstrap_servers if log is None else log
    if address is None:
        raise ConfigError("an application needs a log: log='file:DIRECTORY', or log='kafka://HOST:PORT'")
    if address.startswith("file:"):
        if config.replication_factor > 1:
            name_once("replication.factor", "the embedded log has one copy")
        return address if address.startswith("file://") else f"file:{absolute(address)}"
    return address if log is not None or "://" in address else f"kafka://{address}"


def absolute(place: str) -> str:
    """Makes a path absolute, for processes with another working directory; URLs stay as they are.

    >>> absolute("s3://bucket/checkpoint")
    's3://bucket/checkpoint'
    """
    if "://" in place:
        return place
    return str(Path(place.removeprefix("file:")).expanduser().absolute())


def given_state_directory(config: Config) -> str | None:
    """The setting `state.dir` for all hosts: each of them resolves `~` and the default itself (`state_directory`).

    >>> given_state_directory(Config(state_dir="/var/lib/shop")), given_state_directory(Config(state_dir="~/shop"))
    ('/var/lib/shop', '~/shop')
    """
    given = config.state_dir
    return absolute(given) if given and not given.startswith("~") else given or None


def find_state(state: Path, application: str, *, suffix: str = "") -> Path | None:
    """Returns the local state of an application; None if there is none, or a symbolic link in its place.

    Raises an error if the state directory is one that an application would not use: it belongs to another user, or is
    a link of another user, or every user can write to it.
    """
    folder = state / (parsing.application_id(application) + suffix)
    if not os.path.lexists(state):
        return None
    check_directory(state)
    if folder.is_symlink() or not folder.is_dir():
        return None
    check_folder(folder)
    return folder


def remove_state(state: Path, application: str, *, suffix: str = "") -> None:
    """Removes the local state of an application. Whatever its id is, nothing outside the state directory is deleted.

    Links inside the directory of the application are removed, not followed.
    """
    folder = find_state(state, application, suffix=suffix)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def remove_old_state(job: Job) -> None:
    """Removes the local state of tasks that the application no longer has, `state.cleanup.delay.ms` after its last use.

    Only the local copies on this host go: the checkpoint has the state. With the real-time trigger the slots of each
    host also remove copies of tasks that have moved to other hosts (`standbys.LocalStateKeeper`).
    """
    copies = LocalCopies(job.local_state, job.checkpoint_id)
    copies.remove_unused(job.config.state_cleanup_delay_ms / 1000, time.time(), keep=job.all_tasks())


@dataclass(frozen=True)
class Job:
    """An application, planned: its graph, how many tasks each stage has, and where log, checkpoint and state lie."""

    application: str
    graph: Graph
    plan: Plan
    config: Config
    tasks: Mapping[int, int]  # by stage
    partitions: Mapping[str, int]  # of internal topics
    log: str
    checkpoint: str  # where it is
    state: str | None  # the local directory; None: the default of each host
    checkpoint_id: str = ""
    topics: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # topic ids: a topic that was deleted and created again has another id
    source_partitions: Mapping[str, int] = field(
        default_factory=dict[str, int]
    )  # of the topics that it reads, when it was planned
    changelogs: Mapping[str, Changelog] = field(
        default_factory=dict[str, Changelog]
    )  # that the first batch fills stores from
    grown_from: Mapping[int, int] = field(
        default_factory=dict[int, int]
    )  # by stage: its tasks before its source topics got more partitions
    stops: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])  # offsets where reading ends
    slots: int = 1  # Spark partitions of each level
    at_step: AtStep = ignore_step  # called at every step of a commit, in the process that takes it
    is_backfill: bool = False  # it fills stores from history, beside the state of the application

    @property
    def local_state(self) -> Path:
        """The directory of the local copies of this application's state, on this host."""
        return state_directory(self.state) / (self.application + BACKFILL_STATE * self.is_backfill)

    def reads(self, number: int, topic: str) -> bool:
        """True if a stage reads a topic of the log."""
        stage = self.plan.stages[number]
        return topic in stage.topics or any(re.fullmatch(pattern, topic) for pattern in stage.patterns)

    @property
    def global_topics(self) -> set[str]:
        sources = (self.graph.nodes[name] for name in self.plan.global_nodes)
        return {topic for source in sources if isinstance(source, Source) for topic in source.topics}

    @property
    def global_stage(self) -> int:
        """The stage number of the task that fills the global stores: the one after the last stage of the topology."""
        return len(self.plan.stages) - len(self.plan.readers)

    def nodes_of(self, number: int) -> tuple[str, ...]:
        return self.plan.global_nodes if number == self.global_stage else self.plan.stages[number].nodes

    def stores_of(self, number: int) -> set[str]:
        return {store for node in self.nodes_of(number) for store in self.graph.node_stores[node]}

    def with_checkpoint(self, ledger: Ledger, slots: int) -> Job:
        """Returns the job with the topics and changelogs of its checkpoint, and with at most one slot for each task."""
        slots = max(1, min(slots, sum(self.tasks.values())))
        topics, changelogs = dict(ledger.topics), dict(ledger.changelogs)
        known = replace(self, checkpoint_id=ledger.checkpoint, topics=topics, changelogs=changelogs, slots=slots)
        return replace(known, stops=dict(ledger.stops), graph=mark_old_values(self.graph, ledger.fingerprint))

    @cached_property
    def _slots(self) -> dict[TaskId, int]:
        return {task: place % self.slots for place, task in enumerate(self.all_tasks())}

    def all_tasks(self) -> list[TaskId]:
        return [TaskId(number, partition) for number, count in self.tasks.items() for partition in range(count)]

    def slot_of(self, task: TaskId) -> int:
        return self._slots[task]

    def level_of(self, task: TaskId) -> int:
        return 0 if task.subtopology == self.global_stage else self.plan.level_of(task.subtopology)

    def route(self, topic: str) -> tuple[int, int] | None:
        """The stage that reads an internal topic, and its partitions; None for a topic of the log."""
        name = topic.removeprefix(f"{self.application}-")
        for stage in self.plan.stages.values():
            if name in self.partitions and name in stage.inputs:
                return stage.number, self.partitions[name]
        return None

    def topics_written(self, number: int) -> list[str]:
        """The topics that a stage writes to; none if a function or a dead letter may choose another topic."""
        sinks = [node for name in self.nodes_of(number) if isinstance(node := self.graph.nodes[name], Sink)]
        topics = [node.topic for node in sinks if isinstance(node.topic, str)]
        letters = self.config.errors_dead_letter_queue_topic_name, self.config.dropped_records_topic_name
        if len(topics) < len(sinks) or any(letters):
            return []
        internal = self.graph.internal_topics
        return sorted({f"{self.application}-{topic}" if topic in internal else topic for topic in topics})

    @property
    def has_spark_sinks(self) -> bool:
        """True if a sink runs Spark jobs (`to_spark`)."""
        sinks = [node.target for node in self.graph.nodes.values() if isinstance(node, Sink) and node.target]
        return any(sink.needs_spark for sink in sinks)

    @property
    def free_cores(self) -> int:
        """How many cores the slots of the real-time trigger leave to other Spark jobs."""
        return max(self.config.slots_free_cores, int(self.has_spark_sinks))

    @property
    def has_processors(self) -> bool:
        """True if there may be punctuations, which are scheduled at the start and not at the first record."""
        return any(isinstance(node, Process | TableTransformValues) for node in self.graph.nodes.values())


def find_secrets(job: Job) -> list[str]:
    """Returns the parts of a job that have passwords or keys. A job goes to every process that runs its tasks."""
    found = sorted(filter(is_secret, job.config.client_settings))
    addresses = {"the address of the log": job.log, "the address of the checkpoint": job.checkpoint}
    found += [name for name, address in addresses.items() if has_credentials(address)]
    sinks = [node.target for node in job.graph.nodes.values() if isinstance(node, Sink) and node.target is not None]
    return found + [f"the sink {sink.label!r}" for sink in sinks if _has_secret(getattr(sink, "__dict__", {}))]


def _has_secret(fields: Mapping[str, Any]) -> bool:
    """
    >>> _has_secret({"dsn": "postgresql://me:pw@db/shop"}), _has_secret({"catalog": {"uri": "http://host"}})
    (True, False)
    """
    return any(
        (bool(value) and is_secret(name))
        or (isinstance(value, str) and has_credentials(value))
        or (isinstance(value, Mapping) and _has_secret(cast("Mapping[str, Any]", value)))
        for name, value in fields.items()
    )


def ship_job(spark: SparkSession, job: Job, folder: Path) -> str:
    """Writes a job to a new file, and copies the file to every host of the session. Returns the path for `load_job`."""
    path = write_job(pickle_job(spark.sparkContext, job), folder)
    if not is_local(spark.sparkContext):
        spark.sparkContext.addFile(path)
    return path


def write_job(pickled: bytes, folder: Path) -> str:
    """Writes a pickled job to a new file. The path, which Spark brings to workers, ends with the content's digest."""
    path = folder / f"job-{secrets.token_hex(8)}-{sha256(pickled).hexdigest()}"
    write_file(path, pickled)
    return str(path)


def pickle_job(context: SparkContext, job: Job) -> bytes:
    """Pickles a job for Spark's processes, with the user's own modules if the processes run on other hosts."""
    own = [] if is_local(context) else list(find_user_modules())
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(job)
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def load_job(path: str) -> Job:
    """Loads the job that `ship_job` wrote. A file with other content is not loaded."""
    file = find_file(path)
    pickled = file.read_bytes()
    if sha256(pickled).hexdigest() != path.rpartition("-")[2]:
        raise StreamsError(
            f"{file} is not the file that the driver has written, and is not loaded: another process has changed it. "
            "Look who can write there, and start the application again"
        )
    return cloudpickle.loads(pickled)


def find_file(path: str) -> Path:
    """Returns where a file that `ship_job` copied is on this host."""
    there = Path(path)
    return there if there.exists() else Path(pyspark.SparkFiles.get(there.name))


def is_local(context: SparkContext) -> bool:
    """True if all tasks run on this machine."""
    return str(context.master).startswith("local")


def find_user_modules() -> Iterator[ModuleType]:
    """Yields the imported modules that are not installed: a worker on another host could not import them."""
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not file.startswith(installed) and name.partition(".")[0] not in {"__main__", "headrace"}:
            yield module


def encode_failure(error: StreamsError) -> Failed:
    """Makes the message that carries an error to the driver."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickled = cloudpickle.dumps((error, error.__cause__))
        cloudpickle.loads(pickled)
    except Exception:  # noqa: BLE001 - the user's exception may fail to pickle in any way
        pickled = b""
    return Failed(str(error), trace, pickled, error.summary)


def decode_failure(failure: Failed) -> StreamsError:
    """Returns the error that a worker sent, with its cause."""
    trace = mask_secrets(failure.trace)
    if not failure.error:
        return StreamsError(f"{failure.text}\n{trace}", summary=failure.summary or failure.text)
    error, cause = cloudpickle.loads(failure.error)
    error.__cause__ = cause
    error.add_note(f"In the worker:\n{trace}")
    return error
