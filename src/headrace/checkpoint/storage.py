"""Where a checkpoint lies: files that are made once, whole, and never changed.

A checkpoint in a directory.

A checkpoint in an object store: S3, Google Cloud Storage, Azure, or memory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import parse_qsl
from uuid import uuid4

from obstore import store as obstore_store
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from headrace.errors import MissingFileError, StorageError


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
        return DiskStorage(text.removeprefix("file:").removeprefix("//"))
    return ObjectStorage.at(text, options or {}) if "://" in text else DiskStorage(text)


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


class DiskStorage:
    """Files in a directory; what is written is forced to disk before anybody sees it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     disk = DiskStorage(directory)
    ...     disk.create("a/1", b"x"), disk.create("a/1", b"y"), disk.read("a/1"), disk.names("a/")
    (True, False, b'x', ['a/1'])
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).absolute()
        with self._failures("cannot be opened"):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._inode = _inode(self.directory)

    def __reduce__(self) -> tuple[type[DiskStorage], tuple[str]]:
        return DiskStorage, (str(self.directory),)

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


_from_url: Callable[..., Any] = obstore_store.from_url  # pyright: ignore[reportUnknownMemberType] - of many overloads


# What obstore takes as options of its HTTP client; it does not survive finding them among those of the store.
_OF_THE_CLIENT = {"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout", "user_agent"}


class ObjectStorage:
    """Objects below a URL, made by conditional puts.

    >>> objects = ObjectStorage.at("memory:///", {})
    >>> objects.create("a/1", b"x"), objects.create("a/1", b"y"), objects.read("a/1"), objects.names("a/")
    (True, False, b'x', ['a/1'])
    """

    def __init__(self, store: Any, url: str, options: Mapping[str, str]) -> None:
        self._store, self._url, self._options = store, url, dict(options)

    @classmethod
    def at(cls, url: str, options: Mapping[str, str]) -> Self:
        """Options may also be in the URL, so that they travel with it: `s3://bucket/prefix?endpoint=http://host:9000`.

        What the URL and the options do not say comes from the environment: AWS_ENDPOINT, AWS_ACCESS_KEY_ID and so on.
        """
        place, _, query = url.partition("?")
        all_options: dict[str, str] = {**dict(parse_qsl(query)), **options}
        if all_options.get("endpoint", "").startswith("http://"):
            all_options.setdefault("allow_http", "true")
        of_client = {name: value for name, value in all_options.items() if name in _OF_THE_CLIENT}
        of_store = {name: value for name, value in all_options.items() if name not in _OF_THE_CLIENT}
        given = {**of_store, "client_options": of_client} if of_client else of_store
        try:
            return cls(_from_url(place, **given), place, all_options)
        except (BaseError, ValueError) as error:
            raise StorageError(f"{place} cannot be opened: {_first_line(error)}") from error

    def __reduce__(self) -> tuple[Callable[..., ObjectStorage], tuple[str, dict[str, str]]]:
        return ObjectStorage.at, (self._url, self._options)

    def describe(self) -> str:
        return self._url

    def create(self, name: str, data: bytes) -> bool:
        with self._failures(f"cannot take {name}"):
            try:
                self._store.put(name, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            except FileNotFoundError as error:  # a bucket that is not there
                raise StorageError(f"{self._url} cannot take {name}: {_first_line(error)}") from error
            return True

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        with self._failures(f"cannot give {name}"):
            try:
                if size is not None and size > 0:
                    return bytes(self._store.get_range(name, start=start, length=size))
                return bytes(self._store.get(name).bytes())[start : None if size is None else start]
            except FileNotFoundError:
                raise MissingFileError(name, self._url) from None
            except GenericError:
                if size is None:
                    raise
                return self.read(name)[start : start + size]  # it may be shorter than the range

    def names(self, prefix: str = "") -> list[str]:
        with self._failures("cannot be listed"):
            folder = prefix.rpartition("/")[0]
            found = [entry["path"] for chunk in self._store.list(folder or None) for entry in chunk]
            return sorted(name for name in found if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with self._failures(f"cannot delete {name}"), suppress(FileNotFoundError):
            self._store.delete(name)

    @contextmanager
    def _failures(self, what: str) -> Generator[None]:
        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise StorageError(
                f"{self._url} {what}: permission is missing ({_first_line(error)}). Check the credentials and policies"
            ) from error
        except BaseError as error:
            raise StorageError(f"{self._url} {what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """What obstore says, without the debugging that follows."""
    return str(error).partition("\n")[0]
