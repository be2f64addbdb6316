"""How many examples the property tests try.

HEADRACE_PROFILE=fast, which `make test-fast` sets, tries a quarter of them. `make test` tries all.
"""

import os

FAST = os.environ.get("HEADRACE_PROFILE") == "fast"


def examples(full: int) -> int:
    """The number of examples to try, where a full run tries `full`."""
    return max(1, full // 4) if FAST else full
