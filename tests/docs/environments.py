"""Environments as a user has them after `pip install 'headrace[EXTRAS]'`, made without an index.

The wheel is built from a checkout, and pip installs it into a new virtual environment. The packages that its metadata
asks for, and no others, are linked from the environment that runs the tests: nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cli.commands import ENVIRONMENT
from tests.docs.test_code_blocks import ROOT


def check_out(folder: Path) -> Path:
    """Copies what git has of the working tree: what a clean clone of it would have."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def build(checkout: Path, folder: Path, *kinds: str) -> list[Path]:
    """Builds the wheel or the source distribution (sdist) of a checkout."""
    targets = [word for kind in kinds for word in ("-t", kind)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", *targets, "-d", folder],
        cwd=checkout, check=True, capture_output=True,
    )  # fmt: skip
    return sorted(folder.iterdir())


class Environment(NamedTuple):
    """A virtual environment with Headrace in it, and the bytes of all packages."""

    folder: Path
    size: int

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    def variables(self) -> dict[str, str]:
        """What a shell has in which the environment is activated, and nothing of the tests' own."""
        kept = {name: value for name, value in ENVIRONMENT.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return {**kept, "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        given = {**self.variables(), **variables}
        return subprocess.run(
            command, cwd=cwd, env=given, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )


def install(wheel: Path, folder: Path, extras: Iterable[str] = ()) -> Environment:
    """Makes an environment with the wheel, with what it and its extras need, and with nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "--quiet"]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", wheel], check=True)
    (own,) = site.glob("headrace-*.dist-info")
    for package in find_packages(PathDistribution(own), extras):
        link_package(package, site)
    subprocess.run([*pip, "check"], check=True, capture_output=True)
    return Environment(folder, sum(file.stat().st_size for file in site.rglob("*") if file.is_file()))


def find_packages(wanted: Distribution, extras: Iterable[str] = ()) -> Iterator[Distribution]:
    """Yields what a distribution and its extras need, as pip would find it."""
    open_ends = [(wanted, extra) for extra in ("", *extras)]
    seen = {(canonicalize_name(wanted.name), extra) for _, extra in open_ends}
    found = {canonicalize_name(wanted.name)}
    while open_ends:
        package, extra = open_ends.pop()
        for requirement in map(Requirement, package.requires or ()):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            needed = wanted if name == canonicalize_name(wanted.name) else distribution(name)
            assert requirement.specifier.contains(needed.version, prereleases=True), requirement
            if name not in found:
                found.add(name)
                yield needed
            for more in ("", *requirement.extras):
                if (name, more) not in seen:
                    seen.add((name, more))
                    open_ends.append((needed, more))


def link_package(package: Distribution, site: Path) -> None:
    """Links the files of an installed package into another environment; its commands in bin/ are left out."""
    for file in package.files or ():
        target = site / file
        if ".." in file.parts or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        source = Path(str(package.locate_file(file)))
        if not source.exists():  # bytecode that was compiled anew
            continue
        try:
            target.hardlink_to(source)
        except OSError:  # another file system
            shutil.copy2(source, target)
