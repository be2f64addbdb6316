"""Where a checkpoint lies: files that are made once, whole, and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from headrace.commit.disk import Disk
from headrace.commit.objects import Objects


class Storage(Protocol):
    """Files by name; a name has parts, separated by slashes."""

    def create(self, name: str, data: bytes) -> bool:
        """Makes a file, all of it or nothing, and lets it survive a loss of power; False if there is one already."""
        ...

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        """A file, or the part of it from `start`; of a file that is too short, what there is."""
        ...

    def names(self, prefix: str = "") -> list[str]:
        """The names that begin with a prefix, in order; `.tmp-` is in those of files that a crash left unfinished."""
        ...

    def delete(self, name: str) -> None:
        """Removes a file, if it is there."""
        ...

    def describe(self) -> str:
        """Where it is, for people."""
        ...


def open_storage(place: str | Path, options: Mapping[str, str] | None = None) -> Storage:
    """A directory, which is made if it is not there, or the URL of an object store: s3://bucket/prefix, gs://, az://.

    `options` are those of obstore, such as endpoint or region; they may be in the URL, and what is not given comes from
    the environment.

    >>> open_storage("memory:///").describe()
    'memory:///'
    """
    text = str(place)
    if text.startswith("file:"):
        return Disk(text.removeprefix("file:").removeprefix("//"))
    return Objects.at(text, options or {}) if "://" in text else Disk(text)
