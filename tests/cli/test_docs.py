"""docs/cli.md names only options that exist. tests/docs/test_code_blocks.py runs the commands that it shows."""

import re
from pathlib import Path

PAGE = (Path(__file__).parent.parent.parent / "docs/cli.md").read_text(encoding="utf-8")


def test_every_option_that_the_page_names_is_one(headrace):
    commands = (
        "run",
        "topology",
        "produce",
        "consume",
        "reset",
        "doctor",
        "demo",
        "pause",
        "drops",
        "trace",
        "replay-batch",
    )
    known = set(re.findall(r"--[\w-]+", "".join(headrace(command, "--help").out for command in commands)))
    known |= {"--debug", "--install-completion", "--partitions", "--replication-factor"}
    assert set(re.findall(r"--[a-z][\w-]+", PAGE)) - known == set()
