"""A checkpoint in a directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from headrace.commit.errors import MissingFileError, StorageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


class Disk:
    """Files in a directory; what is written is forced to disk before anybody sees it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     disk = Disk(directory)
    ...     disk.create("a/1", b"x"), disk.create("a/1", b"y"), disk.read("a/1"), disk.names("a/")
    (True, False, b'x', ['a/1'])
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).absolute()
        with self._failures("cannot be opened"):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._inode = _inode(self.directory)

    def __reduce__(self) -> tuple[type[Disk], tuple[str]]:
        return Disk, (str(self.directory),)

    def describe(self) -> str:
        return f"the directory {self.directory}"

    def create(self, name: str, data: bytes) -> bool:
        target = self.directory / name
        with self._failures(f"cannot take {name}"):
            self._check_still_there()
            if target.exists():
                return False
            self._make_folder(target.parent)
            return _put(target, data)

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        with self._failures(f"cannot give {name}"):
            try:
                with (self.directory / name).open("rb") as file:
                    file.seek(start)
                    return file.read() if size is None else file.read(size)
            except (FileNotFoundError, IsADirectoryError):
                self._check_still_there()
                raise MissingFileError(name, self.describe()) from None

    def names(self, prefix: str = "") -> list[str]:
        with self._failures("cannot be listed"):
            self._check_still_there()
            folder = self.directory / prefix.rpartition("/")[0]
            found = (Path(path, file) for path, _, files in os.walk(folder) for file in files)
            names = (path.relative_to(self.directory).as_posix() for path in found)
            return sorted(name for name in names if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with self._failures(f"cannot delete {name}"):
            (self.directory / name).unlink(missing_ok=True)

    def _make_folder(self, folder: Path) -> None:
        """One level at a time, so that the directory itself is never made anew."""
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            _sync(folder.parent)

    def _check_still_there(self) -> None:
        try:
            same = _inode(self.directory) == self._inode
        except FileNotFoundError:
            same = False
        if not same:
            raise StorageError(
                f"{self.describe()} has vanished, or is another one than it was: "
                "stop, put the checkpoint back, and start again"
            )

    @contextmanager
    def _failures(self, what: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in _FULL:
                why = f"the disk is full ({why}), nothing was written. Make room and start again"
            elif error.errno in _FORBIDDEN:
                why = f"permission is missing ({why}). Make it writable, or choose another checkpoint"
            elif error.errno in {errno.EEXIST, errno.ENOTDIR}:
                why = f"a file is in the way ({why}). Choose another checkpoint"
            raise StorageError(f"{self.describe()} {what}: {why}") from error


def _put(target: Path, data: bytes) -> bool:
    draft = target.with_name(f"{target.name}.tmp-{uuid4().hex}")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, target)  # unlike a rename it never replaces anything
            is_new = True
        except FileExistsError:
            is_new = False
    finally:
        draft.unlink(missing_ok=True)
    _sync(target.parent)
    return is_new


def _sync(folder: Path) -> None:
    """Forces the names of files to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
