"""Files of another user, for tests of what is trusted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

OTHER = 65_534  # a user id that this process does not have


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a file or link belong to another user. Only root can do that: any other user becomes somebody else."""
    if os.geteuid() == 0:
        os.chown(path, OTHER, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)


def modes(directory: Path) -> dict[str, str]:
    """The modes of a directory and of everything in it, in octal, by kind."""
    found: dict[str, set[str]] = {"directories": set(), "files": set()}
    for path in (directory, *directory.rglob("*")):
        mode = path.lstat().st_mode
        found["directories" if stat.S_ISDIR(mode) else "files"].add(f"{stat.S_IMODE(mode):04o}")
    return {kind: " ".join(sorted(some)) for kind, some in found.items()}


PRIVATE = {"directories": "0700", "files": "0600"}
