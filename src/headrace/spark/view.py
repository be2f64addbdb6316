"""Stores of a running application, for reading: as of the last batch that was committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from headrace.commit.chain import read_delta
from headrace.commit.ledger import Ledger
from headrace.commit.restore import MemoryHome, restore
from headrace.commit.storage import open_storage
from headrace.errors import InvalidStateStoreError
from headrace.model.ids import TaskId
from headrace.model.partitioner import partition_of
from headrace.runtime.task import resolved, serdes_of
from headrace.spark.job import Job
from headrace.state.task_state import TaskState
from headrace.state.views import ReadOnly

# What looks at all keys; everything else begins with a key, and is asked of the partition that the key belongs to.
OF_ALL_KEYS = {
    "all", "backward_all", "backward_fetch_all", "fetch_all", "latest", "prefix_scan", "range", "reverse_all",
    "reverse_range",
}  # fmt: skip


def view_of(job: Job, ledger: Ledger, name: str) -> Any:
    """A store by its name, whichever tasks have it."""
    tasks = [task for task in job.all_tasks() if name in job.stores_of(task.subtopology)]
    if not tasks:
        have = ", ".join(sorted(job.graph.stores)) or "none"
        raise InvalidStateStoreError(f"the topology has no store {name!r} (it has: {have})")
    parts = [store_of(job, ledger, task, name) for task in tasks]
    key = serdes_of(job.config).key(job.graph.stores[name].key)
    return ReadOnly(parts[0]) if len(parts) == 1 else Partitioned([ReadOnly(part) for part in parts], key.encode)


def store_of(job: Job, ledger: Ledger, task: TaskId, name: str) -> Any:
    storage, standing = open_storage(job.checkpoint), ledger.standing(task)
    home = MemoryHome()
    restored = restore(home, standing.version, lambda: standing.chain, lambda link: read_delta(storage, task, link))
    serdes = serdes_of(job.config)
    state = TaskState.open(
        {name: resolved(job.graph.stores[name], serdes)},
        restored.engine,
        key=serdes.default_key,
        value=serdes.default_value,
        persistent=job.config.dsl_store_suppliers_class == "persistent",
        caching=job.config.statestore_cache_max_bytes > 0,
        dropped=lambda reason, count: None,
    )
    return state.store(name)


class Partitioned:
    """One store over the tasks that have its parts; what looks at all keys goes part by part."""

    def __init__(self, parts: list[ReadOnly], encode: Callable[[Any], bytes]) -> None:
        self._parts, self._encode = parts, encode

    def __getattr__(self, method: str) -> Any:
        def of_all(*given: Any) -> Iterator[Any]:
            return chain.from_iterable(getattr(part, method)(*given) for part in self._parts)

        def of_key(key: Any, *given: Any, **options: Any) -> Any:
            place = partition_of(self._encode(key), len(self._parts)) or 0
            return getattr(self._parts[place], method)(key, *given, **options)

        return of_all if method in OF_ALL_KEYS else of_key
