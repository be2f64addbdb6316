"""Brings the local state of a task to the version that the checkpoint has. Local state is only a copy.

    local version                                      what `restore` does                              how
    the wanted one                                     nothing                                          READY
    an earlier one of the task's delta chain           apply the later deltas                           CAUGHT_UP
    one commit past one of these (that commit lost)    undo the commit, apply the later deltas          UNDONE
    any other, or unreadable                           delete the local state, apply the whole chain    RESTORED

An `EngineProvider` owns the local state of one task between batches: a directory (`LmdbEngineProvider`) or memory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple, Protocol

from headrace.checkpoint.files import DeltaChain, DeltaRef
from headrace.directories import check_folder, create_directory, read_file, write_file
from headrace.errors import CheckpointCorruptedError, InvalidStateStoreError, StateCorruptedError
from headrace.model.ids import TaskId
from headrace.state.delta import Delta, apply
from headrace.state.engine import Engine, MemoryEngine, Version
from headrace.state.lmdb import FIRST_MAP, LmdbEngine

READY, CAUGHT_UP, UNDONE, RESTORED = "ready", "caught up", "undone", "restored"
_log = logging.getLogger(__name__)


class EngineProvider(Protocol):
    """Keeps the engine of one task between batches."""

    def open(self) -> Engine:
        """Returns the engine in its current state; an empty one if the local state is of another task."""
        ...

    def clear(self) -> Engine:
        """Deletes the local state. Returns an empty engine."""
        ...


class Restored(NamedTuple):
    """An engine at the wanted version, and how it got there.

    Stores that are open on the engine are stale unless it was READY: refresh them. After RESTORED an engine on disk is
    another one: open the stores again.
    """

    engine: Engine
    how: str
    deltas: int  # applied
    entries: int  # in the applied deltas


def restore(
    provider: EngineProvider,
    wanted: Version | None,
    find_chain: Callable[[], DeltaChain],
    read: Callable[[DeltaRef], Delta],
) -> Restored:
    """Brings the engine of a task to a version. `find_chain` is called only if the engine is not there yet."""
    chain: DeltaChain | None = None
    try:
        engine = provider.open()
        if engine.version == wanted:
            return Restored(engine, READY, 0, 0)
        chain = _check_chain(find_chain(), wanted)
        advanced = _advance(engine, chain, read)
    except CheckpointCorruptedError:
        raise
    except StateCorruptedError as error:
        _log.warning("local state is deleted and restored from the checkpoint: %s", error)
        advanced = None
    return advanced or _rebuild(provider, _check_chain(find_chain(), wanted) if chain is None else chain, read)


def _check_chain(chain: DeltaChain, wanted: Version | None) -> DeltaChain:
    if (chain[-1].version if chain else None) != wanted:
        raise InvalidStateStoreError(f"the checkpoint does not lead to version {wanted}: the batch was planned before")
    return chain


def _advance(engine: Engine, chain: DeltaChain, read: Callable[[DeltaRef], Delta]) -> Restored | None:
    """Applies the missing deltas. Returns None if the engine is at no version of the chain, nor one commit past one."""
    how = CAUGHT_UP
    applied = _count_applied(chain, engine.version)
    if applied is None:
        how = UNDONE
        try:
            engine.undo()
        except InvalidStateStoreError:
            return None
        applied = _count_applied(chain, engine.version)
        if applied is None:
            return None
    return _apply(engine, how, chain[applied:], read)


def _count_applied(chain: DeltaChain, version: Version | None) -> int | None:
    """Returns how many deltas of the chain lead to a version; None if the version is not in the chain."""
    if version is None:
        return 0
    return next((index + 1 for index, delta in enumerate(chain) if delta.version == version), None)


def _rebuild(provider: EngineProvider, chain: DeltaChain, read: Callable[[DeltaRef], Delta]) -> Restored:
    engine = provider.clear()
    if engine.version is not None:
        raise InvalidStateStoreError(f"local state could not be deleted, it still is at {engine.version}")
    return _apply(engine, RESTORED, chain, read)


def _apply(engine: Engine, how: str, deltas: DeltaChain, read: Callable[[DeltaRef], Delta]) -> Restored:
    for delta in deltas:
        apply(read(delta), engine)
    return Restored(engine, how, len(deltas), sum(delta.entries for delta in deltas))


# ---------------------------------------------------------------------------------------------------------- providers
class MemoryEngineProvider:
    """Keeps an engine in memory, always the same one."""

    def __init__(self) -> None:
        self._engine = MemoryEngine()

    def open(self) -> Engine:
        return self._engine

    def clear(self) -> Engine:
        self._engine.clear()
        return self._engine


class LmdbEngineProvider:
    """Keeps an engine in a directory. The file `task` in it names its owner: a directory of another task is cleared."""

    def __init__(
        self,
        directory: Path | str,
        checkpoint: str,
        task: TaskId,
        *,
        boot: str | None = None,
        map_size: int = FIRST_MAP,
        readers: int = 126,
    ) -> None:
        self.directory = Path(directory)
        self._label_file = self.directory / "task"
        self._watched = str(self.directory), str(self._label_file)
        self._checked: tuple[tuple[int, int, int], ...] = ()  # inode, device and change time when they were checked
        self._label = f"{checkpoint} {task}\n".encode()
        self._open = partial(LmdbEngine, self.directory, boot=boot, map_size=map_size, readers=readers)
        self._engine: LmdbEngine | None = None

    def open(self) -> LmdbEngine:
        if not self._is_ours():
            return self.clear()
        if self._engine is None:
            self._engine = self._open()
        else:
            self._engine.renew()
        return self._engine

    def clear(self) -> LmdbEngine:
        self.close()
        try:
            create_directory(self.directory)
            check_folder(self.directory)  # what another user has put there is not deleted either
            rmtree(self.directory)
            create_directory(self.directory)
            write_file(self._label_file, self._label)
        except OSError as error:
            raise InvalidStateStoreError(f"the local state in {self.directory} cannot be created: {error}") from error
        self._engine = self._open()
        return self._engine

    def peek(self) -> Version | None:
        """Returns the version of the local state, and leaves it closed; None if it is empty, or of another task."""
        if not self._is_ours():
            return None
        engine = self._open()
        try:
            return engine.version
        finally:
            engine.close()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def detach(self) -> None:
        """Forgets the engine without closing it: its readers keep it, and the last one closes it."""
        self._engine = None

    def _is_ours(self) -> bool:
        """True if the directory is safe, and of this task. It is read again only after something in it has changed."""
        try:
            found = tuple((at.st_ino, at.st_dev, at.st_ctime_ns) for at in map(os.lstat, self._watched))
            if found == self._checked:
                return True
            check_folder(self.directory)
            is_ours = read_file(self._label_file) == self._label
        except OSError:
            return False
        self._checked = found if is_ours else ()
        return is_ours
