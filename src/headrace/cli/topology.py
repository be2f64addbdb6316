"""`headrace topology`: describe a topology as Kafka's text, as a Mermaid diagram or as a picture."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import AsJson, Target, find_graph, load
from headrace.cli.output import print_json
from headrace.topology.describe import describe
from headrace.topology.drawing import picture


class Format(Enum):
    text, mermaid, svg = "text", "mermaid", "svg"


def topology(
    target: Target,
    format: Annotated[Format, typer.Option(help="Kafka's text, a Mermaid diagram, or a picture.")] = Format.text,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of the standard output.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe the topology of an application."""
    graph = find_graph(load(target))
    if as_json:
        print_json(describe(graph).as_dict())
        return
    match format:
        case Format.text:
            text = f"{describe(graph)}"
        case Format.mermaid:
            text = describe(graph).mermaid() + "\n"
        case Format.svg:
            text = picture(graph)
    if output is not None:
        output.write_text(text, encoding="utf-8")
    else:
        typer.echo(text, nl=not text.endswith("\n"))
