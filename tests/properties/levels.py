"""Runs a topology level by level on batches, in this process: what a cluster does, without the cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from headrace import Topology
from headrace.config import Config
from headrace.model.ids import TaskId
from headrace.runtime.rows import Inputs, Output, Row, batch_rows
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import Engine, Version
from headrace.state.keys import decode_duplicate
from headrace.state.window import WindowedDuplicates
from headrace.topology.subtopologies import plan


class Levels:
    """One task per sub-topology, one partition of everything; a batch runs through all levels, then is committed.

    `engines` makes the engine of a stage, or opens it again after `restart`.
    """

    def __init__(self, topology: Topology, config: Config, engines: Callable[[int], Engine]) -> None:
        self._graph, self._config, self._engines = topology.graph(), config, engines
        self.plan = plan(self._graph)
        self.dropped = Counter[str]()
        self._version, self._offsets = 0, defaultdict[str, int](int)
        stages = self.plan.stages.values()
        self._readers = {topic: stage.number for stage in stages for topic in stage.topics}
        self._inner = {f"{config.application_id}-{topic}": stage.number for stage in stages for topic in stage.inputs}
        self._tasks: dict[int, Task] = {}
        self._open()

    def _open(self) -> None:
        for number, stage in self.plan.stages.items():
            around = TaskEnvironment(self._config, {}, lambda _: 1)
            task_id = TaskId(number, 0)
            self._tasks[number] = Task(task_id, self._graph, stage.nodes, self._engines(number), around, clock=0)

    def restart(self) -> None:
        """All that is only in memory is gone: tasks are closed, and opened again over what they committed."""
        self.close()
        self._open()

    def close(self) -> None:
        for task in self._tasks.values():
            task.close()

    def run(self, rows: Iterable[Row]) -> list[Output]:
        """A batch of rows of the log, in the order that their last parts give; what it wrote to the log, in order."""
        self._version += 1
        inbox = defaultdict[int, list[Row]](list)
        for row in rows:
            inbox[self._readers[row[0]]].append(row)
        written: list[Output] = []
        for level in self.plan.levels:
            for number in level:
                self._run_stage(number, inbox, written)
        return sorted(written, key=lambda output: output[6])  # stable: among equals, level by level

    def _run_stage(self, number: int, inbox: dict[int, list[Row]], written: list[Output]) -> None:
        rows = sorted(inbox[number], key=lambda row: row[7])
        inputs = Inputs(received=batch_rows(rows))
        result = self._tasks[number].run(inputs, clock=0, version=Version(self._version, "test"))
        self.dropped.update(result.dropped)
        for output in result.outputs:
            topic, _, key, value, timestamp, headers, order = output
            if topic in self._inner:
                offset = self._offsets[topic]
                self._offsets[topic] += 1
                inbox[self._inner[topic]].append((topic, 0, offset, key, value, timestamp, headers, order))
            else:
                written.append(output)

    def stores(self) -> dict[str, Any]:
        """All stores by name."""
        return {name: store for task in self._tasks.values() for name, store in task.state.stores.items()}

    def committed(self) -> dict[tuple[int, str], dict[bytes, Any]]:
        """All that is in the engines, by stage and table: stores, buffers and cells.

        A cell that has come back to where it began counts as not there, whether it was saved in between or not. Of what
        a join keeps only that counts which can be seen: the rest is gone, or not yet, or was never written.
        """
        found = defaultdict[tuple[int, str], dict[bytes, Any]](dict)
        for number, task in self._tasks.items():
            state = task.state
            for key, value in state.engine.scan(b"", None):
                found[number, state._owners[key[:4]]][key[4:]] = value
            for kind, cells in (("(cells)", state._cells), ("(unlogged cells)", state._unlogged_cells)):
                for name, cell in cells._cells.items():
                    if cell.value == cell.default and "/schedule " not in name:
                        found[number, kind].pop(name.encode(), None)
            for name, store in state.stores.items():
                if isinstance(store, WindowedDuplicates):
                    found.pop((number, f"{name}/times"), None)
                    for place in [key for key in found[number, name] if decode_duplicate(key)[1] <= store.hidden]:
                        del found[number, name][place]
        return dict(found)
