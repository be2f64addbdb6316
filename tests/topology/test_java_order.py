"""Orders of Java's collections, which Kafka Streams' descriptions show."""

import random

from headrace.topology.java_order import Tree, copied_order, hash_order, string_hash


def test_the_hash_of_a_string_is_javas():
    assert string_hash("") == 0
    assert string_hash("hello") == 99162322 ^ 99162322 >> 16  # "hello".hashCode() in Java
    assert string_hash("KSTREAM-SOURCE-0000000000") == string_hash("KSTREAM-SOURCE-0000000000")


def test_a_character_beyond_the_first_plane_counts_as_two():
    assert string_hash("😀") == 1772899 ^ 1772899 >> 16  # "😀".hashCode() in Java


def test_a_hash_set_goes_by_buckets():
    assert hash_order(["b", "a", "c", "a"]) == ["a", "b", "c"]
    assert hash_order(["q", "a"]) == ["q", "a"]  # one bucket of sixteen: in the order of adding
    assert hash_order(["q", "a"], room=32) == ["a", "q"]  # two of thirty-two


def test_a_copy_is_larger_than_a_set_that_grew():
    names = [chr(ord("a") + i) for i in range(12)] + []
    assert hash_order(["q", *names[:11]])[0] == "q"  # twelve names in sixteen buckets
    assert copied_order(["q", *names[:11]])[-1] == "q"  # in thirty-two


def test_a_tree_is_sorted_and_has_everything_once():
    tree, numbers = Tree(lambda a, b: int(a) - int(b)), [str(n) for n in range(200)]
    random.Random(1).shuffle(numbers)  # noqa: S311
    for number in [*numbers, *numbers]:
        tree.add(number)
    assert list(tree) == sorted(numbers, key=int)


def test_what_is_in_a_tree_stays_where_it_was_put():
    size = {"a": 1, "b": 2}
    tree = Tree(lambda one, other: size[one] - size[other])
    tree.add("a")
    tree.add("b")
    size["a"] = 3
    assert list(tree) == ["a", "b"]
