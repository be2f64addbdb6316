"""The names of a checkpoint's files.

checkpoint                          whose it is
owners/000000000005                 that epoch 5 began; …05.000000000002 that it still ran; …05.released that it ended
manifests/000000000012              batch 12: the commit
deltas/0_1/000000000012-ATTEMPT     what an attempt at batch 12 changed in task 0_1, if it is too large for the manifest
outboxes/0_1/000000000012-ATTEMPT   what it wrote
carried/0_1/000000000012-ATTEMPT-2_0   what it sent back to task 2_0
snapshots/0_1/000000000012-ID       merged deltas, first named by manifest 12 or a later one

The number is that of the first manifest that may name the file. So a file with the number of a manifest that is there,
which no manifest names, will never be named: it is garbage.
"""

from __future__ import annotations

import re

from headrace.model.ids import TaskId

CHECKPOINT = "checkpoint"
MANIFESTS = "manifests/"
OWNERS = "owners/"
SNAPSHOTS = "snapshots"
NUMBERED = (MANIFESTS, "deltas/", "outboxes/", "carried/", "snapshots/")
_MANIFEST = re.compile(r"manifests/(\d{12,})")
_NUMBER = re.compile(r"(\d{12,})(\D.*)?")


def digits(number: int) -> str:
    return f"{number:012}"


def manifest_name(number: int) -> str:
    return MANIFESTS + digits(number)


def manifest_number(name: str) -> int | None:
    """
    >>> manifest_number("manifests/000000000012"), manifest_number("manifests/000000000012.tmp-1")
    (12, None)
    """
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found else None


def attempt_name(folder: str, task: TaskId, number: int, attempt: str) -> str:
    """
    >>> attempt_name("deltas", TaskId(0, 1), 12, "x7")
    'deltas/0_1/000000000012-x7'
    """
    return f"{folder}/{task}/{digits(number)}-{attempt}"


def number_of(name: str) -> int | None:
    """The number of the first manifest that may name a file; None of files that manifests do not name.

    >>> number_of("snapshots/0_1/000000000012-x7"), number_of("owners/000000000012")
    (12, None)
    """
    found = _NUMBER.fullmatch(name.rpartition("/")[2])
    return int(found[1]) if found and name.startswith(NUMBERED) else None
