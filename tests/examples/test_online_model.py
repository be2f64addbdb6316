from bisect import bisect_right
from collections import Counter

import pytest

from examples import online_model
from examples.online_model import TASTES, Model, Outcome, Score, Visit, partial_fit, predict
from tests.examples.playing import Play, generated

CLICK = Outcome((1.0, 0.0), clicked=True)


def test_a_step_of_training_moves_the_model_towards_the_outcome():
    model = partial_fit("shoes", CLICK, Model())
    assert model == Model(1, (0.05, 0.0), 0.05)  # 0.1 x (1 - 0.5) x the feature
    assert predict(model, (1.0, 0.0)) == pytest.approx(0.52498, abs=1e-5)


def test_a_visit_is_scored_with_the_model_of_its_own_time():
    # Kafka Streams, asked with texts for models, does the same: a version per training event, found by time.
    with Play(online_model) as play:
        play.pipe("visits", ("shoes", Visit((1.0, 0.0)), 500))  # before there is a model
        play.pipe("training", ("shoes", CLICK, 1_000))
        play.pipe("visits", ("shoes", Visit((1.0, 0.0)), 1_500))
        play.pipe("training", ("shoes", CLICK, 2_000), ("shoes", CLICK, 3_000))
        play.pipe("visits", ("shoes", Visit((1.0, 0.0)), 2_500))  # comes after the third training event
        assert play.pairs("scores") == []
        play.pipe("visits", ("shoes", Visit((1.0, 0.0)), 9_000))
        assert [(record.value.version, record.timestamp) for record in play.records("scores")] == [
            (1, 1_500),
            (2, 2_500),
        ]
        play.pipe("visits", ("shoes", Visit((1.0, 0.0)), 15_000))
        assert [score.version for _, score in play.pairs("scores")] == [3]


def test_old_versions_can_be_looked_up():
    with Play(online_model) as play:
        play.pipe("training", *(("shoes", CLICK, time) for time in (1_000, 2_000, 3_000)))
        models = play.store("models")
        assert [models.get("shoes", as_of=time).value.version for time in (1_000, 1_999, 2_000, 9_000)] == [1, 1, 2, 3]
        assert models.get("shoes", as_of=999) is None


def test_the_models_find_out_the_tastes():
    with Play(online_model) as play:
        play.pipe_events(generated(online_model))
        for campaign, (first, second) in TASTES.items():
            model = play.store("models").get(campaign).value
            assert model.version > 200
            assert model.weights == pytest.approx((first, second), abs=0.8)


def test_every_score_is_what_one_would_compute_with_the_model_of_its_time():
    events, models = generated(online_model), {campaign: ([], [Model()]) for campaign in TASTES}
    for event in events:
        if event.topic == "training":
            times, versions = models[event.key]
            times.append(event.timestamp)
            versions.append(partial_fit(event.key, event.value, versions[-1]))
    expected = Counter()
    for event in events:
        if event.topic == "visits":
            times, versions = models[event.key]
            model = versions[bisect_right(times, event.timestamp)]
            if model.version:
                score = Score(predict(model, event.value.features), model.version)
                expected[event.key, score, event.timestamp] += 1
    with Play(online_model) as play:
        play.pipe_events(events)
        play.pipe("visits", ("shoes", Visit((0.0, 0.0)), events[-1].timestamp + 10_000))  # nothing waits any more
        assert Counter((record.key, record.value, record.timestamp) for record in play.records("scores")) == expected
