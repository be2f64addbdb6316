"""Users' functions are brought into one shape, by the number of their parameters."""

import io
import operator
from functools import partial

import pytest

from headrace.dsl.functions import exactly, printer, topic_extractor, with_key, with_key_joiner


class Tool:
    def of_value(self, value):
        return ("value", value)

    def __call__(self, key, value):
        return (key, value)


@pytest.mark.parametrize(
    "f, result",
    [
        (lambda value: ("value", value), ("value", 2)),
        (lambda key, value: (key, value), (1, 2)),
        (lambda value, factor=10: value * factor, 20),  # what has a default is left alone
        (lambda key, value, factor=10: (key, value * factor), (1, 20)),
        (lambda value=None: value, 2),
        (lambda *both: both, (1, 2)),
        (lambda key, *rest: (key, rest), (2, ())),
        (lambda value, *, factor=10: value * factor, 20),
        (partial(operator.add, 5), 7),
        (partial(lambda prefix, key, value: (prefix, key, value), "x"), ("x", 1, 2)),
        (Tool().of_value, ("value", 2)),
        (Tool(), (1, 2)),
        (str, "2"),  # builtins without a signature
        (int, 2),
        (abs, 2),
        (operator.add, 3),
    ],
)
def test_a_value_function_takes_the_value_or_key_and_value(f, result):
    assert with_key(f)(1, 2) == result


def test_a_function_of_both_is_used_as_it_is():
    f = lambda key, value: value
    assert with_key(f) is f


@pytest.mark.parametrize(
    "f, result",
    [
        (lambda left, right: (left, right), ("l", "r")),
        (lambda key, left, right: (key, left, right), ("k", "l", "r")),
        (lambda left, right, sep="-": left + sep + right, "l-r"),
        (operator.add, "lr"),
        (max, "r"),
        (dict.get, None),
    ],
)
def test_a_joiner_takes_both_values_or_the_key_too(f, result):
    if f is dict.get:
        assert with_key_joiner(f)("k", {"l": 1}, "r") is result
    else:
        assert with_key_joiner(f)("k", "l", "r") == result


@pytest.mark.parametrize(
    "f, message",
    [
        (lambda: 1, "a predicate takes 1 or 2 parameters, but .* has 0"),
        (lambda a, b, c: 1, "a predicate takes 1 or 2 parameters, but .* has 3"),
        (lambda value, *, must: 1, "a predicate takes 1 or 2 parameters"),
        ("upper", "a predicate must be a function, not 'upper'"),
        (None, "a predicate must be a function, not None"),
    ],
)
def test_a_function_of_another_shape_is_refused(f, message):
    with pytest.raises(TypeError, match=message):
        with_key(f, "a predicate")


def test_an_exact_number_of_parameters():
    assert exactly(0, list, "an initializer") is list
    with pytest.raises(TypeError, match=r"an aggregator takes 3 parameters, but .* has 2"):
        exactly(3, lambda value, aggregate: value, "an aggregator")


def test_a_topic_extractor_may_leave_the_context_out():
    assert topic_extractor(lambda key, value: value)("k", "v", None) == "v"
    assert topic_extractor(lambda key, value, context: context)("k", "v", "c") == "c"


def test_printing_shows_label_key_and_value(capsys):
    printer("words", None)("k", 1)
    assert capsys.readouterr().out == "[words]: k, 1\n"
    file = io.StringIO()
    printer("words", file)(None, "v")
    assert file.getvalue() == "[words]: None, v\n"
