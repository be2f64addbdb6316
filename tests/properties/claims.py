"""With caching on: what stays the same however the input is cut into batches.

A cache passes on the last update that a key had in a batch. So what lies above the first cache is *exact*: the same
records in the same order. Below it the *last* value of every key is the same, as long as what lies between looks at
one key and at one value at a time. Kafka Streams has the same limits; these depend on the cut, so nothing is claimed
of them:

- aggregates, joins and processors with stores on the stream of a cached table: they count or pair updates, not rows;
- filters, branches, flat_maps, merges and new keys of such a stream by its values: the last record that passes may be
  one that a batch leaves out;
- functions that make a value of None, where rows are deleted: a row that comes and goes within a batch is never seen;
- `group_by` of such a table with aggregates that depend on the order of rows or cannot subtract: rows arrive in
  another order. Of groups whose last row is gone, 0 and nothing count as the same; a group's timestamp is the largest
  that arrived;
- `group_by` and `filter` of a join of cached tables that has no cache of its own: in a batch that changes both sides
  the old value that goes with an update was never passed on, so a wrong one is subtracted, or a deletion left out as
  no news;
- inner joins of two such tables that both delete rows: a row deleted on both sides in one batch finds no partner to
  take back; joins with a table whose deletions come later than its values, or too late for the
  other side, likewise;
- cached sessions that are merged after their retention: what was passed on before is not taken back, as in Kafka
  Streams, whose cache shows them for longer than the store below it;
- joins of cached tables with windowed ones that have no cache: whether a row can still be seen when the cache passes
  its updates on depends on when that is;
- timestamps of joins with a table that deletes: a deletion's timestamp is seen only if the row was there before the
  batch;
- joins of streams with tables, and looks into stores, that a cache updates only at the end of a batch;
- suppression by time limit, or of sessions, below a cache: what is let out depends on when each update came; `until
  window closes` stands, as a window's last update comes before the one that closes it, if each moves the time (so: no
  deletions);
- joins with a table so suppressed that has no store: whether a window was let out once or twice decides what is
  found;
- the time of a task that reads what a cache passes on: punctuations and `times` are claimed of the first sub-topology
  only;
- transformers that count their calls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

Fields = dict[str, Any]

BY_KEY = {"always", "key_not_null", "key_eq", "key_contains"}  # predicates
SEES_NO_NULL = {"value_contains", "value_eq", "value_gt", "value_lt", "value_even", "value_not_null"}  # predicates
OF_NULL = {"with_key", "null_to", "const", "key_as_value"}  # value mappers that make a value of None
OF_KEY = {"same", "key_append", "key_length", "key_first_char", "const_key", "unwindow"}  # key selectors
ONE_TO_ONE = {"same", "key_append"}  # key selectors
NEVER_NULL = {"concat", "concat_key", "sum"}  # joiners
TURNS_NULL = {"null_if_contains"}  # value mappers that make None of a value
STATELESS = {"forward", "emit_twice", "add_header", "v_upper", "v_emit_twice", "v_filter"}  # processors
COUNTING = {"running_count", "count_punctuate", "window_count", "v_count", "tick"}  # processors that forward no None


@dataclass(frozen=True)
class Claim:
    """Of a stream or table: the last value of every key does not depend on the cut, and more."""

    exact: bool = True  # nor do all its records, with their order, timestamps and headers
    deletes: bool = True  # values may be None, rows may go
    times: bool = True  # nor does the last timestamp
    prompt: bool = True  # of a table: who looks a key up sees it as if there were no caches
    olds: bool = True  # of a table: the old value that goes with an update is the one that was passed on before
    zeros: bool = False  # of a table: 0 counts as no value
    behind: bool = False  # of a table: who looks a key up while its update goes out sees the value before
    fades: bool = False  # of a table: rows are out of sight when they have expired
    # Without caching, the first old value of an aggregated row is that of the initializer, and where one update changes
    # both sides of a join its old values mix: a `group_by` takes out what it was never given, as in Kafka Streams.
    odd_olds: bool = False  # of a table: that is so
    alike: bool = True  # without caching it is the same


def cached(fields: Fields) -> bool:
    return fields.get("caching", True) and "versioned_ms" not in fields


def source_table(fields: Fields) -> Claim:
    return Claim(exact=not cached(fields))


# ------------------------------------------------------------------------------------------------------------ streams
def of_stream(op: str, fields: Fields, claim: Claim) -> Claim | None:  # noqa: PLR0911 - one match over all operators
    """Of what a verb makes of one stream."""
    deletes = claim.deletes
    if claim.zeros and op not in {"peek", "repartition", "to"}:
        return None
    match op, fields:
        case "peek" | "repartition", _:
            return claim
        case (("filter" | "filterNot"), {"pred": {"fn": name}}):
            seen = deletes and not (name in SEES_NO_NULL if op == "filter" else name == "value_null")
            return replace(claim, deletes=seen) if claim.exact or name in BY_KEY else None
        case "mapValues", {"value": {"fn": name}}:
            return mapped(claim, name) if claim.exact or name not in OF_NULL or not deletes else None
        case "map", {"value": {"fn": name}}:
            return mapped(claim, name) if claim.exact else None
        case "selectKey", {"key": {"fn": name}}:
            return claim if claim.exact or name in ONE_TO_ONE else None
        case (("process" | "processValues"), {"processor": {"fn": name, **rest}}):
            by_key = rest.get("pred", {"fn": "always"})["fn"] in BY_KEY
            if not claim.exact:
                return claim if name in STATELESS and by_key else None
            return replace(claim, deletes=name not in COUNTING)
        case (("flatMap" | "flatMapValues"), {"flat": {"fn": name}}):
            without_null = name in {"key_words", "lengths", "chars"} or (op, name) == ("flatMapValues", "words")
            return replace(claim, deletes=deletes and not without_null) if claim.exact else None
        case "to", _:
            return claim if claim.exact or "router" not in fields else None
    return claim if claim.exact else None


def mapped(claim: Claim, mapper: str) -> Claim:
    if mapper in OF_NULL:
        return replace(claim, deletes=mapper == "key_as_value")  # keys of streams may be None
    return replace(claim, deletes=claim.deletes or mapper in TURNS_NULL)


def of_streams(op: str, fields: Fields, one: Claim, other: Claim) -> Claim | None:
    """Of `merge`, and of joins of streams."""
    if not (one.exact and other.exact):
        return None
    if op == "merge":
        return replace(one, deletes=one.deletes or other.deletes)
    return Claim(deletes=fields["joiner"]["fn"] not in NEVER_NULL)


def of_stream_and_table(fields: Fields, stream: Claim, table: Claim) -> Claim | None:
    return Claim(deletes=fields["joiner"]["fn"] not in NEVER_NULL) if stream.exact and table.prompt else None


def to_table(fields: Fields, claim: Claim) -> Claim | None:
    if claim.exact:
        return Claim(exact=not cached(fields), deletes=claim.deletes)
    if claim.zeros or "versioned_ms" in fields:
        return None
    return replace(claim, exact=False, prompt=False, olds=True, behind=False, fades=False, odd_olds=False)


def aggregated(op: str, fields: Fields, claims: list[Claim], windows: Fields | None, *, on_close: bool) -> Claim | None:
    """Of aggregates of streams."""
    if not all(claim.exact for claim in claims):
        return None
    session = windows is not None and windows["type"] == "session"
    if session and cached(fields) and not on_close and "retention_ms" not in fields:
        return None
    nulls_count = windows is not None and windows["type"] != "sliding" and op == "reduce" and claims[0].deletes
    function = (fields.get("reducer") or fields.get("agg") or {"fn": op})["fn"]
    resets = function in {"concat_reset", "null_on"} or (op == "aggregate" and "agg" not in fields)  # of a cogroup
    exact = on_close or not cached(fields)
    return Claim(
        exact=exact,
        deletes=session or nulls_count or resets,
        fades=exact and windows is not None and "retention_ms" not in fields,
        odd_olds=op != "reduce" and not session,
    )


# ------------------------------------------------------------------------------------------------------------- tables
def of_table(op: str, fields: Fields, claim: Claim, windows: Fields | None) -> Claim | None:  # noqa: C901, PLR0911, PLR0912 - a case a verb
    """Of what a verb makes of one table."""
    if claim.zeros:
        no_zeros = op == "filter" and fields["pred"]["fn"] == "value_gt"
        if no_zeros:
            claim = replace(claim, zeros=False)
        elif op != "toStream":
            return None
    match op, fields:
        case "filter" | "filterNot", {"pred": {"fn": name}}:
            filtered = replace(claim, deletes=claim.deletes or name not in BY_KEY)
            if "store" in fields:
                return kept(fields, filtered)
            alike = claim.alike and (claim.exact or not claim.odd_olds)
            return replace(filtered, alike=alike) if claim.exact or claim.olds else None
        case "mapValues", {"value": {"fn": name}}:
            return kept(fields, replace(claim, deletes=claim.deletes or name in TURNS_NULL))
        case "transformValues", {"transformer": {"fn": name}}:
            if not claim.exact and (name == "t_count" or (name == "t_with_key" and claim.deletes)):
                return None
            return kept(fields, replace(claim, deletes=name == "t_nullable" and claim.deletes))
        case "toStream", {"key": {"fn": name}}:
            return claim if claim.exact or (name in ONE_TO_ONE and not claim.zeros) else None
        case "toStream", _:
            return claim
        case "suppress", {"kind": kind}:
            if claim.exact:
                return claim
            steady = kind == "until_window_closes" and windows is not None and windows["type"] != "session"
            return replace(claim, prompt=False, behind=True) if steady and not claim.deletes else None
        case "groupBy", {"key": {"fn": key}, "value": {"fn": value}}:
            zeros = claim.deletes or key not in OF_KEY or value in TURNS_NULL
            alike = claim.alike and not claim.odd_olds
            return replace(claim, zeros=zeros, alike=claim.exact or alike) if claim.olds else None
    return claim if claim.exact else None


def kept(fields: Fields, claim: Claim) -> Claim:
    """Of a table computed from one with this claim, with a store or without."""
    if "store" not in fields:
        return claim
    exact = claim.exact and not cached(fields)
    return replace(claim, exact=exact, prompt=claim.exact, olds=True, behind=False, fades=False, odd_olds=False)


def joined_tables(op: str, fields: Fields, left: Claim, right: Claim) -> Claim | None:
    deletes = left.deletes or right.deletes or fields["joiner"]["fn"] not in NEVER_NULL
    both_exact, stored = left.exact and right.exact, join_is_stored(fields)
    if not both_exact:
        too_late = any(
            one.deletes and not (one.prompt and (one.exact or not other.exact))
            for one, other in ((left, right), (right, left))
        )
        both_delete = op == "join" and left.deletes and right.deletes
        if too_late or both_delete or any(one.zeros or one.behind or one.fades for one in (left, right)):
            return None
    return Claim(
        exact=both_exact and not (stored and cached(fields)),
        deletes=deletes,
        times=both_exact or (left.times and right.times and not (left.deletes or right.deletes)),
        prompt=both_exact if stored else left.prompt and right.prompt,
        olds=both_exact or (stored and cached(fields)),
        odd_olds=True,
        alike=left.alike and right.alike,
    )


def join_is_stored(fields: Fields) -> bool:
    """Unlike that of other tables a join's store needs no name, only a Materialized."""
    return "store" in fields or "serdes" in fields


def regrouped(op: str, fields: Fields, claim: Claim) -> Claim | None:
    """Of aggregates of a grouped table; `claim` is that of the grouped table."""
    if claim.exact:
        function = (fields.get("reducer") or fields.get("agg") or {"fn": op})["fn"]
        return Claim(exact=not cached(fields), deletes=function == "null_on")
    adds_up = op == "count" or (fields.get("reducer") or fields.get("agg") or {"fn": ""})["fn"] in {"sum", "count"}
    if not adds_up or "versioned_ms" in fields:
        return None
    return Claim(exact=False, deletes=False, times=False, prompt=False, zeros=claim.zeros, alike=claim.alike)
