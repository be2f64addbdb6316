"""For tests: a driver that runs a topology in milliseconds, timelines, a real broker and registry, and checks."""

from headrace.query.traces import Trace as Trace
from headrace.testing.broker import KafkaBroker as KafkaBroker
from headrace.testing.connect_worker import ConnectWorker as ConnectWorker
from headrace.testing.driver import TestInputTopic as TestInputTopic
from headrace.testing.driver import TestOutputTopic as TestOutputTopic
from headrace.testing.driver import TopologyTestDriver as TopologyTestDriver
from headrace.testing.records import assert_eventually as assert_eventually
from headrace.testing.records import produce as produce
from headrace.testing.records import wait_for_records as wait_for_records
from headrace.testing.registry import SchemaRegistry as SchemaRegistry
from headrace.testing.sinks import check_sink as check_sink
from headrace.testing.source_check import check_source as check_source
from headrace.testing.timeline import Timeline as Timeline
from headrace.testing.timeline import timeline as timeline
