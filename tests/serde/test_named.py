"""Serdes by the names of Kafka's classes."""

import pytest

from headrace import serde
from headrace.errors import ConfigError
from headrace.serde.primitives import by_class_name, serde_setting


@pytest.mark.parametrize(
    "name", ["org.apache.kafka.common.serialization.Serdes$LongSerde", "Serdes.LongSerde", "LongSerde"]
)
def test_the_package_does_not_matter(name):
    assert by_class_name(name) is serde.LONG


def test_an_unknown_class_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"no serde is called 'com\.example\.TradeSerde': give one of StringSerde"):
        by_class_name("com.example.TradeSerde")


def test_a_setting_is_nothing_a_serde_or_a_name():
    assert serde_setting(None, "default.key.serde") is serde.BYTES
    assert serde_setting(serde.JSON, "default.key.serde") is serde.JSON
    assert serde_setting("UUIDSerde", "default.key.serde") is serde.UUID
    with pytest.raises(ConfigError, match=r"default\.key\.serde=5 cannot be used"):
        serde_setting(5, "default.key.serde")
