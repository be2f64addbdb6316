"""Reading records from a log, alone or as a member of a group."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, get_args
from uuid import uuid4

from headrace.errors import SerializationError
from headrace.log.errors import FencedError, OffsetOutOfRangeError
from headrace.log.fetching import Fetcher
from headrace.log.open import opened
from headrace.log.protocol import Log
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers
from headrace.model.windows import milliseconds
from headrace.serde.primitives import BYTES
from headrace.serde.protocol import Serde
