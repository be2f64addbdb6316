"""Where in a topology a statement lands, so that what is generated has no circles of sub-topologies."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Regions:
    """Sub-topologies in the making: a repartition starts a new one below, what meets becomes one.

    >>> regions = Regions()
    >>> below = regions.below(regions.top)
    >>> regions.meet(regions.top, below)  # the records of `below` would flow into where they come from
    False
    """

    above: list[set[int]] = field(default_factory=lambda: [set()])
    merged: list[int] = field(default_factory=lambda: [0])  # a region that became part of another: that one

    top = 0  # what reads the source topic

    def below(self, region: int) -> int:
        self.above.append({region})
        self.merged.append(len(self.merged))
        return len(self.merged) - 1

    def meet(self, one: int, other: int) -> bool:
        """Makes two regions one; False if that closed a circle."""
        one, other = self.find(one), self.find(other)
        if one == other:
            return True
        if self.leads(one, other) or self.leads(other, one):
            return False
        first, second = min(one, other), max(one, other)
        self.merged[second] = first
        self.above[first] |= self.above[second]
        return True

    def leads(self, one: int, other: int) -> bool:
        """Whether records flow from one region to another."""
        one, seen, to_do = self.find(one), set[int](), [self.find(other)]
        while to_do:
            region = to_do.pop()
            parents = {self.find(above) for at, above in self._edges() if at == region}
            if one in parents:
                return True
            to_do += parents - seen
            seen |= parents
        return False

    def find(self, region: int) -> int:
        while self.merged[region] != region:
            region = self.merged[region]
        return region

    def copy(self) -> Regions:
        return Regions([set(parents) for parents in self.above], list(self.merged))

    def _edges(self) -> list[tuple[int, int]]:
        return [(self.find(region), parent) for region, parents in enumerate(self.above) for parent in parents]
