"""Settings, under Kafka Streams' names."""

from headrace.config.settings import Config

__all__ = ["Config"]
