"""A persistent map behaves like a dictionary that is copied at every step."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.query import persistent_map as module
from headrace.query.persistent_map import PersistentMap
from headrace.state.engine import Version
from tests.profiles import examples

KEYS = st.binary(min_size=1, max_size=3)
STEPS = st.lists(st.dictionaries(KEYS, st.none() | st.binary(max_size=2), max_size=40), max_size=6)


def applied(steps):
    """Every version, with the dictionary that it equals."""
    found, model = PersistentMap(), {}
    yield found, model
    for number, changes in enumerate(steps):
        model = {k: v for k, v in (model | changes).items() if v is not None}
        found = found.after(sorted(changes.items()), Version(number, "x"))
        yield found, model


@settings(max_examples=examples(40))
@given(steps=STEPS, low=KEYS | st.just(b""), high=KEYS | st.none(), size=st.sampled_from([2, 4, 512]))
def test_every_version_stays_what_it_was(steps, low, high, size):
    chunk, module.CHUNK = module.CHUNK, size
    try:
        versions = list(applied(steps))
    finally:
        module.CHUNK = chunk
    for found, model in versions:
        within = sorted((k, v) for k, v in model.items() if k >= low and (high is None or k < high))
        assert list(found.scan(low, high)) == within
        assert list(found.scan(low, high, reverse=True)) == within[::-1]
        assert found.count(low, high) == len(within)
        assert len(found) == len(model)
        assert all(found.get(key) == model.get(key) for changes in steps for key in changes)


def test_a_large_change_makes_chunks_of_bounded_size_and_deletions_leave_no_empty_ones():
    many = [(number.to_bytes(4, "big"), b"v") for number in range(10_000)]
    full = PersistentMap().after(many, Version(1, "a"))
    assert max(len(keys) for keys, _ in full._chunks) <= 2 * module.CHUNK
    rest = full.after([(key, None) for key, _ in many[1:]], Version(2, "b"))
    assert list(rest.scan(b"", None)) == many[:1]
    assert len(rest._chunks) == 1
    assert len(full) == 10_000


def test_a_small_change_shares_all_chunks_but_one():
    many = [(number.to_bytes(4, "big"), b"v") for number in range(10_000)]
    full = PersistentMap().after(many, Version(1, "a"))
    other = full.after([(many[5_000][0], b"w")], Version(2, "b"))
    shared = {id(chunk) for chunk in full._chunks} & {id(chunk) for chunk in other._chunks}
    assert len(shared) == len(full._chunks) - 1
