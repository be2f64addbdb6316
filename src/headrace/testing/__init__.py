"""For tests: a driver that runs a topology in milliseconds, and a real broker."""

from headrace.testing.broker import KafkaBroker as KafkaBroker
from headrace.testing.driver import TestInputTopic as TestInputTopic
from headrace.testing.driver import TestOutputTopic as TestOutputTopic
from headrace.testing.driver import TopologyTestDriver as TopologyTestDriver
