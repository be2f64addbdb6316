"""Grouped streams in windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.dsl import aggregates as agg
from headrace.dsl.aggregates import Group, WindowedFunctions, aggregate_windows
from headrace.dsl.functions import Function, exactly
from headrace.dsl.options import EmitStrategy, Materialized
from headrace.dsl.stores import AnyWindows, StoreOption, materialized, with_serdes
from headrace.model.windows import SessionWindows, SlidingWindows, UnlimitedWindows
from headrace.topology.serdes import SerdeLike

if TYPE_CHECKING:
    from headrace.dsl.table import KTable


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

    def reduce(self, reduce: Function, *, store: StoreOption = None, value: SerdeLike | None = None, name: str | None = None) -> KTable:
        """Combine the values of each key and window: `reduce(so far, value)`."""
        exactly(2, reduce, "a reducer")
        place = self.group.place
        given = with_serdes(materialized(store, value=value), place.key, place.value)
        return self._aggregate(WindowedFunctions(agg.nothing, agg.adding(reduce), agg.merging(reduce)), given, "REDUCE", name)

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
        exactly(0, initialize, "an initializer"), exactly(3, add, "an aggregator")
        check_merger(self.windows, merger)
        given = with_serdes(materialized(store, value=value), self.group.place.key, None)
        return self._aggregate(WindowedFunctions(initialize, add, merger), given, "AGGREGATE", name)

    def _aggregate(self, functions: WindowedFunctions, given: Materialized, verb: str, name: str | None) -> KTable:
        from headrace.dsl.table import KTable

        place = aggregate_windows(self.group, self.windows, self.emit, functions, given, f"KSTREAM-{verb}-", name)
        return KTable(place, given.name)


def check_windows(windows: AnyWindows) -> None:
    is_known = isinstance(windows, SessionWindows | SlidingWindows)
    if not is_known and not all(hasattr(windows, wanted) for wanted in ("windows_for", "size", "grace")):
        raise TypeError(f"windowed_by takes windows (an object with windows_for, size and grace), not {windows!r}")


def check_merger(windows: AnyWindows, merger: Function | None) -> None:
    if isinstance(windows, SessionWindows):
        if merger is None:
            raise TypeError("sessions can grow together: aggregate needs a merger=f(key, left, right)")
        exactly(3, merger, "a merger")
    elif merger is not None:
        raise TypeError("only session windows merge: leave out merger=")
