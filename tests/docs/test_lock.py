"""requirements.lock pins every package that the project needs, with the digests of its files."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PINS = [entry for entry in re.split(r"\n(?=\S)", LOCK.strip()) if not entry.startswith("#")]


def test_every_package_has_a_version_and_digests():
    for entry in PINS:
        assert re.fullmatch(r"[a-z0-9.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), entry[:60]


def test_what_the_project_asks_for_is_locked_at_a_version_that_it_accepts():
    locked = dict(entry.split(" ", 1)[0].split("==") for entry in PINS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [
        *project["project"]["dependencies"], *project["dependency-groups"]["dev"], *project["build-system"]["requires"],
        *(wanted for extra in project["project"]["optional-dependencies"].values() for wanted in extra),
    ]  # fmt: skip
    for requirement in map(Requirement, wanted):
        if requirement.name != "headrace" and (requirement.marker is None or requirement.marker.evaluate()):
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


def test_make_installs_nothing_without_its_digest():
    installs = re.findall(r"pip.* install .*|\$\(PIP\) install .*", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert {"--no-deps", "--no-build-isolation"} <= set(installs[1].split())


def test_the_lock_names_no_index():
    assert "://" not in LOCK
    assert "--index-url" not in LOCK
