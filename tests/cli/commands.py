"""Commands as tests call them: in this process where nothing but text comes out, else as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.cli.main import exit_code
from headrace.clients import Consumer, ConsumerRecord

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Here:
    """Runs commands in this process."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured

    def __call__(self, *arguments: object) -> Outcome:
        self._captured.readouterr()
        code = exit_code([str(argument) for argument in arguments])
        shown = self._captured.readouterr()
        return Outcome(code, shown.out, shown.err)


@contextmanager
def started(*arguments: object, cwd: Path | None = None, environment: dict[str, str] | None = None) -> Iterator[Any]:
    """A process of its own, whose ends are pipes; it does not outlive the test."""
    command = [sys.executable, "-m", "headrace", *map(str, arguments)]
    pipe, whole = subprocess.PIPE, {**ENVIRONMENT, **(environment or {})}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=cwd, env=whole) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(*arguments: object, given: str = "", cwd: Path | None = None, **environment: str) -> Outcome:
    """A process of its own, to its end."""
    with started(*arguments, cwd=cwd, environment=environment) as process:
        out, err = process.communicate(given, timeout=240)
    return Outcome(process.returncode, out, err)


def records(address: str, topic: str, many: int) -> list[ConsumerRecord]:
    """The first records of a topic, as soon as they are there."""
    found: list[ConsumerRecord] = []
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        while len(found) < many:
            some = consumer.poll(120_000)
            assert some, f"only {len(found)} records came to {topic}"
            found += some
    return found
