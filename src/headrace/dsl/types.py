"""The type variables of the DSL, and the shapes of the functions and objects that users give to it.

A function of values takes `(value)` or `(key, value)`: each method has one overload for either. (A union of the two
would be shorter, but pyright infers a lambda from all members of a union at once.) `functions.py` counts the parameters
when the topology is built.

`K` and `V` are the types of keys and values. A method that drops records without a key or a value says so in the type
of its `self`: `self: KStream[K | None, V | None]` with the result `KGroupedStream[K, V]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from typing_extensions import TypeVar

from headrace.model.record import FixedKeyRecord, Record

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
K2 = TypeVar("K2", default=Any)
V2 = TypeVar("V2", default=Any)
A = TypeVar("A", default=Any)  # an aggregate
R = TypeVar("R", default=Any)  # the result of a function
K_co = TypeVar("K_co", covariant=True, default=Any)
V_co = TypeVar("V_co", covariant=True, default=Any)
R_co = TypeVar("R_co", covariant=True, default=Any)
K_contra = TypeVar("K_contra", contravariant=True, default=Any)
V_contra = TypeVar("V_contra", contravariant=True, default=Any)

PartitionFunction = Callable[[str, K, V, int], Any]  # (topic, key, value, partitions) -> partition, several, or None
Initializer = Callable[[], A]
Aggregator = Callable[[K, V, A], A | None]  # None deletes the row
Reducer = Callable[[V, V], V | None]
Merger = Callable[[K, A, A], A | None]


class Encoder(Protocol[V_contra]):
    """The half of a serde that a sink needs: a `Serde[float]` can write a stream of ints."""

    @property
    def encode(self) -> Callable[[V_contra], bytes]: ...


class RecordProcessor(Protocol[K_contra, V_contra]):
    """A processor as the runtime needs it: without the `init` and the `close` that `Processor` has."""

    def process(self, record: Record[K_contra, V_contra], /) -> object: ...


class FixedKeyRecordProcessor(Protocol[K_contra, V_contra]):
    """A `FixedKeyProcessor` as the runtime needs it."""

    def process(self, record: FixedKeyRecord[K_contra, V_contra], /) -> object: ...


class ValueTransformer(Protocol[K_contra, V_contra, R_co]):
    """What the supplier of `KTable.transform_values` makes. It may have `init(context)` and `close()` too."""

    def transform(self, key: K_contra, value: V_contra, /) -> R_co: ...
