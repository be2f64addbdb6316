"""Wrong names: the error says what to write, and everything else stays as it was."""

import copy
import inspect
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.hints import RenamedNames, explain_names


@explain_names({"through": "repartition(name=...)"})
@dataclass(frozen=True, slots=True)
class Stream:
    topic: str

    def join(self, other, joiner, *, on=None, store=None):
        """Join with another."""
        return joiner(other)

    @staticmethod
    def of(topic, *, key=None):
        return Stream(topic)

    @classmethod
    def named(cls, name, *, value=None):
        return cls(name)


@explain_names()
class Table(metaclass=RenamedNames):
    @staticmethod
    def key_value(name, *, key=None): ...


Wrong: Any = Stream  # type checkers flag the mistakes of this file
WrongTable: Any = Table


def test_calls_work_as_before():
    assert Stream("a").join([1], len, on=None) == 1
    assert Stream.of("a", key=1) == Stream.named("a", value=2) == Stream("a")


def test_an_object_can_be_copied_and_pickled():
    stream = Stream("a")
    assert copy.deepcopy(stream) == stream
    assert pickle.loads(pickle.dumps(stream)) == stream
    assert not hasattr(stream, "__html__")


def test_signatures_and_docstrings_stay():
    assert list(inspect.signature(Stream.join).parameters) == ["self", "other", "joiner", "on", "store"]
    assert Stream.join.__doc__ == "Join with another."


def test_an_error_inside_the_function_passes_unchanged():
    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        Stream("a").join(5, len)


def test_a_missing_argument_keeps_pythons_message():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'joiner'"):
        Wrong("a").join([1])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Wrong("a").join([], len, foreign_key=1), "did you mean on=?"),
        (lambda: Wrong("a").join([], len, materialized="s"), "did you mean store=?"),
        (lambda: Wrong("a").join([], len, sotre="s"), "did you mean store=?"),
        (lambda: Wrong.of("a", keySerde=1), "Stream.of() has no option keySerde=: did you mean key=?"),
        (lambda: Wrong.named("a", values=1), "did you mean value=?"),
        (lambda: Wrong.of("a", 1), "Stream.of() takes 1 argument by position (topic), not 2"),
        (lambda: WrongTable.key_value("a", keys=1), "did you mean key=?"),
    ],
)
def test_an_unknown_option_lists_the_options_and_a_guess(call, message):
    with pytest.raises(TypeError) as raised:
        call()
    assert message in str(raised.value)
    assert "(options: " in str(raised.value)


@pytest.mark.parametrize("wrong, right", [("Stream('a').joins", "join"), ("Table.key_valeu", "key_value")])
def test_python_adds_its_own_guess_for_a_misspelt_attribute(wrong, right, capsys):
    with pytest.raises(AttributeError) as raised:
        eval(wrong)  # noqa: S307
    sys.__excepthook__(raised.type, raised.value, raised.tb)  # as the interpreter prints it
    assert f"Did you mean: {right!r}?" in capsys.readouterr().err
