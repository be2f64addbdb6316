"""Online model: score a stream of events with a model that another stream keeps training.

Each campaign has a model that says how likely a visitor is to click (logistic regression, one step of gradient descent
per training event). The models are a versioned table: an event is scored with the model as it was at the *event's*
time, not with what has been learnt since. The join waits five seconds of event time for training events that are late.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp
from random import Random

from examples.events import START, Event, Topics
from headrace import Materialized, StreamsBuilder, Topology, serde

APPLICATION = "online-model"
TRAINING, VISITS, SCORES, STORE = "training", "visits", "scores", "models"
HOUR = 3_600_000
WAIT = 5_000
RATE = 0.1


@dataclass(frozen=True)
class Visit:
    features: tuple[float, ...]


@dataclass(frozen=True)
class Outcome:
    features: tuple[float, ...]
    clicked: bool


@dataclass(frozen=True)
class Model:
    version: int = 0  # how many outcomes it has learnt from
    weights: tuple[float, ...] = ()
    bias: float = 0.0


@dataclass(frozen=True)
class Score:
    probability: float
    version: int


VISIT = serde.json_of(Visit)
OUTCOME = serde.json_of(Outcome)
MODEL = serde.json_of(Model)
SCORE = serde.json_of(Score)
TOPICS: Topics = {TRAINING: (serde.STRING, OUTCOME), VISITS: (serde.STRING, VISIT)}
OUTPUTS: Topics = {SCORES: (serde.STRING, SCORE)}


def predict(model: Model, features: tuple[float, ...]) -> float:
    weights = model.weights or (0.0,) * len(features)
    return 1 / (1 + exp(-model.bias - sum(weight * x for weight, x in zip(weights, features, strict=True))))


def partial_fit(_campaign: str, outcome: Outcome, model: Model) -> Model:
    weights = model.weights or (0.0,) * len(outcome.features)
    step = RATE * (outcome.clicked - predict(model, outcome.features))
    moved = tuple(weight + step * x for weight, x in zip(weights, outcome.features, strict=True))
    return Model(model.version + 1, moved, model.bias + step)


def score(visit: Visit, model: Model) -> Score:
    return Score(predict(model, visit.features), model.version)


def build() -> Topology:
    builder = StreamsBuilder()
    models = (
        builder.stream(TRAINING, key=serde.STRING, value=OUTCOME)
        .group_by_key()
        .aggregate(Model, partial_fit, store=Materialized(STORE, value=MODEL, history=HOUR))
    )
    visits = builder.stream(VISITS, key=serde.STRING, value=VISIT)
    visits.join(models, score, grace=WAIT).to(SCORES, key=serde.STRING, value=SCORE)
    return builder.build()


TASTES = {"shoes": (2.0, -1.0), "books": (-1.5, 2.5), "music": (0.5, 0.5)}  # what the models are to find out


def events(random: Random) -> Iterator[Event]:
    """Visits and outcomes of three campaigns, in turn; one visit in ten is up to four seconds late."""
    now = START
    while True:
        now += random.randint(10, 200)
        campaign, taste = random.choice(list(TASTES.items()))
        features = (random.uniform(-2, 2), random.uniform(-2, 2))
        if random.random() < 0.5:
            late = random.randint(0, 4_000) if random.random() < 0.1 else 0
            yield Event(VISITS, campaign, Visit(features), max(START, now - late))
        else:
            likely = predict(Model(0, taste), features)
            yield Event(TRAINING, campaign, Outcome(features, random.random() < likely), now)
