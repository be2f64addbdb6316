"""The log on a Kafka cluster."""

from headrace.log.kafka.kafka_log import KafkaLog

__all__ = ["KafkaLog"]
