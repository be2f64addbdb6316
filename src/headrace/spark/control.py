"""The control file: what the driver tells the process that plans batches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from headrace.commit.ledger import Ledger
from headrace.model.ids import TaskId


class Control(msgspec.Struct, frozen=True):
    """Where everything stands after the last batch that was committed."""

    number: int  # of the last manifest
    positions: list[tuple[str, int, int]]  # topic, partition, next offset
    versions: list[tuple[int, int, int, str]]  # stage, partition, number, attempt
    carried: list[tuple[int, int]]  # tasks for which rows wait
    due: list[tuple[int, int, int]]  # tasks for which the wall clock has work, and when
    stream_time: int  # the latest of any task in this run
    spoilt: list[tuple[int, int]]  # tasks whose state cannot be read any more from the checkpoint
    paused: bool = False  # no further batch
    wanted: bool = False  # a batch, though there may be nothing to read
    sizes: dict[str, int] = {}  # bytes of a record, by topic, as far as there have been any


def write_control(path: Path, control: Control) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(control))
    fresh.replace(path)


def read_control(path: Path) -> Control:
    return msgspec.json.decode(path.read_bytes(), type=Control)


def control_of(ledger: Ledger, spoilt: Iterable[TaskId], stream_time: int) -> Control:
    standing = ((task, at.version) for task, at in ledger.tasks.items())
    return Control(
        number=ledger.number,
        positions=[(at.topic, at.partition, offset) for at, offset in sorted(ledger.positions.items())],
        versions=[(t.subtopology, t.partition, v.number, v.attempt) for t, v in standing if v is not None],
        carried=[(rows.target.subtopology, rows.target.partition) for rows in ledger.carried],
        due=[(t.subtopology, t.partition, at.due) for t, at in ledger.tasks.items() if at.due is not None],
        stream_time=stream_time,
        spoilt=[(task.subtopology, task.partition) for task in spoilt],
    )
