"""The folder of a query: the job, the control file and Spark's own checkpoint, all of which end with the process."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from headrace.spark.processes import lives

_NAME = re.compile(r"headrace-query-(\d+)-\w+")


def new_folder() -> Path:
    """A fresh one; those that killed processes have left are removed."""
    for folder in Path(tempfile.gettempdir()).glob("headrace-query-*"):
        found = _NAME.fullmatch(folder.name)
        if found and not lives(int(found[1])):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"headrace-query-{os.getpid()}-"))
