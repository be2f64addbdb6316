"""Passwords that leave the machine with an application: both triggers warn if the cluster does not encrypt."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkConf

from headrace import StreamsBuilder
from headrace.app import Application
from headrace.connect import HttpSink, PostgresSink
from headrace.spark import run
from headrace.spark.job import Job, find_secrets
from headrace.topology.builder import Topology
from headrace.topology.subtopologies import plan
from tests.spark.places import PATIENCE_MS, Place, Words, counting

SECRET = "hunter2"  # noqa: S105
CLIENT = {"sasl.password": SECRET, "sasl.username": "shop", "sasl.mechanism": "PLAIN"}


def job_of(
    topology: Topology, log: str = "kafka://host:9092", checkpoint: str = "s3://bucket/shop", **config: Any
) -> Job:
    setup = Application("shop", topology, log, checkpoint=checkpoint, config=config).setup
    return Job("shop", setup.graph, plan(setup.graph), setup.config, {}, {}, setup.log, setup.checkpoint, None)


def copying() -> Topology:
    builder = StreamsBuilder()
    builder.stream("orders").to("copies")
    return builder.build()


def context(master: str, **settings: str) -> Any:
    """What the warning asks a context for."""
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name.replace("_", "."), value)
    return SimpleNamespace(master=master, getConf=lambda: conf)


def test_every_part_of_a_job_that_has_a_password_is_named():
    builder = StreamsBuilder()
    orders = builder.stream("orders")
    orders.sink(PostgresSink(f"postgresql://me:{SECRET}@db/shop", "orders"))
    orders.sink(PostgresSink("postgresql://db/shop", "others"))
    orders.sink(HttpSink("https://hooks.example/orders"))
    job = job_of(
        builder.build(), f"kafka://me:{SECRET}@host:9092", f"s3://bucket/shop?secret_access_key={SECRET}", **CLIENT
    )
    found = find_secrets(job)
    assert found == ["sasl.password", "the address of the log", "the address of the checkpoint", "the sink 'orders'"]
    assert find_secrets(job_of(copying())) == []


@pytest.mark.parametrize(
    "where, is_warned",
    [
        (context("spark://host:7077"), True),
        (context("yarn", spark_network_crypto_enabled="false"), True),
        (context("spark://host:7077", spark_network_crypto_enabled="true"), False),
        (context("spark://host:7077", spark_ssl_rpc_enabled="true"), False),
        (context("local[2]"), False),
    ],
)
def test_a_warning_names_what_goes_to_a_cluster_unencrypted(caplog: Any, where: Any, is_warned: bool):
    run.warn_about_secrets(where, job_of(copying(), **CLIENT))
    said = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert len(said) == is_warned
    assert SECRET not in caplog.text
    if is_warned:
        assert "sasl.password" in said[0]
        assert "spark.network.crypto.enabled" in said[0]


@pytest.mark.spark
@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
def test_every_start_looks_for_passwords_whatever_the_trigger(place: Place, monkeypatch: Any, trigger: Any):
    checked, warn = list[str](), run.warn_about_secrets
    monkeypatch.setattr(run, "warn_about_secrets", lambda at, job: (checked.append(job.application), warn(at, job)))
    words = Words(place)
    with place.app(counting(), trigger=trigger) as app:
        words.send(app)
        app.drain(PATIENCE_MS)
    assert checked == ["life"]
