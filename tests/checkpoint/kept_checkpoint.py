"""A checkpoint and an embedded log that are kept in the repository: every later Headrace must open them.

    python -m tests.checkpoint.kept_checkpoint VERSION     makes tests/checkpoint/kept/VERSION, once for each version

The topology, `build` of `test_changed_topologies`, has every kind of store. `stores.json` has what they held.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from headrace.checkpoint.storage import open_storage
from headrace.log.embedded.file_log import FileLog
from tests.checkpoint.cluster import Cluster, Ground
from tests.checkpoint.test_changed_topologies import PARTITIONS, TOPICS, feed, program, rows

KEPT = Path(__file__).parent / "kept"
KEYS, ROUNDS = 3, 4


def open_ground(folder: Path) -> Ground:
    log = FileLog(folder / "log", clean_every=None)  # its records are old, and must stay
    return Ground(log=log, storage=open_storage(folder / "checkpoint"))


def make(folder: Path) -> None:
    ground = open_ground(folder)
    for topic in (*TOPICS, "out"):
        ground.log.create_topic(topic, PARTITIONS)
    feed(ground.log, 0, KEYS, ROUNDS)
    cluster = Cluster(ground, program(), limit=20)
    cluster.run()
    (folder / "stores.json").write_text(json.dumps(read_stores(cluster), indent=0) + "\n")
    cluster.close()
    ground.log.close()


def read_stores(cluster: Cluster) -> list[list[str]]:
    """The rows of all stores as text: task, table, key and value."""
    found = rows(cluster, cluster.graph.stores)
    return sorted([str(task), table, key.hex(), value.hex()] for (task, table, key), value in found.items())


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
    make(KEPT / sys.argv[1])
