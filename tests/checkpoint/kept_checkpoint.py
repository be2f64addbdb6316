"""Checkpoints and embedded logs that are kept in the repository: every later Headrace must open them.

    python -m tests.checkpoint.kept_checkpoint VERSION     makes tests/checkpoint/kept/VERSION and VERSION-files, once

The topology, `build` of `test_changed_topologies`, has every kind of store. `stores.json` has what they held. In
VERSION everything is in the manifests and in the log's database. In VERSION-files limits are so small that everything
is in files of its own, a sink has written files, too, and the process was killed before its last batch was delivered.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from headrace import serde
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.recovery import recover_ledger
from headrace.checkpoint.sink_delivery import FOLDER as SINKS
from headrace.checkpoint.steps import DELIVERY
from headrace.checkpoint.storage import open_storage
from headrace.connect import FileSink
from headrace.log.embedded import chunks
from headrace.log.embedded.file_log import FileLog
from tests.checkpoint.cluster import Cluster, Ground, Killed
from tests.checkpoint.programs import TEXTS, Program
from tests.checkpoint.test_changed_topologies import PARTITIONS, TOPICS, feed, program, rows

KEPT = Path(__file__).parent / "kept"
KEYS, ROUNDS = 3, 4
FOLDERS = {"deltas", "outboxes", "carried", "snapshots", "sinks"}  # of a checkpoint, for what is not in its manifests


class Form(NamedTuple):
    """How a kept checkpoint is made, and what its program is."""

    limit: int = 20  # records of a partition in a batch
    inline: int = 1 << 20  # bytes of a task's results that go into the manifest
    chunk: int = chunks.LARGE  # bytes of the largest chunk of input that is in the log's database
    has_sink: bool = False

    def program(self, folder: Path, **options: Any) -> Program:
        def add_sink(_builder: Any, orders: Any, _payments: Any) -> None:
            sink = FileSink(str(folder / "target"), format="json")
            orders.map_values(lambda value: {"order": value}).sink(sink, value=serde.JSON, name="order-files", **KEY)

        return program(**options, extra=add_sink) if self.has_sink else program(**options)

    def start(self, folder: Path, ground: Ground, **options: Any) -> Cluster:
        return Cluster(ground, self.program(folder), limit=self.limit, inline=self.inline, **options)


KEY = {"key": TEXTS["key"]}
FORMS: Mapping[str, Form] = {"": Form(), "files": Form(limit=1, inline=0, chunk=0, has_sink=True)}


def form_of(name: str) -> Form:
    """
    >>> form_of("0.1.0-files").has_sink, form_of("0.1.0").has_sink
    (True, False)
    """
    return FORMS[name.partition("-")[2]]


def open_ground(folder: Path) -> Ground:
    log = FileLog(folder / "log", clean_every=None)  # its records are old, and must stay
    return Ground(log=log, storage=open_storage(folder / "checkpoint"))


def make(folder: Path, form: Form) -> None:
    ground = open_ground(folder)
    for topic in (*TOPICS, "out"):
        ground.log.create_topic(topic, PARTITIONS)
    with patch.object(chunks, "LARGE", form.chunk):
        feed(ground.log, 0, KEYS, ROUNDS)

    def kill(moment: str) -> None:
        """Ends the process before a delivery, when a file of every kind is needed, and the sink has got batches."""
        if moment == f"before {DELIVERY}":
            needed = {*needed_files(recover_ledger(ground.storage, 1)), *ground.storage.names(SINKS)}
            if {name.partition("/")[0] for name in needed} >= FOLDERS:
                raise Killed

    cluster = form.start(folder, ground, at_step=kill)
    with suppress(Killed):
        cluster.run()
    (folder / "stores.json").write_text(json.dumps(read_stores(cluster), indent=0) + "\n")
    if form.has_sink:
        cluster.kill()
    else:
        cluster.close()
    ground.log.close()


def needed_files(ledger: Ledger) -> list[str]:
    """The files of the state, of carried rows, and of what is not delivered yet."""
    blobs = [delta.blob for task in ledger.tasks.values() for delta in task.chain]
    blobs += [rows.blob for rows in ledger.carried]
    blobs += [outbox.blob for outbox in ledger.outboxes.get(ledger.number, ())]
    return [blob.name for blob in blobs]


def read_stores(cluster: Cluster) -> list[list[str]]:
    """The rows of all stores as text: task, table, key and value."""
    found = rows(cluster, cluster.graph.stores)
    return sorted([str(task), table, key.hex(), value.hex()] for (task, table, key), value in found.items())


def read_target(folder: Path) -> list[str]:
    """The rows that the sink has written."""
    return sorted(line for file in (folder / "target").glob("*.jsonl") for line in file.read_text().splitlines())


def copy(kept: Path, to: Path) -> Path:
    """A copy that belongs to its owner alone, as a log and a checkpoint do; version control does not keep modes."""
    shutil.copytree(kept, to)
    for place, folders, files in os.walk(to):
        for name in folders:
            (Path(place) / name).chmod(0o700)
        for name in files:
            (Path(place) / name).chmod(0o600)
    to.chmod(0o700)
    return to


if __name__ == "__main__":
    for suffix, chosen in FORMS.items():
        place = KEPT / "-".join(filter(None, (sys.argv[1], suffix)))
        if not place.exists():
            make(place, chosen)
