"""A JVM that outlives the drivers that are killed: `python -m tests.faults.jvm` says where it is, and waits."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from headrace.spark.session import SETTINGS


def main() -> None:
    conf = SparkConf(loadDefaults=False).setMaster("local[2]")
    at: Any = launch_gateway(conf.setAll(list(SETTINGS.items()))).gateway_parameters
    sys.stdout.write(json.dumps({"PYSPARK_GATEWAY_PORT": str(at.port), "PYSPARK_GATEWAY_SECRET": at.auth_token}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
