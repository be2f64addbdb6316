"""Runs a source: reads it, and writes its records into a topic of the log together with the position, exactly once.

    TAKE_OVER ──▶ OPEN ──▶ RUNNING ──▶ STOPPED        an error of the log leads back to TAKE_OVER, one of the source
        ▲           ▲         │                       to OPEN, after a pause that grows from 0.1 to 30 seconds
        └───────────┴─────────┤
                              └──▶ FENCED, FAILED     another process runs the source; an error that no retry cures

Batches are delivered as those of an application are (`Log.deliver`): numbered, each with its marker. The batch has one
record more, the position, in the compacted topic `<id>-position`. A process takes a source over with a batch that has
only the name of its owner: from then on every batch of the process before is rejected, on Kafka because its producer is
fenced, in the embedded log because its number is taken. Only then the position is read.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

from headrace.checkpoint.steps import AtStep, ignore_step, step
from headrace.errors import (
    ConfigError,
    LogBusyError,
    LogCorruptedError,
    LogUnavailableError,
    ProducerFencedError,
    SerializationError,
    StreamsError,
    TopicExistsError,
    add_summary,
    summarize,
)
from headrace.log.protocol import Item, Log, Records
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import known_partition
from headrace.model.record import Headers
from headrace.query.status import SourceReport
from headrace.serde.json import JSON, json_of
from headrace.serde.protocol import Serde
from headrace.topology.connectors import (
    CountsPartitions,
    SourceBatch,
    SourcePosition,
    SourceReader,
    SourceRecord,
    SourceSpec,
)

TAKE_OVER, OPEN, READ, DELIVER, ACKNOWLEDGE = (
    "source takeover", "source open", "source read", "source delivery", "source acknowledgement"
)  # fmt: skip
SOURCE_STEPS = (TAKE_OVER, OPEN, READ, DELIVER, ACKNOWLEDGE)  # at which tests crash it

MAX_RECORDS = 10_000  # of a batch
READ_TIMEOUT = 0.5  # seconds that a read waits: so long `stop` waits at most
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0  # seconds between attempts
_FIRST_STEP = 64  # records of the position topic to look back at first
_VISIBLE = 60.0  # seconds until the cluster shows what was committed
_POSITION, _OWNER = b"position", b"owner"
_log = logging.getLogger(__name__)


class SourceState(StrEnum):
    """What a source does now."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"  # the source or the log is away
    FENCED = "FENCED"  # another process runs it
    FAILED = "FAILED"
    STOPPED = "STOPPED"


# -------------------------------------------------------------------------------------------------------- positions
class SourceOwnership(NamedTuple):
    """What the position topic says: the last position, and who took the source over last."""

    position: SourcePosition
    owner: str | None


class PositionTopic:
    """The topic `<id>-position` of a source. Its last records are the position and the owner."""

    def __init__(self, log: Log, source_id: str) -> None:
        self._log, self._at = log, TopicPartition(f"{source_id}-position", 0)

    def create(self) -> None:
        create_topic(self._log, self._at.topic, 1, {"cleanup.policy": "compact"})

    def position_item(self, position: SourcePosition, now: int) -> Item:
        return self._at, Records([_POSITION], [json.dumps(position).encode()], [now])

    def owner_item(self, owner: str, now: int) -> Item:
        return self._at, Records([_OWNER], [owner.encode()], [now])

    def read(self) -> SourceOwnership:
        """Reads from the end backwards, until both records are found."""
        earliest, end = self._log.extents([self._at.topic])[self._at]
        start, step_back = end, _FIRST_STEP
        found: dict[bytes | None, bytes | None] = {}
        while start > earliest and not found.keys() >= {_POSITION, _OWNER}:
            start, step_back = max(earliest, start - step_back), 8 * step_back
            rows = (row for chunk in self._log.read(self._at, start, end) for row in chunk.rows())
            found = {key: value for _, key, value, _, _ in rows}
        return decode_ownership(found.get(_POSITION), found.get(_OWNER), self._at)


def decode_ownership(position: bytes | None, owner: bytes | None, at: TopicPartition) -> SourceOwnership:
    """Decodes the last records of a position topic, `at`.

    >>> decode_ownership(b"[7]", None, TopicPartition("shop-numbers-position", 0))
    SourceOwnership(position=[7], owner=None)
    """
    try:
        found = None if position is None else json.loads(position)
        return SourceOwnership(found, None if owner is None else owner.decode())
    except (ValueError, RecursionError) as error:
        raise LogCorruptedError(
            f"{at} has a record that is no position of a source: only Headrace may write to this topic", at=at
        ) from error


def create_topic(log: Log, name: str, partitions: int, config: dict[str, str | int]) -> None:
    """Creates a topic, unless it exists."""
    if name not in log.topics():
        with suppress(TopicExistsError):
            log.create_topic(name, partitions, config)


# ------------------------------------------------------------------------------------------------------------ runner
class SourceRunner:
    """Runs one source, a step at a time. `SourceThread` calls `advance` in a loop; a test calls it itself.

    `source_id` names the source in the log: two runners with the same id are the same source, and the later one fences
    the earlier one.

    >>> import tempfile
    >>> from headrace.connect import GeneratorSource
    >>> from headrace import serde
    >>> from headrace.log.open import open_log
    >>> source = GeneratorSource("numbers", lambda number: (None, number), limit=5)
    >>> spec = SourceSpec(source=source, topic="numbers", key=serde.BYTES, value=serde.LONG)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     log = open_log(f"file:{directory}")
    ...     runner = SourceRunner("shop-numbers", spec, log)
    ...     while not runner.is_caught_up:
    ...         _ = runner.advance()
    ...     runner.close()
    ...     log.ends([TopicPartition("numbers", 0)])
    {TopicPartition(topic='numbers', partition=0): 5}
    """

    def __init__(
        self,
        source_id: str,
        spec: SourceSpec,
        log: Log,
        *,
        clock: Clock | None = None,
        default_partitions: int = 1,
        max_records: int = MAX_RECORDS,
        read_timeout: float = READ_TIMEOUT,
        log_record_values: bool = False,
        at_step: AtStep = ignore_step,
    ) -> None:
        self.spec, self._id, self._log = spec, source_id, log
        self._log_record_values = log_record_values
        self._clock, self._at_step = clock or SystemClock(), at_step
        self._max_records, self._read_timeout = max_records, read_timeout
        self._default_partitions = default_partitions
        self._owner, self._positions = secrets.token_hex(8), PositionTopic(log, source_id)
        self._number: int | None = None  # of the next batch; None: the source is not ours now
        self._was_owner = False
        self._position: SourcePosition = None
        self._reader: SourceReader | None = None
        self._partitions = 0
        self._attempts = self._failures = 0  # that failed in a row, and in all
        self._records = 0
        self._lag: int | None = None
        self._state = SourceState.STARTING
        self._error: Exception | None = None
        self.is_caught_up = False  # True if the last read found nothing

    # ------------------------------------------------------------------------------------------------------ one step
    def advance(self) -> float:
        """Takes the next step: takes over, opens, or moves one batch. Returns the seconds to wait before the next.

        Raises the error after which the source cannot go on.
        """
        try:
            if self._number is None:
                self._take_over()
            elif self._reader is None:
                self._open()
            else:
                self._move_batch(self._reader, self._number)
                self._attempts, self._error = 0, None
                self._state = SourceState.RUNNING
        except ProducerFencedError as error:
            self._end(SourceState.FENCED, error)
            raise
        except (ConfigError, SerializationError) as error:
            self._end(SourceState.FAILED, error)
            raise
        except Exception as error:  # noqa: BLE001 - drivers of other systems raise what they like
            if self._reader is not None:
                add_summary(error)  # it may quote a record, unlike an error of `open`
            return self._retry(error)
        return 0.0

    def _take_over(self) -> None:
        """Becomes the only process that can write for the source, and reads its position."""
        with step(TAKE_OVER, self._at_step):
            self._create_topics()
            while True:
                number = self._log.delivered(self._id) + 1
                # After an error of the log: if another process has taken over meanwhile, the source is its.
                if self._was_owner and self._positions.read().owner != self._owner:
                    raise self._fenced()
                items = [self._positions.owner_item(self._owner, self._clock.now())]
                try:
                    is_new = self._log.deliver(self._id, number, items)
                except ProducerFencedError:
                    is_new = False
                if is_new:
                    break
                if self._was_owner:
                    raise self._fenced()
            self._was_owner = True
            self._position = self._await_position()
            self._number = number + 1

    def _create_topics(self) -> None:
        self._positions.create()
        spec = self.spec
        create_source_topics(self._log, [spec], self._default_partitions)
        self._partitions = self._log.topic(spec.topic).partitions

    def _await_position(self) -> SourcePosition:
        """Reads the position when our own record is visible: then everything that was committed before is, too."""
        end = time.monotonic() + _VISIBLE
        while (found := self._positions.read()).owner != self._owner:
            if time.monotonic() > end:
                raise LogUnavailableError(f"the log does not show that {self._id} was taken over")
            time.sleep(0.01)
        return found.position

    def _open(self) -> None:
        with step(OPEN, self._at_step):
            self._reader = self.spec.source.open(self._position)
        self._reader.acknowledge(self._position)

    def _move_batch(self, reader: SourceReader, number: int) -> None:
        with step(READ, self._at_step):
            batch = reader.read(self._max_records, self._read_timeout)
        self._lag = reader.lag()
        if batch is None:
            self.is_caught_up = True
            return
        if batch.records:
            self.is_caught_up = False
        if batch.partitions is not None and batch.partitions > self._partitions:
            self._partitions = self._log.add_partitions(self.spec.topic, batch.partitions).partitions
        with step(DELIVER, self._at_step):
            self._deliver(batch, number)
        self._records += len(batch.records)
        with step(ACKNOWLEDGE, self._at_step):
            reader.acknowledge(batch.position)

    def _deliver(self, batch: SourceBatch, number: int) -> None:
        now = self._clock.now()
        items = [*encode_batch(self.spec, batch.records, self._partitions, number, now)]
        items.append(self._positions.position_item(batch.position, now))
        self._number = None  # until it is known what the log has
        try:
            is_new = self._log.deliver(self._id, number, items)
        except ProducerFencedError as error:
            raise self._fenced() from error
        if not is_new:
            raise self._fenced()
        self._number, self._position = number + 1, batch.position

    def _fenced(self) -> ProducerFencedError:
        return ProducerFencedError(f"another process runs the source {self._id!r} now. Stop one of the two")

    # ---------------------------------------------------------------------------------------------------- its errors
    def _retry(self, error: Exception) -> float:
        """Closes the reader, and returns how long to wait before the source is opened again."""
        self._close_reader()
        if isinstance(error, LogUnavailableError | LogBusyError):
            self._number = None
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._attempts)
        self._attempts += 1
        self._failures += 1
        self._error, self._state, self.is_caught_up = error, SourceState.RETRYING, False
        said = _describe(error, with_values=self._log_record_values)
        _log.warning("the source %s failed and is tried again in %.1f s: %s", self._id, pause, said)
        _log.debug("%s", _describe(error))
        return pause

    def _end(self, state: SourceState, error: Exception | None) -> None:
        self._close_reader()
        self._state, self._error = state, error

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            try:
                reader.close()
            except Exception as error:  # noqa: BLE001 - it has failed already, or its system is away
                _log.debug("the reader of %s did not close: %s", self._id, error)

    def report(self) -> SourceReport:
        """Returns the state of the source. Any thread may call it."""
        error = None if self._error is None else _describe(self._error)
        return SourceReport(
            self.spec.name, self.spec.topic, self._state, self._records, self._lag, error, self._failures
        )

    def close(self) -> None:
        """Closes the reader. The log keeps the position."""
        if self._state not in (SourceState.FENCED, SourceState.FAILED):
            self._end(SourceState.STOPPED, None)


def _describe(error: Exception, *, with_values: bool = True) -> str:
    """Returns the first line: some clients add pages of debugging text."""
    return summarize(error, with_values=with_values).strip().partition("\n")[0] or type(error).__name__


def encode_batch(
    spec: SourceSpec, records: Iterable[SourceRecord], partitions: int, number: int, now: int
) -> list[Item]:
    """Encodes records and groups them by partition. Those of a batch that have no key go to one partition."""
    rows: dict[int, list[tuple[bytes | None, bytes | None, int, Headers]]] = {}
    for record in records:
        key, value = _encode(spec, "key", spec.key, record.key), _encode(spec, "value", spec.value, record.value)
        partition = record.partition
        if partition is None:
            partition = known_partition(key, partitions)
        elif partition >= partitions:
            raise ConfigError(
                f"the topic {spec.topic!r} has {partitions} partitions, and a record of the source {spec.name!r} is "
                f"for partition {partition}: give the source a topic with more, partitions="
            )
        timestamp = now if record.timestamp is None else record.timestamp
        rows.setdefault(number % partitions if partition is None else partition, []).append(
            (key, value, timestamp, record.headers)
        )
    return [(TopicPartition(spec.topic, at), Records.from_rows(found)) for at, found in sorted(rows.items())]


def _encode(spec: SourceSpec, part: str, serde: Serde[Any], found: Any) -> bytes | None:
    if found is None or type(found) is bytes:
        return found
    try:
        if type(found) is dict and serde.recipe is not None and serde.recipe[0] is json_of:
            return serde.encode(serde.decode(JSON.encode(found)))  # the row as an object of its type
        return serde.encode(found)
    except Exception as error:
        what = f"the {part} of a record of the source {spec.name!r} cannot be written with {serde!r}"
        advice = f"Give the source another serde: {part}="
        raise SerializationError(f"{what}: {error}. {advice}", summary=f"{what}: {type(error).__name__}") from error


# ------------------------------------------------------------------------------------------------------------ threads
class SourceThread:
    """Runs a source in a thread of its own, with a log of its own, until `stop`."""

    def __init__(self, runner: SourceRunner, log: Log) -> None:
        self.runner, self._log = runner, log
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"headrace source {runner.spec.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = 0.0
        try:
            while not self._stopped.wait(pause):
                pause = self.runner.advance()
        except Exception as error:  # noqa: BLE001 - `check` raises it in the thread that waits
            self._failure = error
        finally:
            self.runner.close()

    def check(self) -> None:
        """Raises the error that has ended the source."""
        if self._failure is not None:
            if isinstance(self._failure, StreamsError):
                raise self._failure
            what = f"the source {self.runner.spec.name!r} has failed"
            summary = f"{what}: {summarize(self._failure)}"
            raise StreamsError(f"{what}: {self._failure}", summary=summary) from self._failure

    def stop(self) -> None:
        self._stopped.set()

    def join(self) -> None:
        self._thread.join()
        self._log.close()


class RunningSources:
    """The sources of an application, or of a pipeline, each in a thread.

    `owner` is the application id or the name of the pipeline; a source is `<owner>-<source>-source` in the log.
    """

    def __init__(
        self,
        owner: str,
        specs: Sequence[SourceSpec],
        open_own_log: Callable[[], Log],
        *,
        default_partitions: int = 1,
        log_record_values: bool = False,
        at_step: AtStep = ignore_step,
    ) -> None:
        self._threads: list[SourceThread] = []
        try:
            for spec in specs:
                log = open_own_log()
                runner = SourceRunner(
                    source_id(owner, spec),
                    spec,
                    log,
                    default_partitions=default_partitions,
                    log_record_values=log_record_values,
                    at_step=at_step,
                )
                self._threads.append(SourceThread(runner, log))
        except BaseException:
            self.close()
            raise

    @property
    def is_caught_up(self) -> bool:
        """True if no source had anything to read when it was last asked."""
        return all(thread.runner.is_caught_up for thread in self._threads)

    def check(self) -> None:
        """Raises the error of a source that cannot go on."""
        for thread in self._threads:
            thread.check()

    def reports(self) -> list[SourceReport]:
        return [thread.runner.report() for thread in self._threads]

    def close(self) -> None:
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            thread.join()


def source_id(owner: str, spec: SourceSpec) -> str:
    """Returns the name of a source in the log."""
    return f"{owner}-{spec.name}-source"


def create_source_topics(log: Log, specs: Sequence[SourceSpec], default_partitions: int) -> None:
    """Creates the topics of sources that do not exist."""
    for spec in specs:
        if spec.topic not in log.topics():
            own = spec.source.count_partitions() if isinstance(spec.source, CountsPartitions) else None
            create_topic(log, spec.topic, spec.partitions or own or default_partitions, dict(spec.config))
