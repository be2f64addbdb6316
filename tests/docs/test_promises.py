"""tests/README.md: the list of promises names tests that exist, and all long tests are listed."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_promise_has_a_number_and_a_test_that_exists():
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", (TESTS / "README.md").read_text(), re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 65))
    for _, promise, names, covered in rows:
        assert covered == "yes" or covered.startswith("partly: "), promise
        for file, test in re.findall(r"`([^`]+)::(\w+)`", names):
            assert f"def {test}(" in (TESTS / file).read_text(), f"{file} has no {test}"
        assert "::" in names, promise


def test_every_file_with_long_tests_is_listed():
    listed = re.findall(r"^\| `(\S+)`: ", (TESTS / "README.md").read_text(), re.MULTILINE)
    mark = "mark." + "long"
    assert sorted(listed) == sorted(
        path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py") if mark in path.read_text()
    )
