"""`headrace prepare`: make later starts on this machine faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from headrace.cli.options import AsJson
from headrace.cli.output import print_json, print_note, stderr
from headrace.spark.java import create_archive
from headrace.testing.broker import create_broker_archive, find_java, kafka_jars


def prepare(
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Also keep the classes of the Kafka broker for tests.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make later starts of applications on this machine faster: keep the classes that Spark loads in a file.

    Java maps the file into memory instead of loading the classes again, which saves about two seconds of each start.
    With --kafka the same is done for `headrace broker start` and for the broker of tests.
    Run the command again after another version of Java or Spark was installed, and as the user that runs applications.
    """
    programs: dict[str, Callable[[], Path]] = {"Spark": create_archive}
    if kafka:
        kafka_jars(find_java("a Kafka broker"))  # which shows its own progress
        programs["Kafka's broker"] = create_broker_archive
    began, paths = perf_counter(), list[Path]()
    for program, create in programs.items():
        with stderr().status(f"{program} starts, and Java writes the classes that it has loaded"):
            paths.append(create())
    if as_json:
        print_json([{"path": str(path), "bytes": path.stat().st_size} for path in paths])
        return
    for path in paths:
        typer.echo(path)
    size = sum(path.stat().st_size for path in paths)
    print_note(f"{size / 1e6:.0f} MB, in {perf_counter() - began:.0f} s. Later starts use this without a setting.")
