"""Storage of a checkpoint: write-once files in a directory (`DiskStorage`) or in an object store (`ObjectStorage`).

`open_storage` chooses by the address. The exactly-once protocol needs one guarantee of every implementation: of all
calls that `create` a name, exactly one returns True, and its file appears whole, durably, and never changes.

    disk           temporary file, fsync, link(2) to the name, fsync of the directory
    object store   conditional put (`mode="create"`)

Files in a directory are created for their owner alone; a file that other users could have written is rejected:
`directories` has the rules.
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

from headrace.directories import DIRECTORY_MODE, check_directory, check_folder, create_directory, open_file, read_file
from headrace.errors import MissingFileError, StorageError
from headrace.extras import lazy_extra
from headrace.secrets import mask_secrets


class Storage(Protocol):
    """Write-once files. A name is a path with slashes, relative to the checkpoint."""

    def create(self, name: str, data: bytes) -> bool:
        """Creates a file atomically and durably. Returns False if the name exists already."""
        ...

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        """Returns `size` bytes from `start`, or fewer if the file ends before. Raises MissingFileError."""
        ...

    def names(self, prefix: str = "") -> list[str]:
        """Returns the names with a prefix, sorted. A name with `.tmp-` is a file that a crash left unfinished."""
        ...

    def delete(self, name: str) -> None:
        """Deletes a file. A missing file is no error."""
        ...

    def describe(self) -> str:
        """Returns the place, for messages."""
        ...


def open_storage(place: str | Path, options: Mapping[str, str] | None = None) -> Storage:
    """Opens a directory, created if it is missing, or the URL of an object store: s3://bucket/prefix, gs://, az://.

    `options` are obstore's, such as endpoint or region. They may be part of the URL; the environment gives the rest.

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
    """Files in a directory. A file is synced to disk before its name appears.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     disk = DiskStorage(directory)
    ...     disk.create("a/1", b"x"), disk.create("a/1", b"y"), disk.read("a/1"), disk.names("a/")
    (True, False, b'x', ['a/1'])
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).absolute()
        self._checked = set[Path]()  # folders inside it
        with self._translate_errors("cannot be opened"):
            create_directory(self.directory, durable=True)
            check_directory(self.directory)
            self._inode = _inode(self.directory)

    def __reduce__(self) -> tuple[type[DiskStorage], tuple[str]]:
        return DiskStorage, (str(self.directory),)

    def describe(self) -> str:
        return f"the directory {self.directory}"

    def create(self, name: str, data: bytes) -> bool:
        target = self.directory / name
        with self._translate_errors(f"cannot take {name}"):
            self._check_directory()
            if target.exists():
                _sync_directory(target.parent)  # who created it may have been killed before its name was durable
                return False
            self._make_directory(target.parent)
            return _create_file(target, data)

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        with self._translate_errors(f"cannot give {name}"):
            try:
                path = self.directory / name
                self._check_folder(path.parent)
                return read_file(path, start, size)
            except (FileNotFoundError, IsADirectoryError):
                self._check_directory()
                raise MissingFileError(name, self.describe()) from None

    def names(self, prefix: str = "") -> list[str]:
        with self._translate_errors("cannot be listed"):
            self._check_directory()
            folder = self.directory / prefix.rpartition("/")[0]
            names: list[str] = []
            for path, folders, files in os.walk(folder, onerror=_raise_unless_missing):
                for inside in (path, *(os.path.join(path, name) for name in folders)):  # noqa: PTH118 - many files
                    self._check_folder(Path(inside))
                below = Path(path).relative_to(self.directory).as_posix()
                names += files if below == "." else [f"{below}/{file}" for file in files]
            return sorted(name for name in names if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with self._translate_errors(f"cannot delete {name}"):
            path = self.directory / name
            with suppress(FileNotFoundError):
                self._check_folder(path.parent)
                path.unlink()

    def _make_directory(self, directory: Path) -> None:
        """Creates one level at a time, so that a deleted checkpoint directory is never created again."""
        if not directory.is_dir():
            self._make_directory(directory.parent)
            directory.mkdir(DIRECTORY_MODE, exist_ok=True)
            _sync_directory(directory.parent)
        self._check_folder(directory)

    def _check_folder(self, folder: Path) -> None:
        """Checks the folders inside the checkpoint that lead to a file, each of them once."""
        if folder != self.directory and folder not in self._checked:
            self._check_folder(folder.parent)
            check_folder(folder)
            self._checked.add(folder)

    def _check_directory(self) -> None:
        try:
            is_same = _inode(self.directory) == self._inode
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise StorageError(
                f"{self.describe()} was deleted or replaced while it was in use: "
                "stop, put the checkpoint back, and start again"
            )

    @contextmanager
    def _translate_errors(self, what: str) -> Generator[None]:
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


def _raise_unless_missing(error: OSError) -> None:
    """Raises errors of `os.walk`, which otherwise skips what it cannot list: the newest manifest may be there."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _create_file(target: Path, data: bytes) -> bool:
    draft = target.with_name(f"{target.name}.tmp-{uuid4().hex}")
    try:
        with os.fdopen(open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, target)  # unlike a rename, link never replaces a file
            is_new = True
        except FileExistsError:
            is_new = False
        except FileNotFoundError:  # while this owner was suspended, the next one has purged the draft
            return _create_file(target, data)
    finally:
        draft.unlink(missing_ok=True)
    _sync_directory(target.parent)
    return is_new


def _sync_directory(directory: Path) -> None:
    """Makes the names of the files in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


_stores = lazy_extra("obstore.store", "spark")
_errors = lazy_extra("obstore.exceptions", "spark")

# Options of obstore's HTTP client. Obstore raises an error if they are among the options of the store.
_CLIENT_OPTIONS = {"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout", "user_agent"}


def parse_object_url(url: str, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Returns the URL of an object store without its options, and all options.

    >>> parse_object_url("s3://bucket/shop?endpoint=http://127.0.0.1:9000", {"AWS_REGION": "eu"})
    ('s3://bucket/shop', {'endpoint': 'http://127.0.0.1:9000', 'region': 'eu', 'allow_http': 'true'})
    """
    place, _, query = url.partition("?")
    given = {**dict(parse_qsl(query)), **options}
    found = {name.lower().removeprefix("aws_"): value for name, value in given.items()}
    if found.get("endpoint", found.get("endpoint_url", "")).startswith("http://"):
        found.setdefault("allow_http", "true")
    return place, found


def open_object_store(place: str, options: Mapping[str, str], retry: Mapping[str, Any] | None = None) -> Any:
    """Opens a store of obstore. `retry` is its retry configuration: by default a call may last three minutes."""
    client_options = {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
    given: dict[str, Any] = {name: value for name, value in options.items() if name not in _CLIENT_OPTIONS}
    if client_options:
        given["client_options"] = client_options
    if retry is not None:
        given["retry_config"] = retry
    try:
        return _stores.from_url(place, **given)
    except (_errors.BaseError, ValueError) as error:
        raise StorageError(f"{place} cannot be opened: {_first_line(error)}") from error


class ObjectStorage:
    """Objects below a URL, created by conditional puts.

    >>> objects = ObjectStorage.at("memory:///", {})
    >>> objects.create("a/1", b"x"), objects.create("a/1", b"y"), objects.read("a/1"), objects.names("a/")
    (True, False, b'x', ['a/1'])
    """

    def __init__(self, store: Any, url: str, options: Mapping[str, str]) -> None:
        self._store, self._url, self._options = store, url, dict(options)

    @classmethod
    def at(cls, url: str, options: Mapping[str, str]) -> Self:
        """Opens a store. Options may be part of the URL: `s3://bucket/prefix?endpoint=http://host:9000`.

        Environment variables give the rest: AWS_ENDPOINT, AWS_ACCESS_KEY_ID and so on.
        """
        place, all_options = parse_object_url(url, options)
        return cls(open_object_store(place, all_options), place, all_options)

    def __reduce__(self) -> tuple[Callable[..., ObjectStorage], tuple[str, dict[str, str]]]:
        return ObjectStorage.at, (self._url, self._options)

    def describe(self) -> str:
        return mask_secrets(self._url)

    def create(self, name: str, data: bytes) -> bool:
        with self._translate_errors(f"cannot take {name}"):
            try:
                self._store.put(name, data, mode="create", use_multipart=False)
            except (_errors.AlreadyExistsError, _errors.PreconditionError):
                return False
            except FileNotFoundError as error:  # the bucket does not exist
                raise StorageError(f"{self._url} cannot take {name}: {_first_line(error)}") from error
            return True

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        with self._translate_errors(f"cannot give {name}"):
            try:
                if size is not None and size > 0:
                    return bytes(self._store.get_range(name, start=start, length=size))
                return bytes(self._store.get(name).bytes())[start : None if size is None else start]
            except FileNotFoundError:
                raise MissingFileError(name, self._url) from None
            except _errors.GenericError:
                if size is None:
                    raise
                return self.read(name)[start : start + size]  # the object ends before the range does

    def names(self, prefix: str = "") -> list[str]:
        with self._translate_errors("cannot be listed"):
            folder = prefix.rpartition("/")[0]
            found = [entry["path"] for chunk in self._store.list(folder or None) for entry in chunk]
            return sorted(name for name in found if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with self._translate_errors(f"cannot delete {name}"), suppress(FileNotFoundError):
            self._store.delete(name)

    @contextmanager
    def _translate_errors(self, what: str) -> Generator[None]:
        try:
            yield
        except (_errors.PermissionDeniedError, _errors.UnauthenticatedError) as error:
            raise StorageError(
                f"{self._url} {what}: permission is missing ({_first_line(error)}). Check the credentials and policies"
            ) from error
        except _errors.BaseError as error:
            raise StorageError(f"{self._url} {what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """Returns the message of obstore without the debug text that follows it."""
    return str(error).partition("\n")[0]
