"""How many examples the property tests try, and how many random cases of Kafka Streams run.

HEADRACE_PROFILE=fast, which `make test-fast` sets, takes an eighth of them. `make test` takes all.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

Some = TypeVar("Some")

FAST = os.environ.get("HEADRACE_PROFILE") == "fast"


def examples(full: int) -> int:
    """The number of examples to try, where a full run tries `full`."""
    return max(1, full // 8) if FAST else full


def sample(full: Sequence[Some]) -> Sequence[Some]:
    """The cases to run, where a full run runs all."""
    return full[::8] if FAST else full
