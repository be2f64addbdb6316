"""The log on a Kafka cluster."""

from headrace.log.kafka.kafkalog import KafkaLog

__all__ = ["KafkaLog"]
