"""Grouped streams in windows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.dsl import aggregates as agg
from headrace.dsl.aggregates import Group, WindowedFunctions, aggregate_windows
from headrace.dsl.functions import Function, exactly
from headrace.dsl.materialization import AnyWindows, StoreOption, materialized, named, with_serdes
from headrace.dsl.options import EmitStrategy, Materialized
from headrace.dsl.table import KTable
from headrace.model.windows import SessionWindows, SlidingWindows, UnlimitedWindows
from headrace.topology.nodes import SerdeLike


@dataclass(frozen=True, eq=False, slots=True)
class WindowedKStream:
    """Records by key and window, to be aggregated."""

    group: Group
    windows: AnyWindows
    emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE

    def __post_init__(self) -> None:
        check_windows(self.windows)

    def emit_strategy(self, emit: EmitStrategy) -> WindowedKStream:
        """Emit a window's result with every update (the default), or once, when the window closes."""
        if emit is EmitStrategy.ON_WINDOW_CLOSE and isinstance(self.windows, UnlimitedWindows):
            raise ValueError("unlimited windows never close: emit their results with every update")
        return replace(self, emit=EmitStrategy(emit))

    def count(self, *, store: StoreOption = None, value: SerdeLike | None = None, name: str | None = None) -> KTable:
        """How many records each key has in each window."""
        sliding = isinstance(self.windows, SlidingWindows)
        given = materialized(store, value=value) if sliding else self.group.store_for_count(store, value)
        functions = WindowedFunctions(agg.zero, agg.plus_one, agg.sum_of_counts)
        return self._aggregate(functions, with_serdes(given, self.group.place.key, agg.COUNT_VALUE), "AGGREGATE", name)

    def reduce(
        self, reduce: Function, *, store: StoreOption = None, value: SerdeLike | None = None, name: str | None = None
    ) -> KTable:
        """Combine the values of each key and window: `reduce(so far, value)`."""
        exactly(2, reduce, "a reducer")
        functions = WindowedFunctions(agg.nothing, agg.adding(reduce), agg.merging(reduce))
        given = with_serdes(materialized(store, value=value), self.group.place.key, self.group.place.value)
        return self._aggregate(functions, given, "REDUCE", name)

    def aggregate(
        self,
        initialize: Function,
        add: Function,
        *,
        merger: Function | None = None,
        store: StoreOption = None,
        value: SerdeLike | None = None,
        name: str | None = None,
    ) -> KTable:
        """Aggregate per key and window: `add(key, value, aggregate)`, for sessions also `merger(key, left, right)`."""
        functions = windowed_functions(self.windows, initialize, exactly(3, add, "an aggregator"), merger)
        given = with_serdes(materialized(store, value=value), self.group.place.key, None)
        return self._aggregate(functions, given, "AGGREGATE", name)

    def _aggregate(self, functions: WindowedFunctions, given: Materialized, verb: str, name: str | None) -> KTable:
        place, prefix = self.group.place, f"KSTREAM-{verb}-"
        names = named(given, place.draft.names, prefix), place.named(name, prefix)
        return KTable(aggregate_windows(self.group, self.windows, self.emit, functions, given, names), given.name)


def check_windows(windows: AnyWindows) -> None:
    is_known = isinstance(windows, SessionWindows | SlidingWindows)
    if not is_known and not all(hasattr(windows, wanted) for wanted in ("windows_for", "size", "grace")):
        raise TypeError(f"windowed_by takes windows (an object with windows_for, size and grace), not {windows!r}")


def windowed_functions(
    windows: AnyWindows, initialize: Function, add: Function, merger: Function | None
) -> WindowedFunctions:
    """The functions of an aggregate, checked: a merger is for sessions, and they need one."""
    exactly(0, initialize, "an initializer")
    if isinstance(windows, SessionWindows):
        if merger is None:
            raise TypeError("sessions can grow together: aggregate needs a merger=f(key, left, right)")
        return WindowedFunctions(initialize, add, exactly(3, merger, "a merger"))
    if merger is not None:
        raise TypeError("only session windows merge: leave out merger=")
    return WindowedFunctions(initialize, add, agg.nothing)
