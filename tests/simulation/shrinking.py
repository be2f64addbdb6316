"""Makes a failing run smaller: fewer faults, fewer kinds of them, fewer records, instances and slots, fewer statements.

A smaller run fails in the same way: with an error of the same class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from headrace.errors import TopologyError
from tests.oracle.language import BadCase
from tests.simulation.faults import KINDS
from tests.simulation.programs import UnfitError
from tests.simulation.world import Limits, choose_program, simulate

UNFIT = (UnfitError, TopologyError, BadCase, KeyError, StopIteration)


def failure_of(seed: int, limits: Limits) -> BaseException | None:
    """Runs a seed, and returns what it finds."""
    try:
        simulate(seed, limits)
    except (Exception, AssertionError) as error:  # noqa: BLE001 - every error is one that a run has found
        return error
    return None


def shrink(
    seed: int, error: BaseException, limits: Limits | None = None, *, most_runs: int = 200
) -> tuple[Limits, BaseException]:
    """Returns the limits of the smallest run that a greedy search finds, and its error. It begins with `limits`."""
    limits, runs, found = limits or Limits(), 0, True
    while found:
        found = False
        for smaller in smaller_limits(seed, limits):
            runs += 1
            if runs > most_runs:
                return limits, error
            other = failure_of(seed, smaller)
            if other is not None and type(other) is type(error) and not isinstance(other, UNFIT):
                limits, error, found = smaller, other, True
                break
    return limits, error


def smaller_limits(seed: int, limits: Limits) -> Iterator[Limits]:
    """What to try next, the largest steps first."""
    for faults in sorted({0, 1, 2, limits.faults // 4, limits.faults // 2, limits.faults - 1}):
        if 0 <= faults < limits.faults:
            yield replace(limits, faults=faults)
    for kind in KINDS:
        if kind not in limits.without:
            yield replace(limits, without=limits.without | {kind})
    chosen, program = choose_program(seed, limits, Random(0))  # noqa: S311 - it must repeat
    size = len(program.feed)
    for records in sorted({1, size // 4, size // 2, size - 1}):
        if 0 < records < size:
            yield replace(limits, records=records)
    if limits.instances != 1:
        yield replace(limits, instances=1 if limits.instances in (2, None) else limits.instances - 1)
    if limits.instances is None:
        yield replace(limits, instances=2)
    if limits.slots != 1:
        yield replace(limits, slots=1)
    if chosen.case is not None:
        for statement in reversed(range(len(chosen.case.topology))):
            yield replace(limits, statements=(*limits.statements, statement))


def repeat_command(seed: int, limits: Limits) -> str:
    """The command that runs the same again."""
    options = [f"--family {limits.family}"] if limits.family is not None else []
    options += [f"--faults {limits.faults}"] if limits.faults != Limits().faults else []
    options += [f"--records {limits.records}"] if limits.records is not None else []
    options += [f"--instances {limits.instances}"] if limits.instances is not None else []
    options += [f"--slots {limits.slots}"] if limits.slots is not None else []
    options += [f"--leave-out {','.join(map(str, limits.statements))}"] if limits.statements else []
    options += [f"--without '{','.join(sorted(limits.without))}'"] if limits.without else []
    return " ".join([f"python -m tests.simulation --seed {seed} --runs 1 --trace", *options])


def report(seed: int, error: BaseException, limits: Limits | None = None) -> str:
    """Describes a failure, made smaller."""
    limits, smallest = shrink(seed, error, limits)
    chosen, program = choose_program(seed, limits, Random(0))  # noqa: S311 - it must repeat
    what = repr(chosen.case) if chosen.case is not None else f"{chosen.family}: {chosen.records}"
    return (
        f"seed {seed}: {type(error).__name__}: {error}\n"
        f"made smaller: {type(smallest).__name__}: {smallest}\n{what}\nsettings {chosen.settings}\n"
        f"{len(program.feed)} records. Run it again with\n    {repeat_command(seed, limits)}"
    )
