"""Tests here need a broker."""

from tests.kafka.fixtures import broker_address, warm

__all__ = ["broker_address", "warm"]
