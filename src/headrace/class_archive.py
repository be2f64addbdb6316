"""Archives of the classes that Java programs load when they start, for Java's class data sharing.

A JVM spends 40 % of the CPU time of such a start on loading and checking classes. With an archive it maps them into
memory instead. `headrace prepare` creates the archives; every later start uses them. Java itself compares an archive
with its own version and with the jars, and ignores one that does not fit.

An archive is code, so it is in the cache directory of the user, and is used only if no other user can write to it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from headrace.directories import cache_directory, check_file, check_folder, create_directory
from headrace.errors import StreamsError

# Hides why an archive does not fit, because no user can act on that: `headrace prepare` creates a new archive.
_QUIET = "-Xlog:cds*=off"


class ClassArchive:
    """The archive of a program, for one Java and its jars, which `key` identifies."""

    def __init__(self, program: str, key: str) -> None:
        self._program = program
        name = f"{program}-{sha256(key.encode()).hexdigest()[:12]}.jsa"
        self.path = cache_directory() / "classes" / name

    def options(self) -> list[str]:
        """Returns the options for a JVM that uses the archive: none if there is no archive, or if its path has a space.

        Spark divides its options at spaces.
        """
        if not self.path.exists() or any(map(str.isspace, str(self.path))):
            return []
        check_folder(self.path.parent)
        check_file(self.path)
        return [f"-XX:SharedArchiveFile={self.path}", _QUIET]

    @contextmanager
    def create(self) -> Generator[list[str]]:
        """Yields the options for a JVM that writes the archive when it ends, which it does within the block."""
        create_directory(self.path.parent)
        check_folder(self.path.parent)
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix="new-") as folder:
            fresh = Path(folder, "classes.jsa")
            yield [f"-XX:ArchiveClassesAtExit={fresh}", _QUIET]
            if not fresh.exists():
                raise StreamsError(f"Java has written no archive of the classes of {self._program}")
            fresh.chmod(0o600)
            fresh.replace(self.path)
