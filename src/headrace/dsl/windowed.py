"""WindowedKStream: records that are grouped by key and window, to be aggregated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic

from headrace.dsl import aggregates as agg
from headrace.dsl.aggregates import Group, WindowedFunctions, aggregate_windows
from headrace.dsl.functions import Function, exactly
from headrace.dsl.materialization import AnyWindows, StoreOption, materialized, named, with_serdes
from headrace.dsl.options import EmitStrategy, Materialized
from headrace.dsl.table import KTable
from headrace.dsl.types import A, Aggregator, Initializer, K, Merger, Reducer, V
from headrace.hints import explain_names
from headrace.model.windows import SessionWindows, SlidingWindows, UnlimitedWindows, Windowed
from headrace.serde.protocol import Serde


@explain_names({"suppress": "count().suppress(Suppressed...)", "to_stream": "count().to_stream()"})
@dataclass(frozen=True, eq=False, slots=True)
class WindowedKStream(Generic[K, V]):
    """Records by key and window, to be aggregated. `KGroupedStream.windowed_by` makes one.

    >>> from headrace import StreamsBuilder, TimeWindows, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=serde.STRING, value=serde.STRING)
    >>> counts = clicks.group_by_key().windowed_by(TimeWindows.of(10)).count()
    >>> counts.to_stream(lambda key, count: f"{key.key}@{key.window.start}").to("counts", key=serde.STRING)
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     clicks = driver.input_topic("clicks", key=serde.STRING, value=serde.STRING, start=0, advance=6)
    ...     clicks.pipe_key_values([("ann", ""), ("ann", ""), ("ann", "")])
    ...     driver.output_topic("counts", key=serde.STRING, value=serde.LONG).read_key_values()
    [('ann@0', 1), ('ann@0', 2), ('ann@10', 1)]
    """

    group: Group
    windows: AnyWindows
    emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE

    def __post_init__(self) -> None:
        check_windows(self.windows)

    def emit_strategy(self, emit: EmitStrategy) -> WindowedKStream[K, V]:
        """Emit the result of a window with every update (the default), or once, when the window closes.

        >>> from headrace import EmitStrategy, StreamsBuilder, TimeWindows
        >>> clicks = StreamsBuilder().stream("clicks").group_by_key().windowed_by(TimeWindows.of(60_000))
        >>> clicks.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count()
        <KTable KSTREAM-AGGREGATE-0000000002>
        """
        if emit is EmitStrategy.ON_WINDOW_CLOSE and isinstance(self.windows, UnlimitedWindows):
            raise ValueError("unlimited windows never close: emit their results with every update")
        return replace(self, emit=EmitStrategy(emit))

    def count(
        self, *, store: StoreOption[K, int] = None, value: Serde[int] | None = None, name: str | None = None
    ) -> KTable[Windowed[K], int]:
        """Count the records of each key and window."""
        sliding = isinstance(self.windows, SlidingWindows)
        given = materialized(store, value=value) if sliding else self.group.store_for_count(store, value)
        functions = WindowedFunctions(agg.zero, agg.plus_one, agg.sum_of_counts)
        return self._aggregate(functions, with_serdes(given, self.group.place.key, agg.COUNT_VALUE), "AGGREGATE", name)

    def reduce(
        self,
        reduce: Reducer[V],
        *,
        store: StoreOption[K, V] = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], V]:
        """Combine the values of each key and window: `reduce(aggregate, value)` returns the new aggregate.

        >>> from headrace import StreamsBuilder, TimeWindows, serde
        >>> prices = StreamsBuilder().stream("prices", key=serde.STRING, value=serde.LONG).group_by_key()
        >>> prices.windowed_by(TimeWindows.of(60_000)).reduce(max)
        <KTable KSTREAM-REDUCE-0000000002>
        """
        exactly(2, reduce, "a reducer")
        functions = WindowedFunctions(agg.nothing, agg.adding(reduce), agg.merging(reduce))
        given = with_serdes(materialized(store, value=value), self.group.place.key, self.group.place.value)
        return self._aggregate(functions, given, "REDUCE", name)

    def aggregate(
        self,
        initialize: Initializer[A],
        add: Aggregator[K, V, A],
        *,
        merger: Merger[K, A] | None = None,
        store: StoreOption[K, A] = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Aggregate by key and window: `add(key, value, aggregate)` returns the new aggregate.

        Session windows need a `merger(key, left, right)`: a record between two sessions makes them one.

        >>> from headrace import SessionWindows, StreamsBuilder, serde
        >>> visits = StreamsBuilder().stream("visits", key=serde.STRING, value=serde.STRING).group_by_key()
        >>> visits.windowed_by(SessionWindows.of(60_000)).aggregate(
        ...     lambda: 0,
        ...     lambda user, page, pages: pages + 1,
        ...     merger=lambda user, left, right: left + right,
        ...     value=serde.LONG,
        ... )
        <KTable KSTREAM-AGGREGATE-0000000002>
        """
        functions = windowed_functions(self.windows, initialize, exactly(3, add, "an aggregator"), merger)
        given = with_serdes(materialized(store, value=value), self.group.place.key, None)
        return self._aggregate(functions, given, "AGGREGATE", name)

    def _aggregate(
        self, functions: WindowedFunctions, given: Materialized, verb: str, name: str | None
    ) -> KTable[Windowed[K], A]:
        place, prefix = self.group.place, f"KSTREAM-{verb}-"
        names = named(given, place.draft.names, prefix), place.named(name, prefix)
        return KTable(aggregate_windows(self.group, self.windows, self.emit, functions, given, names), given.name)


def check_windows(windows: AnyWindows) -> None:
    """Raises a TypeError for what is not a definition of windows."""
    is_known = isinstance(windows, SessionWindows | SlidingWindows)
    if not is_known and not all(hasattr(windows, wanted) for wanted in ("windows_for", "size", "grace")):
        raise TypeError(f"windowed_by takes windows (an object with windows_for, size and grace), not {windows!r}")


def windowed_functions(
    windows: AnyWindows, initialize: Function, add: Function, merger: Function | None
) -> WindowedFunctions:
    """The functions of a windowed aggregate, checked. Session windows need a merger, others have none."""
    exactly(0, initialize, "an initializer")
    if isinstance(windows, SessionWindows):
        if merger is None:
            raise TypeError("sessions can grow together: aggregate needs a merger=f(key, left, right)")
        return WindowedFunctions(initialize, add, exactly(3, merger, "a merger"))
    if merger is not None:
        raise TypeError("only session windows merge: leave out merger=")
    return WindowedFunctions(initialize, add, agg.nothing)
