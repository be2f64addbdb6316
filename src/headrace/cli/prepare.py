"""`headrace prepare`: make later starts on this machine faster."""

from __future__ import annotations

from time import perf_counter

import typer

from headrace.cli.options import AsJson
from headrace.cli.output import print_json, print_note, stderr
from headrace.spark.class_archive import create_archive


def prepare(as_json: AsJson = False) -> None:
    """Make later starts of applications on this machine faster: keep the classes that Spark loads in a file.

    Java maps the file into memory instead of loading the classes again, which saves about two seconds of each start.
    Run the command again after another version of Java or Spark was installed, and as the user that runs applications.
    """
    began = perf_counter()
    with stderr().status("Spark starts, and Java writes the classes that it has loaded"):
        path = create_archive()
    if as_json:
        print_json({"path": str(path), "bytes": path.stat().st_size})
    else:
        typer.echo(path)
        print_note(
            f"{path.stat().st_size / 1e6:.0f} MB, in {perf_counter() - began:.0f} s. Applications use it by themselves."
        )
