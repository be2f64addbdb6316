"""`headrace query`: read a store from the checkpoint, whether the application runs or not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from headrace.app import Application
from headrace.cli.options import AsJson, AsOf, Checkpoint, Program, find_checkpoint, load, open_follower
from headrace.cli.output import CommandError, UsageError, print_note, print_rows
from headrace.extras import needs_extra
from headrace.query.catalog import StoreDescription
from headrace.query.execution import StoreEntry, filter_keys
from headrace.query.follower import Snapshot
from headrace.query.json_values import dump_json
from headrace.query.parameters import Operation, ReadParameters, build_query, format_key, parse_key
from headrace.query.queries import KeyQuery, MultiVersionedKeyQuery, PrefixQuery, Query, RangeQuery, WindowKeyQuery
from headrace.query.sql import select
from headrace.state.spec import SessionKind, VersionedKind, WindowKind


def query(
    store: Annotated[str, typer.Argument(help="The store's name.")],
    key: Annotated[str | None, typer.Argument(help="A key: strings as they are, other types as JSON.")] = None,
    checkpoint: Checkpoint = "",
    between: Annotated[tuple[str, str] | None, typer.Option("--range", help="Read the keys from A to B.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Read the keys that begin with it.")] = None,
    sql: Annotated[str | None, typer.Option(help="Run a SELECT of SQLite's SQL; the table is called store.")] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Run --sql on Spark, in Spark's SQL: for huge stores.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Show at most so many rows.")] = 100,
    as_of: AsOf = None,
    topology: Program = None,
    as_json: AsJson = False,
) -> None:
    """Read a store: one key, a range, the keys with a prefix, or all."""
    if sum(option is not None for option in (key, between, prefix, sql)) > 1:
        raise UsageError("give a KEY, --range, --prefix or --sql, one of them")
    if spark and sql is None:
        raise UsageError("--spark runs SQL: give --sql, too")
    if sql is not None and spark:
        _run_on_spark(checkpoint, store, sql, as_of, topology, as_json=as_json)
        return
    follower = open_follower(checkpoint, topology)
    snapshot = follower.snapshot_at(as_of)
    if sql is not None:
        found = select(follower, snapshot, store, sql)
        table = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
        print_rows(table, found.columns, as_json=as_json, verbatim=True)
        return
    rows = list(islice(_read_rows(snapshot, snapshot.catalog.describe(store), key, between, prefix), limit))
    if key is not None and not rows:
        raise CommandError(f"{store} has nothing for {key!r}, as of batch {snapshot.batch}")
    print_rows(rows, [*rows[0]] if rows else ["key", "value"], as_json=as_json)
    print_note(f"As of batch {snapshot.batch}.")


def _read_rows(
    snapshot: Snapshot, store: StoreDescription, key: str | None, between: tuple[str, str] | None, prefix: str | None
) -> Iterator[dict[str, Any]]:
    is_windowed = isinstance(store.spec.kind, WindowKind | SessionKind)
    low, high = between or (None, None)
    operation: Operation = "windows" if is_windowed else "range" if key is None else "key"
    if prefix is not None:
        operation = "prefix"
    elif key is not None and isinstance(store.spec.kind, VersionedKind):
        operation = "versions"
    parsed = build_query(store, operation, ReadParameters(key=key, low=low, high=high, prefix=prefix))
    entries = snapshot.entries(store.name, parsed)
    if is_windowed and between is not None:
        first, last = (parse_key(text, store.key) for text in between)
        entries = filter_keys(entries, store.key, first, last)
    return (_make_row(store, parsed, entry) for entry in entries)


def _make_row(store: StoreDescription, query: Query[Any], entry: StoreEntry) -> dict[str, Any]:
    row: dict[str, Any] = {"key": format_key(entry.key, store.key.name)}
    value = entry.value if isinstance(entry.value, str | int | float | None) else dump_json(entry.value)
    match query, entry.window:
        case KeyQuery() | RangeQuery() | PrefixQuery(), _:
            return {**row, "value": value}
        case MultiVersionedKeyQuery(), _:
            return {**row, "value": value, "from": entry.timestamp, "to": entry.valid_to}
        case WindowKeyQuery(), (start, _):
            return {**row, "start": start, "value": value}
        case _, window:
            start, end = window or (None, None)
            return {**row, "start": start, "end": end, "value": value}


def _run_on_spark(
    checkpoint: str, store: str, sql: str, as_of: int | None, program: str | None, *, as_json: bool
) -> None:
    with needs_extra("spark"):  # which takes seconds to start
        from headrace.spark.session import session  # noqa: PLC0415
        from headrace.spark.store_frames import select as select_frame  # noqa: PLC0415

    loaded = None if program is None else load(program)
    config = loaded.setup.config if isinstance(loaded, Application) else None
    topology = loaded.topology if isinstance(loaded, Application) else loaded
    place = find_checkpoint(checkpoint, loaded)
    frame = select_frame(session(), place, store, sql, as_of, topology=topology, config=config)
    print_rows([row.asDict() for row in frame.collect()], frame.columns, as_json=as_json, verbatim=True)
