"""The predictor of one attempt: separate batches, and abandoning all requests at once."""

import threading
from concurrent.futures import Future

import numpy as np
import pytest

from headrace.core.errors import CancelledRequestError
from headrace.core.tensor import InferRequest, Tensor
from headrace.jobs.kinds import AttemptPredictor
from jobs.support import one_model

REQUEST = InferRequest((Tensor("x", np.ones((2, 2))),))


class RecordingPredictor:
    """A fake `JobPredictor` that records its requests. The test completes the futures."""

    metadata = "the model's own"

    def __init__(self):
        self.futures: list[Future] = []
        self.alone: list[bool] = []
        self.strict: list[bool] = []
        self.abandoned: list[Future] = []
        self.during = lambda: None

    def submit(self, request, *, alone=False, strict=False):
        assert request.namespace == "job-1", "two jobs may use one sequence id at once"
        future: Future = Future()
        self.futures.append(future)
        self.alone.append(alone)
        self.strict.append(strict)
        self.during()
        return future

    def abandon(self, future):
        self.abandoned.append(future)
        future.set_exception(CancelledRequestError("gone"))

    def statistics(self):
        return "all of it"


def test_requests_have_batches_of_their_own():
    with one_model() as models:
        predictor = AttemptPredictor(models.predictor("m"), "job-1")
        response = predictor.submit(REQUEST).result(20)
        assert response.outputs[0].data.tolist() == [4.0, 4.0]
        assert predictor.metadata == models.engine.metadata
        predictor.start()
        predictor.stop()
        assert predictor.submit(REQUEST).result(20), "the model goes on for others"


def test_abandon_all_abandons_requests_and_refuses_new_ones():
    recording = RecordingPredictor()
    predictor = AttemptPredictor(recording, "job-1")
    first, second = predictor.submit(REQUEST), predictor.submit(REQUEST)
    assert recording.alone == [True, True]
    predictor.submit(REQUEST, strict=True).cancel()
    assert recording.strict == [False, False, True]
    first.set_result("answer")
    predictor.abandon_all()
    assert recording.abandoned == [second]
    with pytest.raises(CancelledRequestError):
        predictor.submit(REQUEST)
    assert len(recording.futures) == 3


def test_request_concurrent_with_abandon_all_is_abandoned():
    recording = RecordingPredictor()
    predictor = AttemptPredictor(recording, "job-1")
    recording.during = predictor.abandon_all
    future = predictor.submit(REQUEST)
    assert recording.abandoned == [future]
    assert isinstance(future.exception(), CancelledRequestError)


def test_completed_requests_are_forgotten():
    recording = RecordingPredictor()
    predictor = AttemptPredictor(recording, "job-1")
    threads = [threading.Thread(target=lambda: predictor.submit(REQUEST).set_result(1)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    predictor.abandon_all()
    assert recording.abandoned == []
    assert predictor.statistics() == "all of it"
