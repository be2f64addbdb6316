"""Runs a user's processor as an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import StreamsError, TopologyError
from headrace.model.record import FixedKeyRecord, Headers, Record
from headrace.runtime.context import Context
from headrace.runtime.environment import Emit
from headrace.topology.nodes import Process


def process(node: Process, user: Any) -> Emit:
    """The operator of a processor; `user` is the object that the supplier returned."""
    if not callable(getattr(user, "process", None)):
        raise TopologyError(
            f"{node.name}: the supplier made a {type(user).__name__}, which has no process(record) method"
        )
    handle, record_of = user.process, FixedKeyRecord if node.fixed_key else Record

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        handle(record_of(key, value, timestamp, headers))

    return run


def make(node: str, supplier: Callable[[], Any]) -> Any:
    """Makes a processor or a transformer."""
    try:
        return supplier()
    except Exception as error:
        raise StreamsError(f"{node}: its supplier failed: {type(error).__name__}: {error}") from error


def start(user: Any, context: Context) -> None:
    """Calls `init` of a processor, if it has one."""
    init = getattr(user, "init", None)
    try:
        if init is not None:
            init(context)
        context.started = True
    except StreamsError:
        raise
    except Exception as error:
        what = f"{context.node}: init of {type(user).__name__} failed: {type(error).__name__}"
        raise StreamsError(f"{what}: {error}", summary=what) from error  # it may have read a store
