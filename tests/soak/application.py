"""The application of the soak: counts by word after a repartition. Its words, and so its state, are bounded."""

from __future__ import annotations

import os

from headrace import Application, StreamsBuilder, serde

FOLDER, LOG = "SOAK_FOLDER", "SOAK_LOG"  # in the environment
IN, OUT, PARTITIONS = "words", "counts", 4


def app() -> Application:
    """For `headrace run tests.soak.application:app`."""
    builder = StreamsBuilder()
    words = builder.stream(IN, key=serde.STRING, value=serde.STRING)
    counts = words.group_by(lambda _, word: word, key=serde.STRING, value=serde.STRING).count(store="counts")
    counts.to_stream().to(OUT, key=serde.STRING, value=serde.LONG)
    folder = os.environ[FOLDER]
    return Application(
        "soak",
        builder.build(),
        os.environ[LOG],
        checkpoint=f"{folder}/checkpoint",
        state_dir=f"{folder}/state",
        num_stream_threads=2,
    )
