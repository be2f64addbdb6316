"""Clients of a log: producer, consumer and admin, the same on the embedded log and on Kafka."""

from headrace.clients.admin import Admin
from headrace.clients.consumer import Consumer, ConsumerRecord
from headrace.clients.producer import Producer

__all__ = ["Admin", "Consumer", "ConsumerRecord", "Producer"]
