"""Brings the engine of a task to the version that a manifest names; what it holds is only a copy of the checkpoint.

at that version                           → go
at an earlier one of the task's chain     → apply the deltas that follow
one commit beyond either of these         → undo that commit, then as above: another attempt won, or none did
anything else, or unreadable              → throw it away, apply the whole chain
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple, Protocol

from headrace.checkpoint.delta_files import Chain, Link
from headrace.errors import CheckpointCorruptedError, InvalidStateStoreError, StateCorruptedError
from headrace.model.ids import TaskId
from headrace.state.delta import Delta, apply
from headrace.state.engine import Engine, MemoryEngine, Version
from headrace.state.lmdb import FIRST_MAP, LmdbEngine

READY, CAUGHT_UP, UNDONE, RESTORED = "ready", "caught up", "undone", "restored"
_log = logging.getLogger(__name__)


class EngineProvider(Protocol):
    """Where the engine of one task lives between batches."""

    def open(self) -> Engine:
        """The engine, as the directory is now; an empty one if what is there belongs to anything else."""
        ...

    def clear(self) -> Engine:
        """Throws everything away; an empty engine."""
        ...


class Restored(NamedTuple):
    """An engine at the right version, and how it got there.

    Unless it was `READY`, what is open over it is stale: refresh it, or open it anew if it was `RESTORED`.
    """

    engine: Engine
    how: str
    deltas: int  # that were applied
    entries: int  # in these


def restore(
    home: EngineProvider, wanted: Version | None, chain: Callable[[], Chain], load: Callable[[Link], Delta]
) -> Restored:
    """The engine of a task at a version; `chain` finds what leads there, if it is needed, and `load` reads a link."""
    links: Chain | None = None
    try:
        engine = home.open()
        if engine.version == wanted:
            return Restored(engine, READY, 0, 0)
        links = _leading_to(wanted, chain())
        advanced = _advance(engine, links, load)
    except CheckpointCorruptedError:
        raise
    except StateCorruptedError as error:
        _log.warning("local state is thrown away and restored from the checkpoint: %s", error)
        advanced = None
    return advanced or _from_nothing(home, _leading_to(wanted, chain()) if links is None else links, load)


def _leading_to(wanted: Version | None, chain: Chain) -> Chain:
    if (chain[-1].version if chain else None) != wanted:
        raise InvalidStateStoreError(f"the checkpoint does not lead to version {wanted}: the batch was planned before")
    return chain


def _advance(engine: Engine, chain: Chain, load: Callable[[Link], Delta]) -> Restored | None:
    """None if the engine is not at a version of the chain, nor one commit beyond."""
    how = CAUGHT_UP
    place = _place(chain, engine.version)
    if place is None:
        how = UNDONE
        try:
            engine.undo()
        except InvalidStateStoreError:
            return None
        place = _place(chain, engine.version)
        if place is None:
            return None
    missing = chain[place:]
    for link in missing:
        apply(load(link), engine)
    return Restored(engine, how, len(missing), sum(link.entries for link in missing))


def _place(chain: Chain, version: Version | None) -> int | None:
    """How many links of the chain a version has behind it; None if it is not one of the chain's."""
    if version is None:
        return 0
    return next((place + 1 for place, link in enumerate(chain) if link.version == version), None)


def _from_nothing(home: EngineProvider, chain: Chain, load: Callable[[Link], Delta]) -> Restored:
    engine = home.clear()
    if engine.version is not None:
        raise InvalidStateStoreError(f"local state could not be thrown away, it still is at {engine.version}")
    for link in chain:
        apply(load(link), engine)
    return Restored(engine, RESTORED, len(chain), sum(link.entries for link in chain))


# ------------------------------------------------------------------------------------------------------------- homes
class MemoryEngines:
    """An engine in memory, for as long as the home itself is kept."""

    def __init__(self) -> None:
        self._engine = MemoryEngine()

    def open(self) -> Engine:
        return self._engine

    def clear(self) -> Engine:
        self._engine = MemoryEngine()
        return self._engine


class LmdbEngines:
    """An engine in a directory, which says in a file whose it is: a copy of another task's directory is not used."""

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
            if self.directory.exists():
                rmtree(self.directory)
            self.directory.mkdir(parents=True)
            (self.directory / "task").write_bytes(self._label)
        except OSError as error:
            raise InvalidStateStoreError(f"the local state in {self.directory} cannot be made anew: {error}") from error
        self._engine = self._open()
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def leave(self) -> None:
        """Leaves the engine to those who read it: it is closed with the last of them."""
        self._engine = None

    def _is_ours(self) -> bool:
        try:
            return (self.directory / "task").read_bytes() == self._label
        except OSError:
            return False
