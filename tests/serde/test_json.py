"""JSON, plain and typed."""

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pytest

from headrace.serde import JSON, json_of


@dataclass
class Trade:
    ticker: str
    price: float


@dataclass
class RatedTrade(Trade):
    rating: int = 0


@dataclass(frozen=True)
class Position:
    ticker: str
    sizes: tuple[int, ...]
    at: datetime | None = None


@dataclass(frozen=True)
class Basket:
    positions: list[Position]


@dataclass(frozen=True)
class Tree:
    left: "Tree | None"
    label: str


class Order(msgspec.Struct, frozen=True):
    item: str
    amount: int


class Draft(msgspec.Struct):
    item: str


class Model:
    """As much of a pydantic model as the serde uses."""

    def __init__(self, name):
        self.name = name

    @classmethod
    def model_validate_json(cls, raw):
        return cls(JSON.decode(raw)["name"])

    def model_dump_json(self):
        return f'{{"name": "{self.name}"}}'


def test_plain_json_is_compact_and_comes_back():
    value = {"a": [1, 2.5, None, True, "ü"]}
    assert JSON.encode(value) == '{"a":[1,2.5,null,true,"ü"]}'.encode()
    assert JSON.decode(JSON.encode(value)) == value


@pytest.mark.parametrize("value", [{1, 2}, object(), {1: "a"}, 2**70])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(TypeError):
        JSON.encode(value)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"NaN"])
def test_what_is_not_json_is_refused(raw):
    with pytest.raises(ValueError):
        JSON.decode(raw)


@pytest.mark.parametrize(
    "value",
    [
        Trade("A", 1.5),
        Position("A", (1, 2), datetime(2026, 1, 1, tzinfo=UTC)),
        Order("x", 1),
        Draft("x"),
        Tree(Tree(None, "l"), "r"),
    ],
)
def test_typed_json_comes_back(value):
    serde = json_of(type(value))
    assert serde.decode(serde.encode(value)) == value


def test_a_pydantic_model_comes_back():
    serde = json_of(Model)
    assert serde.decode(serde.encode(Model("a"))).name == "a"


@pytest.mark.parametrize("raw", [b"{}", b'{"ticker": 1, "price": 1}', b'{"ticker": "A", "price": "x"}', b"[]", b""])
def test_json_of_another_shape_is_refused(raw):
    with pytest.raises(ValueError):
        json_of(Trade).decode(raw)


@pytest.mark.parametrize("value", [{"ticker": "A", "price": 1.0}, RatedTrade("A", 1.0), "A"])
def test_a_value_that_would_not_come_back_as_it_went_is_refused(value):
    with pytest.raises(TypeError, match=r"json_of\(Trade\) encodes a Trade, not"):
        json_of(Trade).encode(value)


def test_any_type_of_msgspec_will_do():
    serde = json_of(dict[str, list[int]])
    assert serde.decode(serde.encode({"a": [1]})) == {"a": [1]}


@pytest.mark.parametrize(
    "kind, immutable",
    [(Position, True), (Order, True), (Tree, True), (Trade, False), (Basket, False), (Draft, False), (Model, False),
     (dict, False), (tuple[int, str], True)],
)  # fmt: skip
def test_only_types_that_cannot_be_changed_are_immutable(kind, immutable):
    assert json_of(kind).immutable is immutable
