"""The log on a Kafka cluster.

kafka_log.py        KafkaLog, the log itself
clients.py          creates Kafka's clients, repeats requests, translates errors; only this imports the library
broker_version.py   checks that the brokers are not too old
topics.py           describes, creates, changes and deletes topics
reader.py           reads offsets and records of partitions
producer.py         checks records and sends them, in transactions or outside of them
markers.py          the topic `<application>-delivered`: which batch was delivered last
delivery.py         delivers batches and shares of batches, exactly once
consumer_groups.py  members and committed offsets of consumer groups
"""

from headrace.log.kafka.kafka_log import KafkaLog

__all__ = ["KafkaLog"]
