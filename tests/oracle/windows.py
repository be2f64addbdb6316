"""Windows, buffers and stores of the case language as Headrace's."""

from __future__ import annotations

from typing import Any

import headrace as hr
from tests.oracle.language import LONGEST, BadCase, Spec, Type, session, types_of, windowed


def windows_of(spec: Spec, key: Type) -> tuple[Any, Type]:
    """The windows of a `windowedBy`, and the type of windowed keys."""
    grace = spec.get("grace_ms", 0)
    match spec:
        case {"type": "tumbling" | "hopping", "size_ms": size}:
            return hr.TimeWindows.of(size, grace=grace, advance=spec.get("advance_ms")), windowed(key, size)
        case {"type": "sliding", "diff_ms": difference}:
            return hr.SlidingWindows.of(difference, grace=grace), windowed(key, difference)
        case {"type": "session", "gap_ms": gap}:
            return hr.SessionWindows.of(gap, grace=grace), session(key)
        case {"type": "unlimited"}:
            return hr.UnlimitedWindows.of(start=spec.get("start_ms", 0)), windowed(key, LONGEST)
    raise BadCase(f"unknown windows {spec}")


def join_windows(spec: Spec) -> hr.JoinWindows:
    windows = hr.JoinWindows.of(spec.get("diff_ms", 0), grace=spec.get("grace_ms", 0))
    if "before_ms" in spec:
        windows = windows.before(spec["before_ms"])
    if "after_ms" in spec:
        windows = windows.after(spec["after_ms"])
    return windows


def suppressed(statement: Spec) -> hr.Suppressed:
    match statement:
        case {"kind": "until_window_closes", "buffer": size}:
            return hr.Suppressed.until_window_closes(buffer_of(size, full="shutdown"))
        case {"kind": "until_time_limit", "ms": wait, "buffer": size}:
            return hr.Suppressed.until_time_limit(wait, buffer_of(size, full=size.get("full", "emit")))
    raise BadCase(f"unknown suppression {statement}")


def buffer_of(size: Spec, full: str) -> hr.Buffer:
    if size.get("unbounded"):
        return hr.Buffer.unbounded()
    buffer = hr.Buffer.max_records(size["max_records"])
    return buffer.emit_early_when_full() if full == "emit" else buffer.shut_down_when_full()


def store_of(statement: Spec) -> hr.StoreSpec:
    """A store of its own, for processors."""
    spec = _store_of(statement)
    return spec.memory() if statement.get("in_memory") else spec


def _store_of(statement: Spec) -> hr.StoreSpec:
    name, serdes = statement["store"], types_of(statement).serdes
    match statement.get("kind", "kv"):
        case "kv":
            return hr.Stores.key_value(name, **serdes)
        case "timestamped_kv":
            return hr.Stores.timestamped_key_value(name, **serdes)
        case "lru":
            return hr.Stores.lru(name, statement["max"], **serdes)
        case "window":
            return hr.Stores.window(name, statement["retention_ms"], statement["size_ms"], **serdes)
        case "session":
            return hr.Stores.session(name, statement["retention_ms"], **serdes)
        case "versioned":
            return hr.Stores.versioned(name, statement["retention_ms"], **serdes)
        case kind:
            raise BadCase(f"unknown kind of store {kind}")
