"""Tests here need a broker."""

from tests.kafka.fixtures import broker_address, guarded, warm

__all__ = ["broker_address", "guarded", "warm"]
