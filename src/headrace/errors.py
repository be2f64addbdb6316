"""Every error that Headrace raises on purpose.

StreamsError
├── TopologyError             a topology that cannot be: bad names, unknown parents, topics read twice
├── ConfigError               a setting that cannot be understood
├── InvalidStateStoreError    a store that is missing, closed or of another kind
├── StateCorruptedError       bytes on disk that are not what was written
├── SerializationError        a key or value that a serde refuses
└── ProcessingError           what a user function raised while a record was processed
"""

from __future__ import annotations


class StreamsError(Exception):
    """Something went wrong while a topology was built or run."""

    retriable = False


class TopologyError(StreamsError):
    """A topology that cannot be."""


class ConfigError(StreamsError, ValueError):
    """A setting that cannot be understood."""


class InvalidStateStoreError(StreamsError):
    """A store that is missing, closed or of another kind than the one asked for."""


class StateCorruptedError(StreamsError):
    """Bytes on disk that are not what was written."""


class SerializationError(StreamsError):
    """A key or value that a serde refuses."""


class ProcessingError(StreamsError):
    """What a user function raised while a record was processed; the original is its `__cause__`."""
