"""A simulated disk: the real `DiskStorage` on files whose bytes and names are lost if they were not synced.

The files are in a temporary directory. What the operating system has in its cache, and the disk does not have yet, is
known from the calls of `fsync`: when the machine stops, files that were not synced are torn, and names in directories
that were not synced since are gone, or back again.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

from headrace.checkpoint import storage as storage_module
from headrace.checkpoint.storage import DiskStorage
from headrace.errors import StorageError
from tests.simulation.faults import Faults
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.storage import Bucket


class Disk(Bucket):
    """The disk of one machine, with a checkpoint on it."""

    def __init__(self, scheduler: Scheduler, faults: Faults) -> None:
        super().__init__()
        shared = Path("/dev/shm")  # noqa: S108 - a directory in memory, if there is one
        self._temporary = Path(tempfile.mkdtemp(prefix="headrace-disk-", dir=shared if shared.is_dir() else None))
        self.directory = self._temporary / "checkpoint"
        self._scheduler, self._faults = scheduler, faults
        self._synced: set[int] = set()  # inodes of files whose bytes are on the disk
        self._durable: dict[Path, set[str]] = {}  # the names in a directory when it was last synced
        self._deleted: dict[Path, bytes] = {}  # files whose deletion the disk may not know of
        self.directory.mkdir()
        self.sync_directory(self.directory)

    def storage(self, process: Process, faults: Faults) -> Any:
        return _DiskOfProcess(self, process, faults)

    # ------------------------------------------------------------------------------------------------- system calls
    def fsync(self, descriptor: int) -> None:
        self._wait()
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self.sync_directory(Path(f"/proc/self/fd/{descriptor}").readlink())
        else:
            self.sync_file(os.fstat(descriptor).st_ino)
        self._wait()

    def sync_file(self, inode: int) -> None:
        self._synced.add(inode)

    def sync_directory(self, directory: Path) -> None:
        self._durable[directory] = {path.name for path in directory.iterdir() if ".tmp-" not in path.name}
        for path in [path for path in self._deleted if path.parent == directory]:
            del self._deleted[path]

    def link(self, source: Path, target: Path) -> None:
        self._wait()
        os.link(source, target)
        name, data = target.relative_to(self.directory).as_posix(), target.read_bytes()
        self.objects[name] = data
        self.on_create(name, data)
        self._wait()

    def _wait(self) -> None:
        process = self._scheduler.current.process
        is_slow = self._faults.happens("storage is slow")
        process.sleep(self._scheduler.random.uniform(0.5, 20.0) if is_slow else self._scheduler.random.expovariate(500))

    def delete(self, name: str) -> None:
        path = self.directory / name
        if path.exists():
            self._deleted[path] = path.read_bytes()
            if path.name not in self._durable.get(path.parent, ()):
                del self._deleted[path]
            if path.stat().st_nlink == 1:  # a temporary file may have got its own name already, as another link
                self._synced.discard(path.stat().st_ino)
            path.unlink()
            self.objects.pop(name, None)
            self.on_delete(name)

    # -------------------------------------------------------------------------------------------------- its crash
    def stop(self) -> None:
        """The machine stops: what was not synced is lost, in whole or in part."""
        random = self._scheduler.random
        for folder, _, files in sorted(os.walk(self.directory)):
            for name in sorted(files):
                path = Path(folder, name)
                if name not in self._durable.get(Path(folder), ()) and random.random() < 0.5:
                    self._lose(path)
                elif path.stat().st_ino not in self._synced and random.random() < 0.7:
                    data = path.read_bytes()
                    path.write_bytes(data[: random.randrange(len(data) + 1)])  # a torn write
                    self._scheduler.note(f"{name} is torn")
        for path, data in sorted(self._deleted.items()):
            if random.random() < 0.5 and not path.exists():
                path.write_bytes(data)
                self._synced.add(path.stat().st_ino)
                self.objects[path.relative_to(self.directory).as_posix()] = data
        self._deleted.clear()
        for folder, _, _ in os.walk(self.directory):
            self.sync_directory(Path(folder))

    def _lose(self, path: Path) -> None:
        self._scheduler.note(f"{path.name.partition('.tmp-')[0]} is lost")
        path.unlink()
        self.objects.pop(path.relative_to(self.directory).as_posix(), None)

    def _uuid(self) -> UUID:
        return UUID(int=self._scheduler.random.getrandbits(128))

    @contextmanager
    def in_use(self) -> Generator[None]:
        """`DiskStorage` syncs and links on this disk meanwhile."""
        try:
            with patch.object(storage_module, "os", _Os(self)), patch.object(storage_module, "uuid4", self._uuid):
                yield
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)


class _Os:
    """The module `os`, as the storage of a checkpoint sees it."""

    def __init__(self, disk: Disk) -> None:
        self.fsync, self.link = disk.fsync, disk.link

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class _DiskOfProcess:
    """The storage of one process: the real one, which fails now and then."""

    def __init__(self, disk: Disk, process: Process, faults: Faults) -> None:
        self._disk, self._process, self._faults = disk, process, faults
        self._storage = DiskStorage(disk.directory)

    def _begin(self, what: str) -> None:
        self._process.check()
        self._process.scheduler.note(f"{self._process} {what}")
        self._process.sleep(self._process.scheduler.random.expovariate(1000))
        if self._faults.happens("storage fails"):
            raise StorageError(f"{what}: the disk is full")

    def create(self, name: str, data: bytes) -> bool:
        self._begin(f"creates {name}")
        return self._storage.create(name, data)

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        self._begin(f"reads {name}")
        return self._storage.read(name, start, size)

    def names(self, prefix: str = "") -> list[str]:
        self._begin(f"lists {prefix}")
        return self._storage.names(prefix)

    def delete(self, name: str) -> None:
        self._begin(f"deletes {name}")
        self._disk.delete(name)

    def describe(self) -> str:
        return "the simulated disk"
