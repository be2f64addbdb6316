"""Writes the statements of a random topology, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from tests.properties import claims
from tests.properties import functions as f
from tests.properties.claims import Claim
from tests.properties.functions import Spec
from tests.properties.nodes import Node
from tests.properties.regions import Regions

T = TypeVar("T")


class Discarded(Exception):  # noqa: N818 -- no error: the choice that was made does not fit
    """A step that cannot be taken here."""


class Writer:
    """The topology so far. `steady`: only what keeps a claim (claims.py) is written."""

    def __init__(self, random: Random, *, steady: bool) -> None:
        self._random, self.steady = random, steady
        self.statements: list[Spec] = []
        self.live: list[Node] = []  # streams and tables
        self.sinks: dict[str, Claim] = {}  # by topic
        self.stores: dict[str, Claim] = {}
        self.regions = Regions()
        # The optimizer moves a repartition up to where keys were changed, across processors, whose input then goes to a
        # topic that was made for their output. Kafka Streams does so, too: its ClassCastException is our TypeError.
        self.may_optimize = True
        self._names = 0

    # -------------------------------------------------------------------------------------------------- choosing
    def pick(self, choices: Sequence[T]) -> T:
        return self._random.choice(choices)

    def chance(self, one_in: int) -> bool:
        return self._random.randrange(one_in) == 0

    def name(self, what: str) -> str:
        self._names += 1
        return f"{what}{self._names}"

    def store(self, fields: Spec, one_in: int = 2) -> Spec:
        """The fields, perhaps with a store."""
        if not self.chance(one_in):
            return fields
        return {**fields, "store": self.name("store"), **({"caching": False} if self.chance(4) else {})}

    def key_selector(self, node: Node) -> tuple[Spec, str]:
        inner = f.inner_type(node.key)
        more = f.PLAIN_KEY_SELECTORS if inner is None else [(f.fn("unwindow"), inner)] * 5
        select, key = self.pick([*f.KEY_SELECTORS, *more])
        return select, f.typed(key, node.key)

    # --------------------------------------------------------------------------------------------------- writing
    @contextmanager
    def step(self) -> Iterator[None]:
        """Statements that belong together: if they are discarded nothing is left of them."""
        before = len(self.statements), len(self.live), dict(self.stores), dict(self.sinks), self.regions.copy()
        with suppress(Discarded):
            try:
                yield
            except Discarded:
                statements, live, self.stores, self.sinks, self.regions = before
                del self.statements[statements:], self.live[live:]
                raise

    def state(self, op: str, fields: Spec) -> None:
        """A statement that defines nothing."""
        self.statements.append({"op": op, **fields})

    def define(
        self, op: str, fields: Spec, kind: str, types: tuple[str, str], claim: Claim | None, **rest: Any
    ) -> Node:
        """`rest`: the other fields of the node."""
        if claim is None and self.steady:
            raise Discarded
        node = Node(self.name("n"), kind, *types, claim=claim or Claim(), **rest)
        self.statements.append({"id": node.id, "op": op, **fields})
        if kind in ("stream", "table"):
            self.live.append(node)
        if kind == "table" and "store" in fields:
            self.stores[fields["store"]] = node.claim
            node = self.live[-1] = replace(node, store=fields["store"])
        return node

    def stream(self, op: str, subject: Node, fields: Spec, key: str = f.SAME, value: str = f.SAME, **rest: Any) -> Node:
        """A stream made of one stream."""
        claim = claims.of_stream(op, fields, subject.claim)
        if op in ("process", "processValues") and subject.rekeyed:
            self.may_optimize = False
        types = f.typed(key, subject.key), f.typed(value, subject.value)
        rest = {"region": subject.region, "rekeyed": subject.rekeyed} | rest
        return self.define(op, {"from": subject.id, **fields}, "stream", types, claim, **rest)

    def table(self, op: str, subject: Node, fields: Spec, value: str = f.SAME) -> Node:
        """A table made of one table."""
        claim = claims.of_table(op, fields, subject.claim, subject.windows)
        types = subject.key, f.typed(value, subject.value)
        rest = {"region": subject.region, "windows": subject.windows, "joinable": subject.joinable or "store" in fields}
        rest["versioned"] = None if "store" in fields else subject.versioned
        return self.define(op, {"from": subject.id, **fields}, "table", types, claim, **rest)

    def to_stream(self, table: Node, fields: Spec, key: str = f.SAME) -> Node:
        claim = claims.of_table("toStream", fields, table.claim, table.windows)
        types, rekeyed = (f.typed(key, table.key), table.value), "key" in fields
        return self.define(
            "toStream", {"from": table.id, **fields}, "stream", types, claim, region=table.region, rekeyed=rekeyed
        )

    def own_store(self, key: str, value: str, fields: Spec) -> str:
        name = self.name("store")
        self.state("store", {"store": name, "key": key, "value": value, **fields})
        self.stores[name] = Claim()
        return name

    # ---------------------------------------------------------------------------------------------------- regions
    def landing(self, node: Node) -> int:
        """Where a node is when its keys matter."""
        return self.regions.below(node.region) if node.rekeyed else node.region

    def meet(self, one: Node, other: Node) -> tuple[Node, Node, int]:
        """Both nodes in one region; a stream that flows towards where the other one is, is repartitioned first."""
        here, there = self.landing(one), self.landing(other)
        if self.regions.meet(here, there):
            return one, other, here
        one_is_above = self.regions.leads(here, there)
        above, below, region = (one, other, there) if one_is_above else (other, one, here)
        if above.kind != "stream":
            raise Discarded
        above = self.repartition(above)
        if not self.regions.meet(above.region, region):
            raise Discarded
        return (above, below, region) if one_is_above else (below, above, region)

    def repartition(self, node: Node, fields: Spec | None = None) -> Node:
        return self.stream("repartition", node, fields or {}, region=self.regions.below(node.region), rekeyed=False)

    # -------------------------------------------------------------------------------------------------- the sinks
    def write_sinks(self) -> None:
        """All that nothing hangs on is written to a topic, and some of the rest."""
        used = {s.get(field) for s in self.statements if s["op"] != "cogroup" for field in ("from", "other")}
        for node in list(self.live):
            if node.id not in used or self.chance(5):
                with self.step():
                    self.sink(node if node.kind == "stream" else self.to_stream(node, {}))

    def sink(self, node: Node) -> None:
        topic = self.name("out")
        fields: Spec = {"from": node.id, "topic": topic}
        if node.claim.exact and self.chance(12):
            router = f.fn("by_pred", pred=self.pick(f.PREDICATES), then=topic)
            fields = {"from": node.id, "router": {**router, "else": f"{topic}else"}}
            self.sinks[f"{topic}else"] = node.claim
        self.sinks[topic] = node.claim
        self.state("to", fields)
