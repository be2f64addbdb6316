"""Users' functions in one shape: how many parameters they take is looked at once, when the topology is built.

A value function may take `(value)` or `(key, value)`, a joiner `(left, right)` or `(key, left, right)`. A builtin
without a signature counts as taking the value alone. A function that keeps state outside of a store gets a warning.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TextIO

from headrace.topology.captured_state import warn_of_captured_state
from headrace.topology.nodes import OF_VALUE

Function = Callable[..., Any]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def with_key(f: Function, what: str = "a function of values") -> Function:
    """A value function as `f(key, value)`.

    >>> with_key(str.upper)("key", "value")
    'VALUE'
    """
    if parameters(f, what, fewest=1, most=2) == 2:
        return f

    def run(key: Any, value: Any) -> Any:
        return f(value)

    async def run_async(key: Any, value: Any) -> Any:
        return await f(value)

    if inspect.iscoroutinefunction(f):
        return run_async
    setattr(run, OF_VALUE, f)
    return run


def with_key_joiner(f: Function, what: str = "a joiner") -> Function:
    """A joiner as `f(key, left, right)`.

    >>> with_key_joiner(lambda left, right: left + right)("key", 1, 2)
    3
    """
    if parameters(f, what, fewest=2, most=3) == 3:
        return f

    def run(key: Any, left: Any, right: Any) -> Any:
        return f(left, right)

    return run


def takes_arrow(f: Function) -> bool:
    """True if the parameter of a function is annotated with an Arrow array.

    >>> takes_arrow(lambda values: values)
    False
    """
    try:
        annotations = [parameter.annotation for parameter in inspect.signature(f).parameters.values()]
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return any(str(getattr(found, "__name__", found)).rpartition(".")[2].startswith("Array") for found in annotations)


def exactly(count: int, f: Function, what: str) -> Function:
    """A function with a given number of parameters, checked."""
    parameters(f, what, fewest=count, most=count)
    return f


def parameters(f: Function, what: str, *, fewest: int, most: int) -> int:
    """How many arguments to call a function with. A parameter with a default value gets none, if it can be avoided."""
    if not callable(f):
        raise TypeError(f"{what} must be a function, not {f!r}")
    warn_of_captured_state(f)
    try:
        given = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return fewest
    positional = [p for p in given if p.kind in _POSITIONAL]
    needed = sum(p.default is p.empty for p in positional)
    accepted = len(positional)
    if any(p.kind is p.VAR_POSITIONAL for p in given):
        needed, accepted = (needed, most) if needed else (most, most)
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in given) or needed > most or accepted < fewest:
        takes = f"{fewest} parameters" if fewest == most else f"{fewest} or {most} parameters"
        raise TypeError(f"{what} takes {takes}, but {getattr(f, '__qualname__', f)!r} has {needed}")
    return max(needed, fewest)


def topic_extractor(f: Function) -> Function:
    """A topic extractor as `f(key, value, context)`; it may leave the context out."""
    if parameters(f, "a topic extractor", fewest=2, most=3) == 3:
        return f

    def run(key: Any, value: Any, context: Any) -> Any:
        return f(key, value)

    return run


def printer(label: str, to: TextIO | None) -> Function:
    """Prints `[label]: key, value` lines, to standard output or a file."""

    def show(key: Any, value: Any) -> None:
        print(f"[{label}]: {key}, {value}", file=to, flush=True)

    return show
