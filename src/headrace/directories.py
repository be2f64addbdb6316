"""Directories and files that other users of a host can neither read nor replace.

State, checkpoint, log, sockets and job files are created for their owner alone: directories with mode 0700, files with
mode 0600. What exists is checked before it is used. `UnsafePathError` is raised for

    another owner       only the user and root are trusted
    open to everybody   a file, or a directory without the sticky bit, that every user may write to
    a symbolic link     inside a directory of Headrace; a directory that the user names may be his own link, or root's

Group permissions are the user's own choice, and what earlier versions created with 0755 and 0644 stays usable.

Every host resolves the directory of its state itself: `state_directory`.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import UnsafePathError

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600


# -------------------------------------------------------------------------------------------------------------- places
def state_directory(given: str | None = None) -> Path:
    """Returns the directory of local state on this host: the one given, else the user's default. It need not exist.

    >>> state_directory("/var/lib/shop").as_posix()
    '/var/lib/shop'
    """
    return Path(given).expanduser().absolute() if given else default_state_directory(os.environ)


def default_state_directory(environment: Mapping[str, str]) -> Path:
    """Returns `headrace` in the XDG state directory; a user without a home has a private temporary directory.

    >>> default_state_directory({"XDG_STATE_HOME": "/home/ada/state"}).as_posix()
    '/home/ada/state/headrace'
    """
    given = Path(environment.get("XDG_STATE_HOME", ""))
    if given.is_absolute():  # the specification says to ignore any other
        return given / "headrace"
    home = _own_home(environment)
    return temporary_directory() / "state" if home is None else home / ".local" / "state" / "headrace"


def _own_home(environment: Mapping[str, str]) -> Path | None:
    """The home of this user. None for accounts of services and containers, whose home is missing or not theirs."""
    try:
        home = Path(environment.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir)
        return home if home.is_absolute() and home.stat().st_uid == os.geteuid() else None
    except (KeyError, OSError):
        return None


def cache_directory() -> Path:
    """Returns the directory for what can be fetched or made again: `headrace` in `XDG_CACHE_HOME`, or in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def temporary_directory() -> Path:
    """Returns the directory of this user for sockets and files of running applications, created if it is missing."""
    directory = Path(tempfile.gettempdir()).absolute() / f"headrace-{os.geteuid()}"
    create_directory(directory)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UnsafePathError(
            directory,
            f"has to be a directory that only {_user(os.geteuid())} can use, not {stat.filemode(found.st_mode)} of "
            f"{_user(found.st_uid)}",
            "remove it, or set TMPDIR to a directory of your own",
        )
    return directory


# ----------------------------------------------------------------------------------------------------------- creating
def create_directory(directory: Path, *, durable: bool = False) -> None:
    """Creates a directory and its missing parents, with mode 0700. A directory that exists stays as it is.

    A `durable` one is there after a power failure too: the names of what is created are forced to disk.
    """
    try:
        directory.mkdir(DIRECTORY_MODE)
    except FileNotFoundError:
        if directory.parent == directory:
            raise
        create_directory(directory.parent, durable=durable)
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)
    except OSError:  # that it exists may not be the first thing that the system objects to
        if not directory.is_dir():
            raise
        return
    if durable:
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Forces the file names of a directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_file(path: Path, flags: int) -> int:
    """Opens a file as os.open does, and checks it. A file that is created has mode 0600."""
    try:
        # Without O_NONBLOCK a pipe would block here; to a file it means nothing.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
    except OSError:
        if path.is_symlink():
            check_file(path)
        raise
    try:
        _check(path, os.fstat(descriptor), is_directory=False)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file with mode 0600."""
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(data)


def read_file(path: Path, start: int = 0, size: int | None = None) -> bytes:
    """Returns `size` bytes of a file from `start`, after checking the file."""
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        file.seek(start)
        return file.read(-1 if size is None else size)


# ----------------------------------------------------------------------------------------------------------- checking
def check_directory(directory: Path) -> None:
    """Checks a directory that the user has named. It may be a symbolic link, if the link is the user's or root's.

    >>> check_directory(Path("/"))
    """
    link = directory.lstat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in _trusted():
        raise UnsafePathError(
            directory, f"is a symbolic link of {_user(link.st_uid)}", "remove it, or choose another directory"
        )
    _check(directory, directory.stat(), is_directory=True)


def check_folder(folder: Path) -> None:
    """Checks a directory inside one of Headrace's: no symbolic link is followed."""
    _check(folder, folder.lstat(), is_directory=True)


def check_file(path: Path) -> None:
    """Checks a file inside a directory of Headrace, if it exists: no symbolic link is followed."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    _check(path, found, is_directory=False)


def _check(path: Path, found: os.stat_result, *, is_directory: bool) -> None:
    mode, kind = found.st_mode, "directory" if is_directory else "file"
    if stat.S_ISLNK(mode):
        raise UnsafePathError(
            path, f"is a symbolic link where a {kind} has to be", f"put a {kind} there, or remove the link"
        )
    if stat.S_ISDIR(mode) != is_directory:
        code = errno.ENOTDIR if is_directory else errno.EISDIR
        raise OSError(code, os.strerror(code), str(path))
    if not is_directory and not stat.S_ISREG(mode):
        raise UnsafePathError(path, "is not a regular file", "remove it")
    if found.st_uid not in _trusted():
        raise UnsafePathError(
            path,
            f"belongs to {_user(found.st_uid)}, and this process runs as {_user(os.geteuid())}",
            "run as that user, choose another directory, or change its owner if you trust what is in it",
        )
    if mode & stat.S_IWOTH and not (is_directory and mode & stat.S_ISVTX):
        raise UnsafePathError(
            path,
            "can be written by every user",
            f"if you trust what is in it, chmod -R o-w {path}; else remove it, or choose another directory",
        )


def _trusted() -> tuple[int, int]:
    return os.geteuid(), 0


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (user id {number})"
    except KeyError:
        return f"user id {number}"
