"""A function that keeps state in a variable gets a warning when the topology is built; one that reads gets none."""

# ruff: noqa: FURB110, PLW0108, PLW0603 - the cases are what users write

import heapq
import itertools
import operator
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from functools import lru_cache, partial

import pytest

from headrace import CapturedStateWarning, Processor, StreamsBuilder, TimeWindows, Topology, serde
from headrace.topology.captured_state import find_change

counts: dict = {}
names = {"a": "Ada"}
lists = {"a": [1]}
groups = defaultdict(list)
words: list = []
total = 0


class Tally:
    shared: list = []

    def __init__(self):
        self.total = 0
        self.seen = []

    def add(self, value):
        self.total += 1
        return self.total

    def note(self, value):
        self.seen.append(value)

    def read(self, value):
        return self.total + len(self.seen)

    def __call__(self, value):
        self.seen.append(value)


tally = Tally()


def set_item(value):
    counts[value] = 1


def add_to_item(value):
    counts[value] += 1


def delete_item(value):
    del counts[value]


def set_slice(value):
    words[0:1] = [value]


def assign_global(value):
    global total
    total += value


def add_to_attribute(value):
    tally.total += 1


def append_to_attribute(value):
    tally.seen.append(value)


def append_to_element(value):
    lists[value].append(1)


def append_to_new_element(value):
    groups[value].append(1)


def change_an_alias(value):
    mine = counts
    mine[value] = 1


def change_a_default(value, seen=set()):  # noqa: B006
    seen.add(value)


def change_after_an_error(value):
    try:
        return counts[value]
    except KeyError:
        counts[value] = 0


def change_in_a_comprehension(value):
    return [words.append(word) for word in value]


def change_under_a_condition(value):
    counts[value if value else "none"] = 1 if value else 2


def change_in_an_inner_function(value):
    def inner():
        words.append(value)

    return inner()


def call_a_function_that_changes(value):
    return set_item(value)


def first_argument_that_changes(table, value):
    table.update({value: 1})


def in_closures():
    """Functions of variables that an enclosing function has."""
    bag, order, queue, data, heap, count = Counter(), OrderedDict(), deque(), bytearray(), [], 0
    ids = itertools.count()

    def assign_nonlocal(value):
        nonlocal count
        count += 1

    return {
        "nonlocal": (assign_nonlocal, "count"),
        "Counter": (lambda value: bag.update([value]), "bag"),
        "OrderedDict": (lambda value: order.move_to_end(value), "order"),
        "deque": (lambda value: queue.appendleft(value), "queue"),
        "bytearray": (lambda value: data.extend(value), "data"),
        "heap": (lambda value: heapq.heappush(heap, value), "heap"),
        "iterator": (lambda value: next(ids), "ids"),
        "setdefault": (lambda value: order.setdefault(value, 0), "order"),
    }


CHANGES = {
    "set item": (set_item, "counts"),
    "add to item": (add_to_item, "counts"),
    "delete item": (delete_item, "counts"),
    "set slice": (set_slice, "words"),
    "global": (assign_global, "total"),
    "attribute": (add_to_attribute, "tally.total"),
    "list in attribute": (append_to_attribute, "tally.seen"),
    "list in dict": (append_to_element, "lists[…]"),
    "list in defaultdict": (append_to_new_element, "groups[…]"),
    "alias": (change_an_alias, "counts"),
    "default": (change_a_default, "seen"),
    "after an error": (change_after_an_error, "counts"),
    "comprehension": (change_in_a_comprehension, "words"),
    "condition": (change_under_a_condition, "counts"),
    "inner function": (change_in_an_inner_function, "words"),
    "called function": (call_a_function_that_changes, "counts"),
    "partial": (partial(first_argument_that_changes, counts), "table"),
    "bound method": (tally.add, "Tally.total"),
    "bound method with a list": (tally.note, "Tally.seen"),
    "callable object": (tally, "Tally.seen"),
    "method that is called": (lambda value: tally.add(value), "tally.total"),
    "method of a list": (words.append, "a list"),
    **in_closures(),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_is_found(case):
    function, variable = CHANGES[case]
    change = find_change(function)
    assert change is not None
    assert variable in change.target
    assert change.file == __file__


def read_in_many_ways(value):
    found = counts.get(value, names[value])
    if value in counts and len(words) > 1:
        found = words[0], words[1:], lists[value][0], sorted(words), max(counts.values())
    return [word for word in words if word in counts], {**counts, value: found}, tally.total, tally.seen


def change_what_is_its_own(value):
    mine, bag = dict(counts), []
    mine[value] = 1
    mine.update(names)
    bag.append(mine)
    copied = counts.copy()
    copied.pop(value, None)
    fresh = {word: [] for word in words}
    fresh[value].append(1)
    mine = counts
    mine = {}
    mine[value] = 1
    return bag, copied, fresh


def change_its_own_variables_in_inner_functions(value):
    seen, count = [], 0

    def inner(word):
        nonlocal count
        count += 1
        seen.append(word)

    for word in value:
        inner(word)
    return seen, count


def change_the_argument(value):
    value["name"] = names["a"]
    value.setdefault("other", []).append(counts.get("a"))
    return value


def index_by_what_is_captured(value):
    mine = {}
    mine[names["a"]] = counts
    value[names["a"]] += 1
    return mine


@lru_cache
def cached(value):
    return names[value]


def default_that_is_read(value, table={"a": 1}):  # noqa: B006
    return table[value]


READS = {
    "reads": read_in_many_ways,
    "own objects": change_what_is_its_own,
    "own variables": change_its_own_variables_in_inner_functions,
    "argument": change_the_argument,
    "index": index_by_what_is_captured,
    "lookup": lambda value: names[value],
    "get": names.get,
    "method that reads": tally.read,
    "called method that reads": lambda value: tally.read(value),
    "cache": cached,
    "called cache": lambda value: cached(value),
    "default": default_that_is_read,
    "builtin": len,
    "class": str,
    "method of a class": str.upper,
    "item": operator.itemgetter("a"),
    "library": lambda value: heapq.nlargest(2, [*words, value]),
}


@pytest.mark.parametrize("case", READS)
def test_reading_is_no_change(case):
    assert find_change(READS[case]) is None


# ------------------------------------------------------------------------------------------- where a topology is built
def warnings_of(build):
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        build(StreamsBuilder())
    return [warning for warning in given if issubclass(warning.category, CapturedStateWarning)]


def test_the_warning_names_the_function_the_line_the_variable_and_the_way_out():
    (given,) = warnings_of(lambda builder: builder.stream("in").map_values(set_item))
    line = set_item.__code__.co_firstlineno + 1
    assert (given.filename, given.lineno) == (__file__, line)
    assert str(given.message).startswith(f"the function set_item ({__file__}:{line}) changes the dict 'counts'. ")
    assert "Keep state in a store: aggregate(...), or a processor with a store" in str(given.message)


def test_a_function_with_many_changes_gives_one_warning():
    def change_much(value):
        words.append(value)
        counts[value] = 1

    assert len(warnings_of(lambda builder: builder.stream("in").filter(change_much))) == 1


VERBS = {
    "filter": lambda stream: stream.filter(lambda value: words.append(value)),
    "map": lambda stream: stream.map(lambda key, value: (words.append(key), value)),
    "flat_map": lambda stream: stream.flat_map(lambda key, value: [words.append(key)]),
    "flat_map_values": lambda stream: stream.flat_map_values(lambda value: [words.append(value)]),
    "select_key": lambda stream: stream.select_key(lambda key, value: words.append(value)),
    "foreach": lambda stream: stream.foreach(words.append),
    "branch": lambda stream: stream.split().branch(lambda value: words.append(value)),
    "group_by": lambda stream: stream.group_by(lambda key, value: words.append(value)),
    "to": lambda stream: stream.to(lambda key, value, context: words.append(value)),
    "aggregate": lambda stream: stream.group_by_key().aggregate(dict, lambda k, v, a: counts.update({k: v})),
    "initializer": lambda stream: stream.group_by_key().aggregate(lambda: words.pop(), lambda k, v, a: a),
    "reduce": lambda stream: stream.group_by_key().reduce(lambda a, v: words.append(v)),
    "windowed": lambda s: s.group_by_key().windowed_by(TimeWindows.of(5)).reduce(lambda a, v: words.append(v)),
    "join": lambda stream: stream.join(stream.to_table(), lambda left, right: words.append(left)),
    "table": lambda stream: stream.to_table().map_values(lambda value: words.append(value)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_warns_once(verb):
    assert len(warnings_of(lambda builder: VERBS[verb](builder.stream("in")))) == 1


def test_a_timestamp_extractor_warns():
    def extract(record, partition_time):
        return counts.setdefault(record.key, 0)

    assert len(warnings_of(lambda builder: builder.stream("in", timestamp=extract))) == 1


class SharesAList(Processor):
    seen: list = []

    def process(self, record):
        self.seen.append(record)


class ChangesAGlobal(Processor):
    def process(self, record):
        counts[record.key] = record.value


class KeepsItsOwn(Processor):
    seen: list = []

    def __init__(self):
        self.seen, self.table = [], {}

    def init(self, context):
        self.context = context
        self.count = 0

    def process(self, record):
        self.seen.append(record)
        self.table[record.key] = names.get(record.key)
        self.count += 1


@pytest.mark.parametrize("processor, variable", [(SharesAList, "SharesAList.seen"), (ChangesAGlobal, "counts")])
def test_a_processor_that_shares_state_with_others_warns(processor, variable):
    with pytest.warns(CapturedStateWarning, match=f"the class {processor.__name__} .* changes .*'{variable}'"):
        Topology().add_source("in", "words", key=serde.STRING).add_processor("p", processor, "in")
    assert len(warnings_of(lambda builder: builder.stream("in").process(lambda: processor()))) == 1


def test_a_processor_may_change_its_own_attributes():
    assert warnings_of(lambda builder: builder.stream("in").process(KeepsItsOwn)) == []
