"""Crash images: what a disk can hold after a crash at any point of a recorded run.

`record` runs a function under strace and returns what it did to the files of a directory. `Disk` replays that up to any
point, and writes what the disk may hold then:

    killed      the process was killed: everything that it did is there
    synced      the machine stopped: only what was synced is there, contents by fsync of the file, names by fsync of the
                directory
    torn        the machine stopped: of what was not synced, some is there, in any order; writes are cut at sectors
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any, NamedTuple

from tests.disk.scene import run_traced

SECTOR = 512
CALLS = (
    "write", "writev", "pwrite64", "fsync", "fdatasync", "ftruncate", "lseek", "openat", "close", "link", "unlink",
    "unlinkat", "mkdir", "rename", "rmdir", "dup",
)  # fmt: skip
_LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Change(NamedTuple):
    """What a system call did. Names are relative to the directory; a file keeps its number whatever its names are."""

    call: str  # create, mkdir, write, truncate, sync, sync directory, link, unlink
    name: str = ""
    file: int = -1
    offset: int = 0
    data: bytes = b""


def record(run: Callable[[], Any], root: Path, trace: Path) -> list[Change]:
    recorder = Recorder(root)
    ended = run_traced(run, "-o", str(trace), "-xx", "-s", "100000000", "-e", f"trace={','.join(CALLS)}")
    assert ended.result is not None, ended.how
    return list(recorder.read(trace.read_text()))


class Recorder:
    """Turns the lines of strace into changes of the files below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[int, tuple[str, int, int]] = {}  # by descriptor: name, file, position
        before = Disk(root)
        self.files, self._directories = dict(before.names), set(before.directories)
        self._next = len(self.files)

    def read(self, text: str) -> Iterator[Change]:
        for line in text.splitlines():
            found = _LINE.match(line)
            if found is None:
                assert "resumed" not in line, line[:200]
                continue
            call, arguments, result = found[1], found[2], int(found[3])
            if result >= 0:
                texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(arguments)]
                yield from getattr(self, f"_{call}", self._ignore)(_TEXT.sub("", arguments), texts, result)

    def _name(self, arguments: str, text: bytes) -> str | None:
        """A name below the root, in it or relative to an open directory."""
        path = PurePosixPath(text.decode())
        if not path.is_absolute():
            known = self._open.get(_first_number(arguments))
            if known is None:
                return None
            path = self._root / known[0] / path
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else None

    def _number(self, name: str) -> int:
        """The number of a file that is new."""
        self.files[name] = self._next
        self._next += 1
        return self.files[name]

    def _ignore(self, *_: Any) -> Iterator[Change]:
        return iter(())

    def _openat(self, arguments: str, texts: list[bytes], result: int) -> Iterator[Change]:
        self._open.pop(result, None)
        name = self._name(arguments, texts[0])
        if name is None or name.endswith("-shm"):  # SQLite's shared memory: what is in it, a crash ends
            return
        if name not in self.files and name != ".":
            assert "O_CREAT" in arguments, f"{name} is not known"
            yield Change("create", name, self._number(name))
        self._open[result] = (name, self.files.get(name, -1), 0)
        if "O_TRUNC" in arguments:
            yield Change("truncate", name, self.files[name])

    def _close(self, arguments: str, _texts: list[bytes], _result: int) -> Iterator[Change]:
        self._open.pop(_first_number(arguments), None)
        return iter(())

    def _lseek(self, arguments: str, _texts: list[bytes], result: int) -> Iterator[Change]:
        descriptor = _first_number(arguments)
        if descriptor in self._open:
            name, file, _ = self._open[descriptor]
            self._open[descriptor] = (name, file, result)
        return iter(())

    def _write(self, arguments: str, texts: list[bytes], result: int) -> Iterator[Change]:
        descriptor = _first_number(arguments)
        if descriptor in self._open:
            name, file, position = self._open[descriptor]
            self._open[descriptor] = (name, file, position + result)
            yield Change("write", name, file, position, b"".join(texts)[:result])

    _writev = _write

    def _pwrite64(self, arguments: str, texts: list[bytes], result: int) -> Iterator[Change]:
        descriptor = _first_number(arguments)
        if descriptor in self._open:
            name, file, _ = self._open[descriptor]
            yield Change("write", name, file, int(arguments.rpartition(", ")[2]), texts[0][:result])

    def _ftruncate(self, arguments: str, _texts: list[bytes], _result: int) -> Iterator[Change]:
        descriptor = _first_number(arguments)
        if descriptor in self._open:
            name, file, _ = self._open[descriptor]
            yield Change("truncate", name, file, int(arguments.rpartition(", ")[2]))

    def _fsync(self, arguments: str, _texts: list[bytes], _result: int) -> Iterator[Change]:
        descriptor = _first_number(arguments)
        if descriptor in self._open:
            name, file, _ = self._open[descriptor]
            is_directory = file in self._directories or name == "."
            yield Change("sync directory" if is_directory else "sync", name, file)

    _fdatasync = _fsync

    def _link(self, arguments: str, texts: list[bytes], _result: int) -> Iterator[Change]:
        old, new = (self._name(arguments, text) for text in texts)
        assert old is not None
        assert new is not None
        self.files[new] = self.files[old]
        yield Change("link", new, self.files[old])

    def _unlink(self, arguments: str, texts: list[bytes], _result: int) -> Iterator[Change]:
        name = self._name(arguments, texts[0])
        if name is not None and not name.endswith("-shm"):
            yield Change("unlink", name, self.files.pop(name))

    _unlinkat = _rmdir = _unlink

    def _rename(self, arguments: str, texts: list[bytes], result: int) -> Iterator[Change]:
        raise AssertionError("nothing is renamed: say what a crash does to it")

    def _mkdir(self, arguments: str, texts: list[bytes], _result: int) -> Iterator[Change]:
        name = self._name(arguments, texts[0])
        if name is not None:
            self._directories.add(self._number(name))
            yield Change("mkdir", name, self.files[name])


def _first_number(arguments: str) -> int:
    found = re.match(r"\d+", arguments)
    return int(found[0]) if found else -1


class Disk:
    """Files and directories as processes see them, and as they are on the disk."""

    def __init__(self, root: Path) -> None:
        paths = sorted(path for path in root.rglob("*"))
        self.names = {path.relative_to(root).as_posix(): number for number, path in enumerate(paths)}
        self.directories = {number for number, path in enumerate(paths) if path.is_dir()}
        self.contents = {n: bytearray(path.read_bytes()) for n, path in enumerate(paths) if path.is_file()}
        self.synced_names = dict(self.names)
        self.synced = {number: bytes(data) for number, data in self.contents.items()}
        self.pending: dict[int, list[Change]] = {}

    def apply(self, change: Change) -> None:
        match change.call:
            case "create" | "mkdir":
                self.names[change.name] = change.file
                if change.call == "mkdir":
                    self.directories.add(change.file)
                else:
                    self.contents[change.file], self.synced[change.file] = bytearray(), b""
            case "write" | "truncate":
                _change(self.contents[change.file], change)
                self.pending.setdefault(change.file, []).append(change)
            case "sync":
                self.synced[change.file] = bytes(self.contents[change.file])
                self.pending.pop(change.file, None)
            case "sync directory":
                for name in {*self.names, *self.synced_names}:
                    if str(PurePosixPath(name).parent) == change.name:
                        _copy_name(name, self.names, self.synced_names)
            case "link":
                self.names[change.name] = change.file
            case _:
                del self.names[change.name]

    def write(self, place: Path, kind: str, chance: Random) -> None:
        """Writes what the disk may hold into an empty directory."""
        names, contents = dict(self.synced_names), {n: bytearray(data) for n, data in self.synced.items()}
        if kind == "killed":
            names, contents = self.names, self.contents
        elif kind == "torn":
            for name in sorted({*self.names, *self.synced_names}):
                if chance.random() < 0.5:
                    _copy_name(name, self.names, names)
            for file, changes in self.pending.items():
                for change in changes:
                    if chance.random() < 0.5:
                        _change(contents[file], _tear(change, chance) if chance.random() < 0.3 else change)
        for name, file in sorted(names.items()):
            path = place / name
            if not path.parent.is_dir():  # its directory is lost
                continue
            if file in self.directories:
                path.mkdir(0o700)
            else:
                path.touch(0o600)
                path.write_bytes(contents[file])


def _change(data: bytearray, change: Change) -> None:
    end = change.offset + len(change.data)
    if change.call == "truncate":
        del data[change.offset :]
    data.extend(bytes(max(0, end - len(data))))
    data[change.offset : end] = change.data


def _tear(change: Change, chance: Random) -> Change:
    sectors = -(-len(change.data) // SECTOR)
    return change._replace(data=change.data[: SECTOR * chance.randrange(sectors + 1)])


def _copy_name(name: str, origin: dict[str, int], target: dict[str, int]) -> None:
    if name in origin:
        target[name] = origin[name]
    else:
        target.pop(name, None)
