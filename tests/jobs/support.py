"""A real engine that implements `Models`, and attempts at jobs, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from typing_extensions import override

from headrace import Model
from headrace.core.errors import ModelNotFoundError
from headrace.core.model import RowError
from headrace.core.tensor import TensorSpec
from headrace.engine.engine import Engine
from headrace.engine.settings import ServeSettings
from headrace.jobs.job import Job, NewJob
from headrace.jobs.kinds import Attempt, Models
from headrace.jobs.state import JobState


class Doubles(Model):
    """A model that doubles the sum of each row and refuses rows with a negative first number."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)
    max_batch_rows = 64

    def predict(self, x):
        """Return one number for each row."""
        bad = np.flatnonzero(x[:, 0] < 0)
        if len(bad):
            raise RowError(int(bad[0]), "negative")
        return 2 * x.sum(axis=1)


class OneModel(Models):
    """A `Models` with a single model, in an engine with threads."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @override
    def predictor(self, model: str) -> Engine:
        if model != self.engine.name:
            raise ModelNotFoundError(model, "there is no model of this name here")
        return self.engine

    @override
    def identity(self, model: str) -> str:
        return f"{model} sha256:0"


@contextmanager
def one_model(make=Doubles, **settings) -> Iterator[OneModel]:
    """Run an engine with the model ``m`` until the end of the block."""
    serving = ServeSettings(**{"isolation": "thread", **settings})
    engine = Engine(make, name="m", serving=serving, in_flight_max=16)
    engine.start()
    try:
        yield OneModel(engine)
    finally:
        engine.stop(drain=False)


def attempt_at(spec: NewJob, *, job_id: str = "job-1", lease: int = 1, **changes) -> Attempt:
    """Return an attempt at a running job with the fields `changes`."""
    job = Job(job_id, JobState.RUNNING, replace(spec, id=job_id), attempt=1, lease=lease, worker="w1")
    return Attempt(replace(job, **changes))
