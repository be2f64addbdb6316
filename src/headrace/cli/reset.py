"""Where an application is to go on reading: Kafka's ways to say it.

An application that begins anew: a checkpoint without state, and with positions that were chosen.

It is one more manifest, which empties every task and says where to go on. So it happens at once or not at all, and
nobody who still runs can commit after it. Only then is deleted what nothing names any more.

1. the next epoch is ours: nobody else runs       4. the log counts on from there
2. what was committed is delivered                5. files of the old state are deleted
3. the manifest is created: now it happened

`headrace reset`: what `kafka-streams-application-reset` does, with a checkpoint instead of a group.
"""

from __future__ import annotations

import csv
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any, NamedTuple

import typer

from headrace.checkpoint import recovery
from headrace.checkpoint.compaction import purge
from headrace.checkpoint.delivery import Delivery
from headrace.checkpoint.files import manifest_name, read_piece
from headrace.checkpoint.ledger import Ledger, manifest_numbers
from headrace.checkpoint.manifest import Manifest, TaskChange, encode_manifest
from headrace.checkpoint.ownership import Holder, Ownership, is_gone, this_process
from headrace.checkpoint.steps import unobserved
from headrace.checkpoint.storage import Storage, open_storage
from headrace.cli.options import AsJson, LogAddress, Servers, log_at
from headrace.cli.printing import Failed, WrongUsage, err, say, show, show_json
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError
from headrace.log.open import TopicCreatingLog
from headrace.log.protocol import Extent, Log
from headrace.model.clock import SystemClock
from headrace.model.ids import TopicPartition

Offsets = dict[TopicPartition, int]
Extents = Mapping[TopicPartition, Extent]
# (log, the partitions to move with what they have, where they are now) -> where they are to be
Aim = Callable[[Log, Extents, Mapping[TopicPartition, int]], Offsets]
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,3})?)S)?)?")


def to_earliest(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
    return {at: extent.earliest for at, extent in extents.items()}


def to_latest(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
    return {at: extent.end for at, extent in extents.items()}


def to_offset(offset: int) -> Aim:
    return lambda log, extents, now: dict.fromkeys(extents, offset)


def to_time(time: int) -> Aim:
    """The first record at or after a time, in ms; the end, where there is none."""

    def aim(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
        found = log.offsets_for_times(dict.fromkeys(extents, time))
        return {at: extent.end if (offset := found[at]) is None else offset for at, extent in extents.items()}

    return aim


def shift_by(many: int) -> Aim:
    """So many records on, or, if it is negative, back."""

    def aim(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
        unknown = [str(at) for at in extents if at not in now]
        if unknown:
            raise Failed(f"--shift-by needs a position to shift, and {', '.join(unknown)} has none: give an offset")
        return {at: now[at] + many for at in extents}

    return aim


def from_file(path: Path) -> Aim:
    """Of a CSV file: topic,partition,offset."""

    def aim(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
        found: Offsets = {}
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file), 1):
                try:
                    topic, partition, offset = row
                    found[TopicPartition(topic.strip(), int(partition))] = int(offset)
                except ValueError:
                    raise Failed(f"{path}, line {number}: a line is topic,partition,offset, not {row!r}") from None
        unknown = sorted(found.keys() - extents.keys())
        if unknown:
            raise Failed(f"{path} names {unknown[0]}, which is not a partition of the --input-topics")
        return found

    return aim


def clamped(at: TopicPartition, offset: int, extent: Extent) -> int:
    """The nearest offset that there is."""
    return min(max(offset, extent.earliest), extent.end)


def milliseconds_of(duration: str) -> int:
    """How long an ISO 8601 duration is.

    >>> milliseconds_of("P1DT2H"), milliseconds_of("PT1.5S")
    (93600000, 1500)
    """
    found = _DURATION.fullmatch(duration)
    if found is None or not any(found.groups()):
        raise WrongUsage(f"--by-duration is PnDTnHnMnS, such as PT1H30M, not {duration!r}")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def time_of(text: str) -> int:
    """A date and time in ms since the epoch; without a zone it is UTC, as for Kafka's tool.

    >>> time_of("1970-01-01T00:00:01.500"), time_of("1970-01-01T01:00:00+01:00")
    (1500, 0)
    """
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUsage(f"--to-datetime is YYYY-MM-DDTHH:MM:SS.sss, not {text!r}") from None
    given = given if given.tzinfo else given.replace(tzinfo=UTC)
    return round(given.timestamp() * 1000)


_LEASE = 15_000


class Read(NamedTuple):
    """What a checkpoint says, or, if it can be read no more, why."""

    ledger: Ledger
    damage: CheckpointCorruptedError | None


@dataclass(frozen=True, slots=True)
class Untouched:
    """A storage that can be read; what is written to it is forgotten, so that nothing happens."""

    storage: Storage

    def create(self, name: str, data: bytes) -> bool:
        return True

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        return self.storage.read(name, start, size)

    def names(self, prefix: str = "") -> list[str]:
        return self.storage.names(prefix)

    def delete(self, name: str) -> None:
        pass

    def describe(self) -> str:
        return self.storage.describe()


def read_checkpoint(storage: Storage) -> Read:
    """Where an application is; a checkpoint that is damaged can still be begun anew."""
    try:
        return Read(recovery.recover(storage, 1), None)
    except CheckpointCorruptedError as damage:
        return Read(Ledger(), damage)


def claim(storage: Storage, application: str, read: Read, *, force: bool) -> tuple[str, Ownership]:
    """The id of the checkpoint and the right to change it, if it is the application's and nobody runs on it."""
    checkpoint = recovery.identify(storage, application, read.ledger)
    gone = _always if force else is_gone
    owner = Ownership.claim(storage, SystemClock(), me=this_process(), lease=_LEASE, above=read.ledger.epoch, gone=gone)
    return checkpoint, owner


def deliver_rest(storage: Storage, log: Log, application: str, read: Read) -> str | None:
    """Delivers what was committed and is not in the log yet; a sentence if that cannot be done."""
    delivery = Delivery(TopicCreatingLog(log), application, exactly_once=True, at_step=unobserved)
    if read.damage is not None:
        return f"{read.damage}. What was committed last may not have been delivered"
    try:
        delivery.catch_up(recovery.undelivered(storage, read.ledger, delivery.last), partial(read_piece, storage))
    except CheckpointCorruptedError as error:
        return f"{error}. Batches after {delivery.last} were committed and cannot be delivered"
    return None


def begin_anew(
    storage: Storage, log: Log, application: str, positions: Mapping[TopicPartition, int], *, force: bool
) -> str | None:
    """Empties a checkpoint and sets its positions; gives a sentence if something that was committed is lost."""
    read = read_checkpoint(storage)
    checkpoint, owner = claim(storage, application, read, force=force)
    try:
        lost = deliver_rest(storage, log, application, read)
        number = max([-1, log.delivered(application), *manifest_numbers(storage)]) + 1
        manifest = _first(number, checkpoint, application, owner.epoch, read.ledger, log, positions)
        if not storage.create(manifest_name(number), encode_manifest(manifest)):
            raise CheckpointMismatchError(
                f"{manifest_name(number)} of {storage.describe()} was written by another instance just now: stop it, "
                "and reset again"
            )
        log.mark_delivered(application, number)
        purge(storage, {manifest_name(number)}, number, unobserved)
        owner.forget_earlier()
    finally:
        owner.release()
    return lost


def _first(
    number: int,
    checkpoint: str,
    application: str,
    epoch: int,
    before: Ledger,
    log: Log,
    positions: Mapping[TopicPartition, int],
) -> Manifest:
    """A manifest that says all: no state, and where to go on."""
    follows = before.number == number - 1
    nested: dict[str, dict[int, int]] = {}
    for at, offset in sorted(positions.items()):
        nested.setdefault(at.topic, {})[at.partition] = offset
    return Manifest(
        number=number,
        predecessor=before.digest if follows else b"",
        since=number,
        checkpoint=checkpoint,
        application=application,
        epoch=epoch,
        clock=before.clock,
        delivered=-1,
        tasks=tuple(TaskChange(task, True, (), None) for task in sorted(before.tasks)),
        positions=nested,
        topics={topic: log.topic(topic).id for topic in nested},
    )


def global_topics(ledger: Ledger) -> set[str]:
    """The topics that fill global tables: no sub-topology reads them."""
    if ledger.fingerprint is None:
        return set()
    reads: Sequence[str] = [name for group in ledger.fingerprint.groups for name in group.reads]
    return {topic for topic in ledger.topics if not any(_topic_names(name, topic) for name in reads)}


def _topic_names(text: str, topic: str) -> bool:
    """Whether a sub-topology that reads `text`, a topic or a pattern, reads a topic."""
    try:
        return text == topic or re.fullmatch(text, topic) is not None
    except re.error:
        return False


def _always(holder: Holder, me: Holder) -> bool:
    return True


_INTERNAL = ("-changelog", "-repartition", "-topic")
COLUMNS = ["topic", "partition", "as", "position", "new_position"]


def reset(
    application_id: Annotated[str, typer.Option(help="The application to reset.")],
    input_topics: Annotated[str, typer.Option(help="Topics to read again, separated by commas.")] = "",
    intermediate_topics: Annotated[str, typer.Option(help="Topics whose records are skipped.")] = "",
    internal_topics: Annotated[str, typer.Option(help="Internal topics in the log to delete.")] = "",
    to_offset: Annotated[int | None, typer.Option(help="Go to this offset.")] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Go to the earliest record; the default.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Go to the end.")] = False,
    by_duration: Annotated[str | None, typer.Option(help="Go back by PnDTnHnMnS from now.")] = None,
    to_datetime: Annotated[str | None, typer.Option(help="Go to YYYY-MM-DDTHH:MM:SS.sss.")] = None,
    shift_by: Annotated[int | None, typer.Option(help="Go on or back by so many.")] = None,
    from_file: Annotated[Path | None, typer.Option(help="Go where a CSV file of topic,partition,offset says.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Even if an instance seems to run; stop it before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")] = False,
    checkpoint: Annotated[str | None, typer.Option(help="Its checkpoint. [APPLICATION_ID-checkpoint]")] = None,
    state_dir: Annotated[str | None, typer.Option(help="Where it keeps copies of its state.")] = None,
    log: LogAddress = None,
    bootstrap_server: Servers = None,
    as_json: AsJson = False,
) -> None:
    """Let an application begin anew: without state, at positions of your choice. It must not be running."""
    aim = _aim(to_offset, to_earliest, to_latest, by_duration, to_datetime, shift_by, from_file)
    inputs, skipped = _names(input_topics), _names(intermediate_topics)
    if both := sorted({*inputs} & {*skipped}):
        raise WrongUsage(f"{both[0]} cannot be an input topic and an intermediate one")
    storage = _existing(checkpoint or f"{application_id}-checkpoint")
    local = Path(state_dir or Path(tempfile.gettempdir()) / "headrace") / application_id
    with closing(log_at(log, bootstrap_server)) as opened:
        internal = _checked_internal(opened, application_id, _names(internal_topics))
        read = read_checkpoint(storage)
        claim(Untouched(storage), application_id, read, force=force)
        moves = _moves(opened, read.ledger, inputs, skipped, aim)
        _show_plan(storage, local, internal, moves, as_json=as_json)
        if not dry_run:
            _carry_out(storage, opened, application_id, moves, force=force)
            rmtree(local, ignore_errors=True)
            for topic in internal:
                opened.delete_topic(topic)
    say("Nothing was changed: this was a dry run." if dry_run else f"{application_id} was reset.")


def _carry_out(
    storage: Storage, log: Log, application: str, moves: Sequence[Mapping[str, Any]], *, force: bool
) -> None:
    with err().status("Resetting …"):
        positions = {TopicPartition(row["topic"], row["partition"]): row["new_position"] for row in moves}
        lost = begin_anew(storage, log, application, positions, force=force)
    if lost:
        say(f"Note: {lost}.")


def _aim(*given: Any) -> Aim:
    """The one way that was chosen to say where to go."""
    offset, earliest, latest, duration, moment, shift, file = given
    chosen: dict[str, Aim] = {}
    if offset is not None:
        chosen["--to-offset"] = to_offset(offset)
    if earliest:
        chosen["--to-earliest"] = to_earliest
    if latest:
        chosen["--to-latest"] = to_latest
    if duration is not None:
        chosen["--by-duration"] = to_time(time.time_ns() // 1_000_000 - milliseconds_of(duration))
    if moment is not None:
        chosen["--to-datetime"] = to_time(time_of(moment))
    if shift is not None:
        chosen["--shift-by"] = shift_by(shift)
    if file is not None:
        chosen["--from-file"] = from_file(file)
    if len(chosen) > 1:
        raise WrongUsage(f"{' and '.join(chosen)} contradict each other: give one")
    return next(iter(chosen.values()), to_earliest)


def _moves(log: Log, ledger: Ledger, inputs: list[str], skipped: list[str], aim: Aim) -> list[dict[str, Any]]:
    """Where each partition is, and where it is to be; those that are not named stay, except those of global tables."""
    now, existing = ledger.positions, log.topics()
    of_globals = sorted(global_topics(ledger) & existing.keys() - {*inputs, *skipped})
    rest = sorted({*ledger.topics} & existing.keys() - {*inputs, *skipped, *of_globals})
    roles = dict.fromkeys(inputs, "input") | dict.fromkeys(skipped, "intermediate")
    roles |= dict.fromkeys(of_globals, "global table") | dict.fromkeys(rest, "not named")
    extents = log.extents(list(roles))
    wanted = aim(log, {at: extent for at, extent in extents.items() if roles[at.topic] == "input"}, now)
    rows: list[dict[str, Any]] = []
    for at, extent in extents.items():
        is_same = ledger.topics.get(at.topic) == existing[at.topic].id
        stays = now.get(at, extent.earliest) if is_same else extent.earliest
        ways = {"intermediate": extent.end, "global table": extent.earliest}
        there = clamped(at, wanted.get(at, ways.get(roles[at.topic], stays)), extent)
        place = {"topic": at.topic, "partition": at.partition, "as": roles[at.topic]}
        rows.append({**place, "position": now.get(at), "new_position": there})
    return rows


def _show_plan(
    storage: Storage, local: Path, internal: list[str], moves: list[dict[str, Any]], *, as_json: bool
) -> None:
    files = [name for name in storage.names() if not name.startswith(("owners/", "checkpoint"))]
    if as_json:
        plan = {"checkpoint": storage.describe(), "files": len(files), "state_dir": str(local)}
        show_json({**plan, "delete_topics": internal, "positions": moves})
        return
    show(moves, COLUMNS, as_json=False)
    say(f"State: the {len(files)} files in {storage.describe()}, and the copies in {local}, are dropped.")
    for topic in internal:
        say(f"Topic {topic} is deleted.")


def _existing(place: str) -> Storage:
    """A checkpoint that is there; to open a directory would make it."""
    if "://" not in place.removeprefix("file:") and not Path(place.removeprefix("file:")).is_dir():
        raise Failed(
            f"there is no checkpoint in {place}: say where it is, --checkpoint DIRECTORY. If it is lost, make the "
            "directory, and reset again"
        )
    return open_storage(place)


def _checked_internal(log: Log, application: str, names: list[str]) -> list[str]:
    for name in names:
        if not (name.startswith(f"{application}-") and name.endswith(_INTERNAL)):
            raise Failed(
                f"{name} is no internal topic of {application}: those are {application}-…{_INTERNAL[1]} and such"
            )
        log.topic(name)
    return names


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
