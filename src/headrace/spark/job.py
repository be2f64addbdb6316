"""What every process that runs tasks must know of an application; it travels once, and is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from headrace.commit.ledger import Ledger
from headrace.commit.manifest import Changelog
from headrace.commit.steps import AtStep, unobserved
from headrace.config import Config
from headrace.model.ids import TaskId
from headrace.plan.stage import Plan
from headrace.runtime.counting import COUNTED
from headrace.topology.graph import Graph
from headrace.topology.nodes import Process, Sink, Source
from headrace.topology.table_nodes import TableTransformValues


@dataclass(frozen=True)
class Job:
    """An application, planned: its graph, how many tasks each stage has, and where log, checkpoint and state lie."""

    application: str
    graph: Graph
    plan: Plan
    config: Config
    tasks: Mapping[int, int]  # by stage
    partitions: Mapping[str, int]  # of internal topics
    log: str
    checkpoint: str  # where it is
    state: str  # the local directory
    checkpoint_id: str = ""
    topics: Mapping[str, str] = field(default_factory=dict[str, str])  # ids: a topic that is made anew is another one
    changelogs: Mapping[str, Changelog] = field(default_factory=dict[str, Changelog])  # to fill stores from, at first
    slots: int = 1  # Spark partitions of every level
    at_step: AtStep = unobserved  # told of every step, in whichever process it is taken

    def reads(self, number: int, topic: str) -> bool:
        """Whether a stage reads a topic of the log."""
        stage = self.plan.stages[number]
        return topic in stage.topics or any(re.fullmatch(pattern, topic) for pattern in stage.patterns)

    @property
    def global_topics(self) -> set[str]:
        sources = (self.graph.nodes[name] for name in self.plan.global_nodes)
        return {topic for source in sources if isinstance(source, Source) for topic in source.topics}

    @property
    def global_stage(self) -> int:
        """The number of what fills the global stores, behind those of the stages."""
        return len(self.plan.stages)

    def nodes_of(self, number: int) -> tuple[str, ...]:
        return self.plan.global_nodes if number == self.global_stage else self.plan.stages[number].nodes

    def stores_of(self, number: int) -> set[str]:
        return {store for node in self.nodes_of(number) for store in self.graph.node_stores[node]}

    def placed(self, ledger: Ledger, slots: int) -> Job:
        """The job once it is known which checkpoint it lives from, and how many tasks can run at once."""
        slots = max(1, min(slots, sum(self.tasks.values())))
        topics, changelogs = dict(ledger.topics), dict(ledger.changelogs)
        return replace(self, checkpoint_id=ledger.checkpoint, topics=topics, changelogs=changelogs, slots=slots)

    @cached_property
    def _slots(self) -> dict[TaskId, int]:
        return {task: place % self.slots for place, task in enumerate(self.all_tasks())}

    def all_tasks(self) -> list[TaskId]:
        return [TaskId(number, partition) for number, count in self.tasks.items() for partition in range(count)]

    def slot_of(self, task: TaskId) -> int:
        return self._slots[task]

    def level_of(self, task: TaskId) -> int:
        return 0 if task.subtopology == self.global_stage else self.plan.level_of(task.subtopology)

    def route(self, topic: str) -> tuple[int, int] | None:
        """The stage that reads an internal topic, and its partitions; None for a topic of the log."""
        name = topic.removeprefix(f"{self.application}-").removesuffix(COUNTED)
        for stage in self.plan.stages.values():
            if name in self.partitions and name in stage.inputs:
                return stage.number, self.partitions[name]
        return None

    def inner_topics(self, number: int) -> list[str]:
        """The internal topics that a stage reads, as their rows name them."""
        stage = self.plan.stages.get(number)
        return [f"{self.application}-{topic}" for topic in stage.inputs] if stage else []

    def topics_written(self, number: int) -> list[str]:
        """What a stage writes to, if that is known; nothing if functions or failures may choose other topics."""
        sinks = [node for name in self.nodes_of(number) if isinstance(node := self.graph.nodes[name], Sink)]
        topics = [node.topic for node in sinks if isinstance(node.topic, str)]
        if len(topics) < len(sinks) or self.config.errors_dead_letter_queue_topic_name is not None:
            return []
        internal = self.graph.internal_topics
        return sorted({f"{self.application}-{topic}" if topic in internal else topic for topic in topics})

    @property
    def has_processors(self) -> bool:
        """Whether there may be schedules, which begin with the application and not with its first record."""
        return any(isinstance(node, Process | TableTransformValues) for node in self.graph.nodes.values())
