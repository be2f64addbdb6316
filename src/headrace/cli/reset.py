"""`headrace reset`: restart an application without state, at chosen offsets, as `kafka-streams-application-reset` does.

A reset is one more manifest, which empties every task and sets the positions of the sources. So it happens completely
or not at all, and an instance that still runs cannot commit after it. Files are deleted only afterwards.

1. claim the next epoch: no instance runs         4. mark the manifest's batch as delivered in the log
2. deliver what was committed                     5. delete the files of the old state
3. create the manifest: the reset is done
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headrace.checkpoint import recovery
from headrace.checkpoint.compaction import purge_files
from headrace.checkpoint.delivery import Delivery
from headrace.checkpoint.files import manifest_name, read_blob
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import Ledger, manifest_numbers
from headrace.checkpoint.manifest import Manifest, TaskChange, encode_manifest
from headrace.checkpoint.ownership import LeaseHolder, Ownership, has_exited, this_process
from headrace.checkpoint.steps import ignore_step
from headrace.checkpoint.storage import Storage
from headrace.cli.options import AsJson, open_checkpoint, takes_log
from headrace.cli.output import CommandError, UsageError, print_json, print_note, print_rows, stderr
from headrace.clients.admin import offsets_at
from headrace.config import parsing
from headrace.directories import state_directory
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError
from headrace.log.protocol import Extent, Log
from headrace.model.clock import SystemClock
from headrace.model.ids import TopicPartition
from headrace.spark.job import find_state, remove_state

COLUMNS = ["topic", "partition", "as", "position", "new_position"]
_INTERNAL = ("-changelog", "-repartition", "-topic")
_LEASE = 15_000  # ms


@takes_log()
def reset(
    log: Log,
    application_id: Annotated[str, typer.Option(help="The application to reset.")],
    input_topics: Annotated[str, typer.Option(help="Topics to read again, separated by commas.")] = "",
    intermediate_topics: Annotated[str, typer.Option(help="Topics whose records are skipped.")] = "",
    internal_topics: Annotated[str, typer.Option(help="Internal topics to delete from the log.")] = "",
    to_offset: Annotated[int | None, typer.Option(help="Start at this offset.")] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Start at the earliest record (default).")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Start at the end.")] = False,
    by_duration: Annotated[str | None, typer.Option(help="Start at PnDTnHnMnS before now.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(help="Start at YYYY-MM-DDTHH:MM:SS.sss; with --from-datetime, end there.")
    ] = None,
    from_datetime: Annotated[str | None, typer.Option(help="Start at YYYY-MM-DDTHH:MM:SS.sss.")] = None,
    shift_by: Annotated[int | None, typer.Option(help="Move by so many records, back if negative.")] = None,
    from_file: Annotated[
        Path | None, typer.Option(help="Start at the offsets of a CSV: topic,partition,offset.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Reset even if an instance seems to run. Stop it first.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    checkpoint: Annotated[str | None, typer.Option(help="Its checkpoint. [APPLICATION_ID-checkpoint]")] = None,
    state_dir: Annotated[str | None, typer.Option(help="The directory of its local state.")] = None,
    as_json: AsJson = False,
) -> None:
    """Restart an application without state, at offsets of your choice. Stop the application first."""
    end = None
    if from_datetime is not None:  # then the other one is the end of the range
        end, to_datetime = to_datetime, None
    target = choose_target(
        to_offset, to_earliest, to_latest, by_duration, to_datetime, shift_by, from_file, from_datetime
    )
    inputs, skipped = _split_names(input_topics), _split_names(intermediate_topics)
    if both := sorted({*inputs} & {*skipped}):
        raise UsageError(f"{both[0]} cannot be an input topic and an intermediate one")
    try:
        parsing.application_id(application_id)
    except ValueError as error:
        raise UsageError(f"--application-id {application_id!r}: {error}") from None
    storage = _open_existing(checkpoint or f"{application_id}-checkpoint")
    state = state_directory(state_dir)
    local = state / application_id
    find_state(state, application_id)  # an error if it is not safe to delete, before anything is changed
    internal = _check_internal(log, application_id, _split_names(internal_topics))
    loaded = load_checkpoint(storage)
    claim(ReadOnlyStorage(storage), application_id, loaded, force=force)
    moves = plan_moves(log, loaded.ledger, inputs, skipped, target)
    stops = {} if end is None else offsets_at(log, log.extents(inputs), parse_datetime(end))
    for row in moves if stops else ():
        row["stop_at"] = stops.get(TopicPartition(row["topic"], row["partition"]))
    _print_plan(storage, local, internal, moves, as_json=as_json)
    if not dry_run:
        positions = {TopicPartition(row["topic"], row["partition"]): row["new_position"] for row in moves}
        with stderr().status("Resetting …"):
            warning = reset_checkpoint(storage, log, application_id, positions, stops, force=force)
        if warning:
            print_note(f"Note: {warning}.")
        remove_state(state, application_id)
        for topic in internal:
            log.delete_topic(topic)
    print_note("Nothing was changed: this was a dry run." if dry_run else f"{application_id} was reset.")


def _print_plan(
    storage: Storage, local: Path, internal: list[str], moves: list[dict[str, Any]], *, as_json: bool
) -> None:
    files = [name for name in storage.names() if not name.startswith(("owners/", "checkpoint"))]
    if as_json:
        plan = {"checkpoint": storage.describe(), "files": len(files), "state_dir": str(local)}
        print_json({**plan, "delete_topics": internal, "positions": moves})
        return
    print_rows(moves, [*COLUMNS, "stop_at"] if any("stop_at" in row for row in moves) else COLUMNS, as_json=False)
    print_note(f"State to delete: {len(files)} files in {storage.describe()}, and the copies in {local}.")
    for topic in internal:
        print_note(f"Topic to delete: {topic}.")


def _open_existing(checkpoint: str) -> Storage:
    try:
        return open_checkpoint(checkpoint)
    except CommandError as error:
        raise CommandError(
            f"{error.message}: say where it is, --checkpoint DIRECTORY. If it is lost, create the directory, and reset "
            "again"
        ) from error


def _check_internal(log: Log, application: str, names: list[str]) -> list[str]:
    for name in names:
        if not (name.startswith(f"{application}-") and name.endswith(_INTERNAL)):
            raise CommandError(
                f"{name} is no internal topic of {application}: those are {application}-…{_INTERNAL[1]} and such"
            )
        log.topic(name)
    return names


def _split_names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


# ---------------------------------------------------------------------------------------------------------- offsets
Offsets = dict[TopicPartition, int]
Extents = Mapping[TopicPartition, Extent]
# (log, the input partitions with their extents, the current positions) -> the new positions
OffsetTarget = Callable[[Log, Extents, Mapping[TopicPartition, int]], Offsets]


def choose_target(
    offset: int | None,
    earliest: bool,
    latest: bool,
    duration: str | None,
    moment: str | None,
    shift: int | None,
    file: Path | None,
    since: str | None = None,
) -> OffsetTarget:
    """Return the target that the one given option names; without an option, the earliest record."""
    options: list[tuple[str, Any, Callable[[Any], OffsetTarget]]] = [
        ("--to-offset", offset, _target_offset),
        ("--to-earliest", earliest, lambda _: _target_earliest),
        ("--to-latest", latest, lambda _: _target_latest),
        ("--by-duration", duration, lambda text: _target_time(time.time_ns() // 1_000_000 - parse_duration(text))),
        ("--to-datetime", moment, lambda text: _target_time(parse_datetime(text))),
        ("--from-datetime", since, lambda text: _target_time(parse_datetime(text, "--from-datetime"))),
        ("--shift-by", shift, _target_shift),
        ("--from-file", file, _target_file),
    ]
    chosen = {flag: make(value) for flag, value, make in options if value is not None and value is not False}
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} contradict each other: give one")
    return next(iter(chosen.values()), _target_earliest)


def plan_moves(
    log: Log, ledger: Ledger, inputs: list[str], skipped: list[str], target: OffsetTarget
) -> list[dict[str, Any]]:
    """Compute the old and the new position of each source partition.

    Input topics go to the target, intermediate topics to their end, and topics of global tables to their beginning.
    Other topics keep their positions, unless they were created again.
    """
    now, existing = ledger.positions, log.topics()
    of_globals = sorted(find_global_topics(ledger) & existing.keys() - {*inputs, *skipped})
    rest = sorted({*ledger.topics} & existing.keys() - {*inputs, *skipped, *of_globals})
    roles = dict.fromkeys(inputs, "input") | dict.fromkeys(skipped, "intermediate")
    roles |= dict.fromkeys(of_globals, "global table") | dict.fromkeys(rest, "not named")
    extents = log.extents(list(roles))
    targets = target(log, {at: extent for at, extent in extents.items() if roles[at.topic] == "input"}, now)
    rows: list[dict[str, Any]] = []
    for at, extent in extents.items():
        role, is_same_topic = roles[at.topic], ledger.topics.get(at.topic) == existing[at.topic].id
        kept = now.get(at, extent.earliest) if is_same_topic else extent.earliest
        wanted = targets.get(at, {"intermediate": extent.end, "global table": extent.earliest}.get(role, kept))
        position = min(max(wanted, extent.earliest), extent.end)
        row = {"topic": at.topic, "partition": at.partition, "as": role}
        rows.append({**row, "position": now.get(at), "new_position": position})
    return rows


def find_global_topics(ledger: Ledger) -> set[str]:
    """Return the topics that fill global tables: those that no sub-topology reads."""
    if ledger.fingerprint is None:
        return set()
    reads: Sequence[str] = [name for group in ledger.fingerprint.groups for name in group.reads]
    return {topic for topic in ledger.topics if not any(_matches(name, topic) for name in reads)}


def _matches(name: str, topic: str) -> bool:
    """Return True if a name, which may be a pattern, is the name of a topic."""
    try:
        return name == topic or re.fullmatch(name, topic) is not None
    except re.error:
        return False


def _target_earliest(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
    return {at: extent.earliest for at, extent in extents.items()}


def _target_latest(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
    return {at: extent.end for at, extent in extents.items()}


def _target_offset(offset: int) -> OffsetTarget:
    return lambda log, extents, now: dict.fromkeys(extents, offset)


def _target_time(timestamp: int) -> OffsetTarget:
    return lambda log, extents, now: offsets_at(log, extents, timestamp)


def _target_shift(count: int) -> OffsetTarget:
    """Target `count` records after the current position, or before it if `count` is negative."""

    def find(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
        unknown = [str(at) for at in extents if at not in now]
        if unknown:
            raise CommandError(
                f"--shift-by needs a position to shift, and {', '.join(unknown)} has none: give an offset"
            )
        return {at: now[at] + count for at in extents}

    return find


def _target_file(path: Path) -> OffsetTarget:
    """Target the offsets of a CSV file: topic,partition,offset."""

    def find(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
        found: Offsets = {}
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file), 1):
                try:
                    topic, partition, offset = row
                    found[TopicPartition(topic.strip(), int(partition))] = int(offset)
                except ValueError:
                    message = f"{path}, line {number}: a line is topic,partition,offset, not {row!r}"
                    raise CommandError(message) from None
        unknown = sorted(found.keys() - extents.keys())
        if unknown:
            raise CommandError(f"{path} names {unknown[0]}, which is not a partition of the --input-topics")
        return found

    return find


def parse_duration(text: str) -> int:
    found = parsing.iso_duration(text)
    if found is None:
        raise UsageError(f"--by-duration is PnDTnHnMnS, such as PT1H30M, not {text!r}")
    return found


def parse_datetime(text: str, flag: str = "--to-datetime") -> int:
    """Parse a date and time into ms since the epoch. Without a zone it is UTC, as for Kafka's tool.

    >>> parse_datetime("1970-01-01T00:00:01.500"), parse_datetime("1970-01-01T01:00:00+01:00")
    (1500, 0)
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{flag} is YYYY-MM-DDTHH:MM:SS.sss, not {text!r}") from None
    parsed = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return round(parsed.timestamp() * 1000)


# ------------------------------------------------------------------------------------------------------- checkpoint
class LoadedCheckpoint(NamedTuple):
    """The ledger of a checkpoint; it is empty if the checkpoint is damaged."""

    ledger: Ledger
    damage: CheckpointCorruptedError | None


@dataclass(frozen=True, slots=True)
class ReadOnlyStorage:
    """A storage that discards writes, so that a dry run can claim the checkpoint without an effect."""

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


def load_checkpoint(storage: Storage) -> LoadedCheckpoint:
    """Load the ledger of a checkpoint. A damaged checkpoint can still be reset."""
    try:
        return LoadedCheckpoint(recovery.recover_ledger(storage, 1), None)
    except CheckpointCorruptedError as damage:
        return LoadedCheckpoint(Ledger(), damage)


def claim(storage: Storage, application: str, loaded: LoadedCheckpoint, *, force: bool) -> tuple[str, Ownership]:
    """Return the checkpoint's id and its ownership, if it is the application's and no instance runs on it."""
    checkpoint = recovery.identify_checkpoint(storage, application, loaded.ledger)
    owner = Ownership.claim(
        storage,
        SystemClock(),
        process=this_process(),
        lease_ms=_LEASE,
        last_epoch=loaded.ledger.epoch,
        has_exited=_assume_gone if force else has_exited,
    )
    return checkpoint, owner


def _assume_gone(holder: LeaseHolder, observer: LeaseHolder) -> bool:
    return True


def reset_checkpoint(
    storage: Storage,
    log: Log,
    application: str,
    positions: Mapping[TopicPartition, int],
    stops: Mapping[TopicPartition, int] | None = None,
    *,
    grown: Fingerprint | None = None,
    force: bool,
) -> str | None:
    """Empty a checkpoint, and set its positions and the offsets at which reading ends.

    `grown` is what `keep_growth` returns; by default that of the checkpoint. Return a warning if records that were
    committed are lost.
    """
    loaded = load_checkpoint(storage)
    checkpoint, owner = claim(storage, application, loaded, force=force)
    try:
        warning = _deliver_rest(storage, log, application, loaded)
        number = max([-1, log.delivered(application), *manifest_numbers(storage)]) + 1
        manifest = _make_manifest(
            number, checkpoint, application, owner.epoch, loaded.ledger, log, positions, stops or {}
        )
        manifest = replace(manifest, fingerprint=grown or keep_growth(loaded.ledger.fingerprint))
        if not storage.create(manifest_name(number), encode_manifest(manifest)):
            raise CheckpointMismatchError(
                f"another instance has just written {manifest_name(number)} of {storage.describe()}: stop it, and "
                "reset again"
            )
        log.mark_delivered(application, number)
        purge_files(storage, {manifest_name(number)}, number, ignore_step, lambda: number)
        owner.delete_earlier_epochs()
    finally:
        owner.release()
    return warning


def _deliver_rest(storage: Storage, log: Log, application: str, loaded: LoadedCheckpoint) -> str | None:
    """Deliver the batches that are committed and not in the log yet. Return a warning if that is impossible."""
    delivery = Delivery(log, application, exactly_once=True, at_step=ignore_step)
    if loaded.damage is not None:
        return f"{loaded.damage}. The batches that were committed last may not have been delivered"
    try:
        delivery.catch_up(recovery.find_undelivered(storage, loaded.ledger, delivery.last), partial(read_blob, storage))
    except CheckpointCorruptedError as error:
        return f"{error}. Batches after {delivery.last} were committed and cannot be delivered"
    return None


def _make_manifest(
    number: int,
    checkpoint: str,
    application: str,
    epoch: int,
    before: Ledger,
    log: Log,
    positions: Mapping[TopicPartition, int],
    stops: Mapping[TopicPartition, int],
) -> Manifest:
    """Make a complete manifest without state, with the new positions."""
    nested = _by_topic(positions)
    return Manifest(
        number=number,
        predecessor=before.digest if before.number == number - 1 else b"",
        since=number,
        checkpoint=checkpoint,
        application=application,
        epoch=epoch,
        clock=before.clock,
        delivered=-1,
        tasks=tuple(TaskChange(task, True, (), None) for task in sorted(before.tasks)),
        positions=nested,
        topics={topic: log.topic(topic).id for topic in nested},
        stops=_by_topic(stops),
    )


def keep_growth(fingerprint: Fingerprint | None) -> Fingerprint | None:
    """Return what stays true of topics that have grown: old records of a key are in its old partition.

    So a sub-topology that reads them again routes them by key, as before. None if no topic has grown.
    """
    if fingerprint is None or not (fingerprint.grown or any(shape.grown_from for shape in fingerprint.groups)):
        return None
    groups = tuple(shape._replace(stores=()) for shape in fingerprint.groups)
    return Fingerprint(groups, (), {}, grown=fingerprint.grown)


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    nested: dict[str, dict[int, int]] = {}
    for at, offset in sorted(offsets.items()):
        nested.setdefault(at.topic, {})[at.partition] = offset
    return nested
