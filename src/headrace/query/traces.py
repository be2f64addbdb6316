"""The way of one record through a topology, shown as text, as JSON, or as HTML in a notebook.

    orders/2 at offset 4711, traced in batch 38, as it was: …

    task 0_2
      KSTREAM-SOURCE-0000000000  Source  'ada': {'amount': 120} at 1000
        KSTREAM-AGGREGATE-0000000001  StreamAggregate  'ada': {'amount': 120} at 1000
          read totals['ada'] = ValueAndTimestamp(value=80, timestamp=900)
          wrote totals['ada'] = ValueAndTimestamp(value=200, timestamp=1000)

`runtime.tracing` writes the steps down. A step stands below the one that gave it its record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from headrace.html import shorten
from headrace.query.drops import explain_reason
from headrace.query.json_values import to_json
from headrace.runtime.tracing import StoreAccess, TracedOutput, TraceStep, Update
from headrace.topology.graph import Graph

_KEPT = (
    "gave nothing of its own: the table lets the last change of a key out at the end of a batch, and a later record "
    "changed this key"
)


@dataclass(frozen=True)
class Trace:
    """The way of one record. `print` shows it as text, a notebook as HTML, `as_dict` returns it for JSON.

    `steps` are the calls of nodes, in their order; `state` says which state they met. `driver.trace` and
    `headrace trace` make one.

    >>> from headrace import StreamsBuilder, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> _ = builder.stream("in", value=serde.LONG, name="read").filter(lambda number: number > 10, name="large")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     [(step.node, step.value) for step in driver.trace("in", 20).steps]
    [('read', 20), ('large', 20)]
    """

    topic: str
    partition: int
    offset: int
    batch: int | None  # the one that processed the record; None if it is traced in another state than it met
    state: str
    steps: tuple[TraceStep, ...]
    graph: Graph
    notes: tuple[str, ...] = ()
    error: str | None = None  # the one that stopped the task

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        return f"<trace of {self.topic}/{self.partition} at offset {self.offset}, {len(self.steps)} steps>"

    def _repr_html_(self) -> str:
        head, *lines = self._lines()
        body = escape("\n".join(lines))
        return f"<p><b>{escape(head)}</b></p><pre>{body}</pre>"

    def as_dict(self) -> dict[str, Any]:
        """The trace as plain data."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "batch": self.batch,
            "state": self.state,
            "steps": [self._step_as_dict(step) for step in self.steps],
            "notes": list(self.notes),
            "error": self.error,
        }

    def _step_as_dict(self, step: TraceStep) -> dict[str, Any]:
        is_update = isinstance(step.value, Update)
        return {
            "step": step.number,
            "parent": step.parent,
            "task": str(step.task),
            "operator": step.node,
            "kind": step.kind,
            "key": to_json(step.key),
            "value": to_json(step.value.new if is_update else step.value),
            **({"old_value": to_json(step.value.old)} if is_update else {}),
            "timestamp": step.timestamp,
            "headers": [[name, to_json(raw)] for name, raw in step.headers],
            "at_batch_end": step.at_batch_end,
            "given_to": [self.steps[number].node for number in step.given],
            "stores": [
                {
                    "store": some.store,
                    "access": some.what,
                    "key": to_json(some.key),
                    "value": to_json(some.value),
                    "is_buffer": some.is_buffer,
                }
                for some in step.accesses
            ],
            "dropped": [{"reason": reason, "why": explain_reason(reason)} for reason in step.dropped],
            "written": [
                {
                    "topic": output.topic,
                    "partition": output.partition,
                    "key": to_json(output.key),
                    "value": to_json(output.value),
                    "timestamp": output.timestamp,
                    "internal": output.is_internal,
                }
                for output in step.outputs
            ],
            "error": step.error,
            "note": self._note(step),
        }

    # ------------------------------------------------------------------------------------------------------------ text
    def _lines(self) -> Iterator[str]:
        yield f"{self.topic}/{self.partition} at offset {self.offset}, traced in {self.state}"
        task = None
        for step, depth in self._tree():
            if step.task != task:
                task = step.task
                yield ""
                yield f"task {task}"
            yield from ("  " * (depth + 1) + line for line in self._step_lines(step))
        if self.notes or self.error:
            yield ""
        yield from self.notes
        if self.error is not None:
            yield f"The application stops: {self.error}"

    def _tree(self) -> Iterator[tuple[TraceStep, int]]:
        """Yields each step below the one that gave it its record. Steps of a later task follow those of the first."""
        tasks: list[TraceStep] = [step for step in self.steps if step.parent is None]
        while tasks:
            below: list[TraceStep] = []
            yield from self._below(tasks.pop(0), 0, below)
            tasks += below

    def _below(self, step: TraceStep, depth: int, others: list[TraceStep]) -> Iterator[tuple[TraceStep, int]]:
        yield step, depth
        for number in step.given:
            child = self.steps[number]
            if child.kind == "Source":
                others.append(child)
            else:
                yield from self._below(child, depth + 1, others)

    def _step_lines(self, step: TraceStep) -> Iterator[str]:
        when = ", at the end of the batch" if step.at_batch_end else ""
        if step.kind == "Punctuation":
            yield f"{step.node}  Punctuation  at {step.timestamp}"
        else:
            value = step.value
            what = f"{_show(value.new)} (was {_show(value.old)})" if isinstance(value, Update) else _show(value)
            yield f"{step.node}  {step.kind}  {_show(step.key)}: {what} at {step.timestamp}{when}"
        yield from (f"  {line}" for line in dict.fromkeys(map(_show_access, step.accesses)) if line)
        if step.error is not None:
            yield f"  failed: {step.error}"
        yield from (f"  dropped: {reason} ({explain_reason(reason)})" for reason in step.dropped)
        yield from (f"  {_show_output(output)}" for output in step.outputs)
        note = self._note(step)
        if note is not None:
            yield f"  {note}"

    def _note(self, step: TraceStep) -> str | None:
        if step.note is not None:
            return step.note
        if step.given or step.dropped or step.outputs or step.error is not None or step.kind == "Punctuation":
            return None
        if not self.graph.children.get(step.node):
            return None
        is_table = any(access.what == "write" for access in step.accesses) and step.kind not in {
            "Process",
            "JoinWindow",
        }
        return _KEPT if is_table else "gave nothing"


def _show(value: Any) -> str:
    return shorten(repr(value))


def _show_access(access: StoreAccess) -> str:
    if access.is_buffer and access.what == "read":
        return ""
    if access.is_buffer:
        return f"{'took an entry out of' if access.value is None else 'put an entry into'} {access.store}"
    if access.what == "write" and access.value is None:
        return f"deleted {access.store}[{_show(access.key)}]"
    verb = "read" if access.what == "read" else "wrote"
    return f"{verb} {access.store}[{_show(access.key)}] = {_show(access.value)}"


def _show_output(output: TracedOutput) -> str:
    partition = "?" if output.partition is None else output.partition
    return f"wrote to {output.topic}/{partition}{' (internal)' if output.is_internal else ''}"
