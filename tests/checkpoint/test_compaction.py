"""When a chain of deltas is merged, and how much is written for it."""

from headrace.checkpoint.compaction import CompactionPolicy, find_merge_start, replace_deltas
from headrace.checkpoint.files import BlobRef, DeltaRef

POLICY = CompactionPolicy(max_deltas=8, min_bytes=100, max_age=10)


def delta(number: int, size: int, entries: int = 0, file: int | None = None) -> DeltaRef:
    return DeltaRef(number, "x", entries or size, BlobRef(f"f{number}" if file is None else file, 0, size, b""))


def chain(*sizes: int) -> tuple[DeltaRef, ...]:
    return tuple(delta(number, size) for number, size in enumerate(sizes))


def test_a_short_chain_of_small_deltas_is_left_alone():
    assert find_merge_start((), POLICY, 0) is None
    assert find_merge_start(chain(10), POLICY, 0) is None
    assert find_merge_start(chain(1000, 10, 10, 10), POLICY, 0) is None
    assert find_merge_start(chain(10, 30, 30, 30), POLICY, 0) is None  # not worth a file


def test_deltas_that_outgrow_their_base_are_merged_with_it():
    assert find_merge_start(chain(150, 100, 60), POLICY, 0) == 0
    assert find_merge_start(chain(10, 60, 60), POLICY, 0) == 0


def test_of_a_long_chain_only_what_is_small_is_merged():
    #  base        merged before   new
    assert find_merge_start(chain(10_000, 500, 10, 10, 10, 10, 10, 10, 10), POLICY, 0) == 2
    assert find_merge_start(chain(10_000, 40, 10, 10, 10, 10, 10, 10, 10), POLICY, 0) == 1
    assert (
        find_merge_start(chain(1 << 12, 1 << 8, 1 << 7, 1 << 6, 1 << 5, 1 << 4, 1 << 3, 1 << 2, 1 << 1), POLICY, 0) == 7
    )


def test_deletions_count_though_they_are_small():
    base, deletions = delta(0, 10_000, 1000), [delta(n, 20, 100) for n in range(1, 9)]
    assert find_merge_start((base, *deletions), POLICY, 0) == 0


def test_deltas_in_old_manifests_are_brought_out_of_them():
    old, young = delta(5, 10, file=5), delta(14, 1, file=14)
    assert find_merge_start((old, young), POLICY, 15) is None
    assert find_merge_start((old, young), POLICY, 16) == 0
    assert find_merge_start((old,), POLICY, 16) == 0
    assert find_merge_start((delta(0, 1000), old, young), POLICY, 16) == 1
    assert find_merge_start((delta(0, 1000), delta(1, 10), young), POLICY, 99) == 2
    assert find_merge_start((delta(0, 1000), delta(1, 10), young, delta(15, 9)), POLICY, 99) == 1


def test_merged_links_are_replaced_wherever_they_are_by_then():
    a, b, c, d = chain(1, 2, 3, 4)
    new = delta(9, 9)
    assert replace_deltas((a, b, c), (a, b), new) == (new, c)
    assert replace_deltas((a, b, c, d), (b, c), new) == (a, new, d)
    assert replace_deltas((a, b, c), (b, c), new) == (a, new)
    assert replace_deltas((a, c), (a, b), new) == (a, c)
    assert replace_deltas((), (a,), new) == ()


def test_a_byte_is_written_again_about_once_per_doubling():
    """Ever new keys, a delta of 10 bytes a batch: chains stay short, and what is written is n log n."""
    chain_, written = (), 0
    for number in range(4096):
        chain_ = (*chain_, delta(number, 10))
        start = find_merge_start(chain_, POLICY, number)
        if start is not None:
            size = sum(part.blob.size for part in chain_[start:])
            written += size
            chain_ = (*chain_[:start], delta(number, size))
        assert len(chain_) <= POLICY.max_deltas + 1
    assert written < 10 * 4096 * 12
