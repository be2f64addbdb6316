"""Whether a process of this machine still runs."""

from __future__ import annotations

import os


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is somebody else's
    return True
