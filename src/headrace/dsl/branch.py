"""A stream split into branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar

from headrace.dsl.functions import Function, with_key
from headrace.dsl.place import Place
from headrace.dsl.steps import Operate, Step
from headrace.topology.naming import valid_name
from headrace.topology.nodes import Branch, PassThrough

Stream = TypeVar("Stream")
Then = Callable[[Stream], Stream | None]


class BranchedKStream(Generic[Stream]):
    """Branches are asked in the order in which they are added; the streams are told apart by name."""

    def __init__(self, place: Place, name: str | None, stream: Callable[[Place], Stream]) -> None:
        self._name = place.named(name, "KSTREAM-BRANCH-")
        self._split = Operate(Branch(self._name, (), ()))
        self._place = place.at(Step(self._name, self._split))
        self._stream = stream
        self._streams: dict[str, Stream] = {}
        self._predicates: list[Function] = []
        self._branches: list[str] = []

    def branch(self, predicate: Function, *, name: str | None = None, then: Then[Stream] | None = None) -> Self:
        """Add a branch; `then` gets it, and what it returns takes its place among the streams."""
        self._predicates.append(with_key(predicate, "a predicate"))
        self._add(f"{self._name}{len(self._predicates)}" if name is None else valid_name(self._name + name), then)
        return self

    def default_branch(self, *, name: str | None = None, then: Then[Stream] | None = None) -> dict[str, Stream]:
        """What no predicate wants; gives all streams by name."""
        self._add(f"{self._name}0" if name is None else valid_name(self._name + name), then)
        return self._streams

    def no_default_branch(self) -> dict[str, Stream]:
        """Drop what no predicate wants; gives all streams by name."""
        return self._streams

    def _add(self, name: str, then: Then[Stream] | None) -> None:
        self._place.draft.names.take(name)
        self._branches.append(name)
        self._split.node = Branch(self._name, tuple(self._predicates), tuple(self._branches))
        stream = self._stream(self._place.then(PassThrough(name)))
        kept = stream if then is None else then(stream)
        if kept is not None:
            self._streams[name] = kept
