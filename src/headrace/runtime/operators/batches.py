"""Operators that take many values at once: map_values_batch and map_values_async.

Records wait in a `BatchBuffer` until it is full, and leave it in their order. The task flushes all buffers before a
record of another source, before a punctuation and at the end of a batch, so that the operators below see the same as if
records came one by one. An operator below a buffer sees the source, the order and the stream time of the record that it
gets.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from headrace.extras import import_extra
from headrace.model.record import Headers, Record
from headrace.runtime.environment import Emit, Env
from headrace.runtime.failures import Failures
from headrace.topology.nodes import MapValuesAsync, MapValuesBatch

# (row, order, stream time, key, value, timestamp, headers): a record, after the `CurrentRecord` when it came
Held = tuple[Any, Any, int, Any, Any, int, Headers]


class Failed(NamedTuple):
    """The outcome of a record for which the function raised."""

    error: Exception


class BatchBuffer:
    """Records that wait for a function. `apply` returns one outcome for each record, in their order."""

    def __init__(
        self,
        name: str,
        max_records: int,
        apply: Callable[[Sequence[Held]], Iterable[Any]],
        env: Env,
        failures: Failures,
        emit: Emit,
    ) -> None:
        self._name, self._max_records, self._apply = name, max_records, apply
        self._here, self._failures, self._emit = env.here, failures, emit
        self._held: list[Held] = []

    def take(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        here, held = self._here, self._held
        held.append((here.row, here.order, here.stream_time, key, value, timestamp, headers))
        if len(held) >= self._max_records:
            self.flush()

    def flush(self) -> bool:
        """Lets the records out; returns False if there are none."""
        if not self._held:
            return False
        held, self._held = self._held, []
        here, emit, failures = self._here, self._emit, self._failures
        now = here.row, here.order, here.stream_time
        try:
            for record, outcome in zip(held, self._apply(held), strict=True):
                here.row, here.order, here.stream_time, key, value, timestamp, headers = record
                if isinstance(outcome, Failed):
                    failures.processing(self._name, Record(key, value, timestamp, headers), outcome.error)
                else:
                    emit(key, outcome, timestamp, headers)
        finally:
            here.row, here.order, here.stream_time = now
        return True

    def clear(self) -> None:
        """Forgets the records of a batch that failed."""
        self._held = []


# ---------------------------------------------------------------------------------------------------- lists and arrays
def map_values_batch(node: MapValuesBatch, env: Env, failures: Failures, emit: Emit) -> BatchBuffer:
    """If the function raises, it is called again for each value, so that only the records that it cannot take fail."""
    name, change = node.name, node.change

    def call(values: list[Any]) -> list[Any]:
        results = _to_list(change(_to_arrow(values) if node.arrow else values))
        if len(results) != len(values):
            raise ValueError(f"{name}: the function got {len(values)} values and returned {len(results)}")
        return results

    def call_one(value: Any) -> Any:
        try:
            return call([value])[0]
        except Exception as error:  # noqa: BLE001 -- user code may raise anything
            return Failed(error)

    def apply(held: Sequence[Held]) -> list[Any]:
        values = [record[4] for record in held]
        if len(values) == 1:
            return [call_one(values[0])]
        try:
            return call(values)
        except Exception:  # noqa: BLE001 -- calls with one value find those that fail
            return [call_one(value) for value in values]

    return BatchBuffer(name, node.max_records, apply, env, failures, emit)


def _to_arrow(values: list[Any]) -> Any:
    return import_extra("pyarrow", "spark").array(values)


def _to_list(results: Any) -> list[Any]:
    """The values of a sequence, an Arrow array or a numpy array."""
    for method in ("to_pylist", "tolist"):
        if hasattr(results, method):
            return getattr(results, method)()
    return list(results)


# ------------------------------------------------------------------------------------------------------- asynchronously
WAITING = 1000  # records that are looked up together at most
_FIRST_PAUSE = 0.05  # seconds before the first retry; each later pause is twice as long as the last


def map_values_async(node: MapValuesAsync, env: Env, failures: Failures, emit: Emit) -> BatchBuffer:
    """Looks the records of a buffer up at the same time, up to the capacity, and each argument once."""
    here, select, join = env.here, node.on, node.joiner
    lookup = _Lookup(node)
    cached = _Cache(node.cache_entries, node.cache_ms)

    def choose(key: Any, value: Any) -> Any:
        """What is looked up: (key, value), or what `on` selects."""
        return (key, value) if select is None else select(key, value)

    def apply(held: Sequence[Held]) -> list[Any]:
        arguments = [_attempt(choose, record[3], record[4]) for record in held]
        ids = [_identify(argument, place) for place, argument in enumerate(arguments)]
        outcomes: dict[Any, Any] = {}
        wanted: dict[Any, Any] = {}
        for identity, argument in zip(ids, arguments, strict=True):
            if isinstance(argument, Failed):
                outcomes[identity] = argument
            elif (found := cached.get(identity, here.clock)) is not _MISSING:
                outcomes[identity] = found
            else:
                wanted[identity] = argument
        for identity, outcome in zip(wanted, lookup.run(list(wanted.values())), strict=True):
            outcomes[identity] = outcome
            if not isinstance(outcome, Failed):
                cached.put(identity, outcome, here.clock)
        return [finish(record, outcomes[identity]) for record, identity in zip(held, ids, strict=True)]

    def finish(record: Held, outcome: Any) -> Any:
        if join is None or isinstance(outcome, Failed):
            return outcome
        return _attempt(join, record[3], record[4], outcome)

    return BatchBuffer(node.name, max(WAITING, node.capacity), apply, env, failures, emit)


def _attempt(f: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return f(*arguments)
    except Exception as error:  # noqa: BLE001 -- user code may raise anything
        return Failed(error)


def _identify(argument: Any, place: int) -> Any:
    """The argument as a key of the cache; its place in the buffer if it has no hash, so that it is looked up alone."""
    try:
        hash(argument)
    except TypeError:
        return _Unshared(place)
    # 1 and True are equal, but a service may distinguish them.
    return type(argument), argument


class _Unshared(NamedTuple):
    place: int


class _Lookup:
    """Calls the function for many arguments, at most `capacity` at a time, each with a timeout and repetitions."""

    def __init__(self, node: MapValuesAsync) -> None:
        self._node, self._is_async = node, inspect.iscoroutinefunction(node.lookup)
        self._takes_pair = node.on is None
        self._threads = None if self._is_async else ThreadPoolExecutor(node.capacity, f"{node.name}-lookup")

    def run(self, arguments: list[Any]) -> list[Any]:
        if not arguments:
            return []
        return asyncio.run_coroutine_threadsafe(self._all(arguments), _event_loop()).result()

    async def _all(self, arguments: list[Any]) -> list[Any]:
        room = asyncio.Semaphore(self._node.capacity)
        return await asyncio.gather(*(self._one(argument, room) for argument in arguments))

    async def _one(self, argument: Any, room: asyncio.Semaphore) -> Any:
        async with room:
            for attempt in range(self._node.retries + 1):
                try:
                    async with asyncio.timeout(self._node.timeout_ms and self._node.timeout_ms / 1000):
                        return await self._call(argument)
                except TimeoutError:
                    error: Exception = TimeoutError(f"no answer within {self._node.timeout_ms} ms")
                except Exception as raised:  # noqa: BLE001 -- user code may raise anything
                    error = raised
                if attempt == self._node.retries:
                    return Failed(error)
                await asyncio.sleep(_FIRST_PAUSE * 2**attempt)
        raise AssertionError

    def _call(self, argument: Any) -> Awaitable[Any]:
        given = argument if self._takes_pair else (argument,)
        if self._threads is None:
            return self._node.lookup(*given)
        return asyncio.get_running_loop().run_in_executor(self._threads, self._node.lookup, *given)


_loops: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []
_lock = threading.Lock()


def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process. It lasts as long as the process, so that clients may keep their connections open."""
    with _lock:
        if not _loops or not _loops[-1][1].is_alive():  # a forked process has the loop, but not the thread
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="headrace-lookups", daemon=True)
            thread.start()
            _loops.append((loop, thread))
        return _loops[-1][0]


_MISSING = object()


class _Cache:
    """The last answers. They expire by the clock of the batches."""

    def __init__(self, max_entries: int, expiry: int | None) -> None:
        self._max_entries, self._expiry = max_entries, expiry
        self._entries: OrderedDict[Any, tuple[Any, int]] = OrderedDict()

    def get(self, key: Any, now: int) -> Any:
        found = self._entries.get(key)
        if found is None:
            return _MISSING
        if self._expiry is not None and now >= found[1] + self._expiry:
            del self._entries[key]
            return _MISSING
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: Any, value: Any, now: int) -> None:
        if self._max_entries and not isinstance(key, _Unshared):
            self._entries[key] = value, now
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
