"""`headrace reset`: what `kafka-streams-application-reset` does, with a checkpoint instead of a group."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any

import typer

from headrace.cli import aims
from headrace.cli.anew import Untouched, begin_anew, claim, global_topics, read_checkpoint
from headrace.cli.options import AsJson, LogAddress, Servers, log_at
from headrace.cli.printing import Failed, WrongUsage, err, say, show, show_json
from headrace.commit.ledger import Ledger
from headrace.commit.storage import Storage, open_storage
from headrace.log.protocol import Log
from headrace.model.ids import TopicPartition

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


def _aim(*given: Any) -> aims.Aim:
    """The one way that was chosen to say where to go."""
    offset, earliest, latest, duration, moment, shift, file = given
    chosen: dict[str, aims.Aim] = {}
    if offset is not None:
        chosen["--to-offset"] = aims.to_offset(offset)
    if earliest:
        chosen["--to-earliest"] = aims.to_earliest
    if latest:
        chosen["--to-latest"] = aims.to_latest
    if duration is not None:
        chosen["--by-duration"] = aims.to_time(time.time_ns() // 1_000_000 - aims.milliseconds_of(duration))
    if moment is not None:
        chosen["--to-datetime"] = aims.to_time(aims.time_of(moment))
    if shift is not None:
        chosen["--shift-by"] = aims.shift_by(shift)
    if file is not None:
        chosen["--from-file"] = aims.from_file(file)
    if len(chosen) > 1:
        raise WrongUsage(f"{' and '.join(chosen)} contradict each other: give one")
    return next(iter(chosen.values()), aims.to_earliest)


def _moves(log: Log, ledger: Ledger, inputs: list[str], skipped: list[str], aim: aims.Aim) -> list[dict[str, Any]]:
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
        there = aims.clamped(at, wanted.get(at, ways.get(roles[at.topic], stays)), extent)
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
