"""`headrace new NAME`: a directory with an application that runs, its tests, and the files to deploy it."""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from headrace.cli.options import AsJson
from headrace.cli.output import print_note, print_rows
from headrace.config.parsing import application_id
from headrace.errors import StreamsError

Name = Annotated[str, typer.Argument(help="The name of the project, which is also its application.id.")]
Directory = Annotated[Path | None, typer.Option(help="Where to create it; without it, a directory of that name.")]


def new(name: Name, directory: Directory = None, as_json: AsJson = False) -> None:
    """Create a project: an application, tests in the driver and on Spark, a Makefile, a container file."""
    folder = directory or Path(application_id(name))
    written = write_project(application_id(name), folder)
    print_rows([{"file": str(path)} for path in written], ["file"], as_json=as_json)
    print_note(f"cd {folder} && make test, then make run")


def write_project(name: str, folder: Path) -> list[Path]:
    """Writes the files of a new project. A directory that has files already is an error."""
    if folder.exists() and any(folder.iterdir()):
        raise StreamsError(f"{folder} is not empty: choose another name, or --directory")
    folder.mkdir(parents=True, exist_ok=True)
    user = re.sub("[^a-z0-9]", "", name.lower())[:16] or "app"
    words = {"name": name, "version": version("headrace"), "user": user if user[0].isalpha() else f"app{user}"}
    written: list[Path] = []
    for template in sorted(files("headrace.cli").joinpath("new_project").iterdir(), key=lambda file: file.name):
        path = folder / template.name.removesuffix(".tmpl").replace("gitignore", ".gitignore")
        path.write_text(Template(template.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
        written.append(path)
    return written
