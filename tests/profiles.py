"""How many examples the property tests try.

HEADRACE_PROFILE=fast, which `make test-fast` sets, tries an eighth of them. `make test` tries all.
"""

import os

FAST = os.environ.get("HEADRACE_PROFILE") == "fast"


def examples(full: int) -> int:
    """The number of examples to try, where a full run tries `full`."""
    return max(1, full // 8) if FAST else full
