"""The embedded log: a directory on one machine, for any number of processes on it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set as AbstractSet
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.log import appending, catalog, group_rows, reading, retention, waiting
from headrace.log.protocol import Chunk, Extent, Group, Item, Membership, Stamp, Topic
from headrace.log.sharing import Shared, acquire, release
from headrace.log.topic_rows import change_topics
from headrace.log.verify import problems_of
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TopicPartition

CLEAN_EVERY = 60_000
