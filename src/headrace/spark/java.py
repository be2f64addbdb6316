"""The Java that Spark runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from headrace.errors import ConfigError

OLDEST = 17


def check_java() -> None:
    """Says what to do where Spark would end with a stack trace."""
    java = find_java()
    if java is None:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer, and there is none: {how_to_install()}")
    version = java_version(java)
    if version is not None and version < OLDEST:
        raise ConfigError(
            f"Spark needs Java {OLDEST} or newer, but {java} is Java {version}: {how_to_install()}, "
            "or set JAVA_HOME to a newer one"
        )


def find_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if java.exists() else None
    return shutil.which("java")


def java_version(java: str) -> int | None:
    """The number that people say: 8, 11, 17, 21."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - it is Java
    return version_in(said.stderr + said.stdout)


def version_in(text: str) -> int | None:
    """
    >>> version_in('openjdk version "17.0.9" 2023-10-17'), version_in('java version "1.8.0_392"')
    (17, 8)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def how_to_install() -> str:
    if shutil.which("apt-get"):
        return "sudo apt-get install --yes default-jre-headless"
    if shutil.which("dnf"):
        return "sudo dnf install --assumeyes java-21-openjdk-headless"
    if shutil.which("brew"):
        return "brew install openjdk"
    return f"install a JDK, version {OLDEST} or newer, and set JAVA_HOME to it"
