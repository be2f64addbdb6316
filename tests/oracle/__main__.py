"""python -m tests.oracle FILE…: runs files of cases and tells how many pass, by family."""

# ruff: noqa: T201 -- a command prints

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.oracle.comparing import differences
from tests.oracle.running import run
from tests.oracle.vectors import NAMED, RANDOM, cases, families


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=[NAMED, RANDOM], help="cases, one JSON object per line")
    parser.add_argument("--tagged", action="store_true", help="also those that record a defect of Kafka Streams")
    options = parser.parse_args()
    sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore -- half a character cannot be printed

    passed, failed, total = Counter[str](), Counter[str](), Counter[bool]()
    for case in (case for path in options.files for case in cases(path) if options.tagged or not case.get("tags")):
        found = differences(case, run(case))
        (failed if found else passed).update(families(case))
        total[bool(found)] += 1
        if found:
            print(f"{case['name']}: {found[0]}")
    print(f"{'family':24}{'passed':>8}{'failed':>8}")
    for family in sorted(passed | failed):
        print(f"{family:24}{passed[family]:8}{failed[family]:8}")
    print(f"{total[False]} passed, {total[True]} failed")
    return 1 if total[True] else 0


if __name__ == "__main__":
    sys.exit(main())
