"""`headrace topology`: what an application is made of, as text, as a diagram, as a picture."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import AsJson, graph_of, load
from headrace.cli.printing import show_json
from headrace.cli.run import Target
from headrace.topology.describe import describe
from headrace.topology.drawing.svg import picture


class Format(Enum):
    text, mermaid, svg = "text", "mermaid", "svg"


def topology(
    target: Target,
    format: Annotated[Format, typer.Option(help="Kafka's text, a Mermaid diagram, or a picture.")] = Format.text,
    output: Annotated[Path | None, typer.Option(help="The file to write; without it, the standard output.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe a topology."""
    graph = graph_of(load(target))
    if as_json:
        show_json(describe(graph).as_dict())
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
