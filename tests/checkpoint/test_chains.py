"""When a chain of deltas is merged, and how much is written for it."""

from headrace.checkpoint.delta_files import CompactionPolicy, Link, replaced, worn
from headrace.checkpoint.files import Piece

WEAR = CompactionPolicy(links=8, outgrown=100, oldest=10)


def link(number: int, size: int, entries: int = 0, file: int | None = None) -> Link:
    return Link(number, "x", entries or size, Piece(f"f{number}" if file is None else file, 0, size, b""))


def chain(*sizes: int) -> tuple[Link, ...]:
    return tuple(link(number, size) for number, size in enumerate(sizes))


def test_a_short_chain_of_small_deltas_is_left_alone():
    assert worn((), WEAR, 0) is None
    assert worn(chain(10), WEAR, 0) is None
    assert worn(chain(1000, 10, 10, 10), WEAR, 0) is None
    assert worn(chain(10, 30, 30, 30), WEAR, 0) is None  # not worth a file


def test_deltas_that_outgrow_their_base_are_merged_with_it():
    assert worn(chain(150, 100, 60), WEAR, 0) == 0
    assert worn(chain(10, 60, 60), WEAR, 0) == 0


def test_of_a_long_chain_only_what_is_small_is_merged():
    #  base        merged before   new
    assert worn(chain(10_000, 500, 10, 10, 10, 10, 10, 10, 10), WEAR, 0) == 2
    assert worn(chain(10_000, 40, 10, 10, 10, 10, 10, 10, 10), WEAR, 0) == 1
    assert worn(chain(1 << 12, 1 << 8, 1 << 7, 1 << 6, 1 << 5, 1 << 4, 1 << 3, 1 << 2, 1 << 1), WEAR, 0) == 7


def test_deletions_count_though_they_are_small():
    base, deletions = link(0, 10_000, 1000), [link(n, 20, 100) for n in range(1, 9)]
    assert worn((base, *deletions), WEAR, 0) == 0


def test_deltas_in_old_manifests_are_brought_out_of_them():
    old, young = link(5, 10, file=5), link(14, 1, file=14)
    assert worn((old, young), WEAR, 15) is None
    assert worn((old, young), WEAR, 16) == 0
    assert worn((old,), WEAR, 16) == 0
    assert worn((link(0, 1000), old, young), WEAR, 16) == 1
    assert worn((link(0, 1000), link(1, 10), young), WEAR, 99) == 2
    assert worn((link(0, 1000), link(1, 10), young, link(15, 9)), WEAR, 99) == 1


def test_merged_links_are_replaced_wherever_they_are_by_then():
    a, b, c, d = chain(1, 2, 3, 4)
    new = link(9, 9)
    assert replaced((a, b, c), (a, b), new) == (new, c)
    assert replaced((a, b, c, d), (b, c), new) == (a, new, d)
    assert replaced((a, b, c), (b, c), new) == (a, new)
    assert replaced((a, c), (a, b), new) == (a, c)
    assert replaced((), (a,), new) == ()


def test_a_byte_is_written_again_about_once_per_doubling():
    """Ever new keys, a delta of 10 bytes a batch: chains stay short, and what is written is n log n."""
    links, written = (), 0
    for number in range(4096):
        links = (*links, link(number, 10))
        start = worn(links, WEAR, number)
        if start is not None:
            size = sum(part.piece.size for part in links[start:])
            written += size
            links = (*links[:start], link(number, size))
        assert len(links) <= WEAR.links + 1
    assert written < 10 * 4096 * 12
