"""`headrace config`: every setting with its default and its meaning, from the table in `config/settings.py`."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

import typer

from headrace.cli.options import AsJson
from headrace.cli.output import print_rows
from headrace.config import Config
from headrace.config.settings import WITHOUT_EFFECT, variable_of

Unused = Annotated[bool, typer.Option("--without-effect", help="The settings of Kafka Streams that have none here.")]


def settings() -> list[dict[str, Any]]:
    """One row for each setting.

    >>> [row["default"] for row in settings() if row["setting"] == "emit.interval.ms"]
    [1000]
    """
    rows = [(row.name.replace("_", "."), row, row.metadata["trigger"]) for row in fields(Config) if row.name != "extra"]
    return [
        {
            "setting": name,
            "default": _plain(row.default),
            "meaning": row.metadata["meaning"] + (f" ({trigger} trigger only)" if trigger else ""),
            "environment": variable_of(name),
        }
        for name, row, trigger in rows
    ]


def config(without_effect: Unused = False, as_json: AsJson = False) -> None:
    """List all settings, with their defaults and what they mean."""
    if without_effect:
        print_rows(
            [{"setting": name, "reason": why} for name, why in WITHOUT_EFFECT.items()],
            ["setting", "reason"],
            as_json=as_json,
        )
    else:
        print_rows(settings(), ["setting", "default", "meaning"], as_json=as_json)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return ",".join(sorted(map(str, value))) or "none"  # pyright: ignore[reportUnknownArgumentType]
    return value
