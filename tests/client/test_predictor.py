"""The predictor's lifecycle and limits, over real sockets.

The contract of all predictors is tested in tests/conformance.
"""

import re
import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

from client.support import predicting, request_of
from headrace.client.endpoint import endpoint_predictor
from headrace.core import InferRequest, Tensor, TensorSpec
from headrace.core.clock import SystemClock
from headrace.core.errors import (
    DeadlineError,
    EndpointError,
    EndpointRefusedError,
    EndpointUnavailableError,
    ModelInputError,
    StoppedError,
)
from headrace.testing import EndpointFault, ScriptedEndpoint

X = TensorSpec("x", "FP32", (-1, 2))


@pytest.fixture
def endpoint():
    with ScriptedEndpoint(lambda t: {"y": t["x"][:, 0] * 2}, inputs=(X,)) as endpoint:
        yield endpoint


def test_submit_blocks_at_the_in_flight_limit(endpoint, monkeypatch):
    endpoint.hold()
    blocked, submitted = threading.Event(), threading.Event()
    with predicting(endpoint.oip_url, in_flight_max=3) as predictor:
        futures = [predictor.submit(request_of(i)) for i in range(3)]
        thread = threading.Thread(
            target=lambda: (futures.append(predictor.submit(request_of(9))), submitted.set())
        )
        wait_for = predictor._changed.wait_for

        def watched_wait_for(predicate):
            if not predicate():
                blocked.set()
            return wait_for(predicate)

        monkeypatch.setattr(predictor._changed, "wait_for", watched_wait_for)
        thread.start()
        assert blocked.wait(10)
        assert not submitted.is_set()
        endpoint.release()
        assert submitted.wait(10)
        thread.join()
        assert [f.result(10).outputs[0].data.tolist() for f in futures] == [[0.0], [2.0], [4.0], [18.0]]
    assert endpoint.in_flight_peak <= 3


def test_futures_complete_in_any_order(endpoint):
    endpoint.delay_s = lambda n: 0.05 if n == 1 else 0.0
    order = []
    with predicting(endpoint.oip_url, in_flight_max=4) as predictor:
        predictor.submit(request_of(0)).result(10)
        futures = [predictor.submit(request_of(i, id=str(i))) for i in range(1, 4)]
        for future in futures:
            future.add_done_callback(lambda f: order.append(f.result().id))
        for future in futures:
            future.result(10)
    assert sorted(order) == ["1", "2", "3"]
    assert order != ["1", "2", "3"]


def test_transient_failures_are_retried_and_counted(endpoint):
    endpoint.faults += [EndpointFault(status=503), EndpointFault(drop=True), EndpointFault(cut_bytes=3)]
    with predicting(endpoint.oip_url) as predictor:
        assert predictor.submit(request_of(4)).result(10).outputs[0].data.tolist() == [8.0]
        statistics = predictor.statistics()
    assert (statistics.retries, statistics.rows, statistics.failed_rows) == (3, 1, 0)
    assert statistics.busy_s > 0
    assert predictor.statistics().retries == 3


def test_timeout_is_retried(endpoint):
    with predicting(endpoint.oip_url, timeout_s=5.0) as predictor:
        predictor.submit(request_of(0)).result(10)
    endpoint.faults.append(EndpointFault(hang=True))
    with predicting(endpoint.oip_url, timeout_s=0.3) as predictor:
        assert predictor.submit(request_of(4)).result(10).outputs[0].rows == 1
        assert predictor.statistics().retries >= 1
    assert len(endpoint.requests) >= 3


def test_start_raises_within_the_budget_when_unreachable(endpoint):
    endpoint.stop()
    predictor = endpoint_predictor(endpoint.oip_url, retry_s=0.2, environ={})
    with pytest.raises(EndpointUnavailableError, match="Is the endpoint up and the URL right") as raised:
        predictor.start()
    failing_s = re.search(r"no response for (\d+\.\d) s", str(raised.value))
    assert failing_s is not None
    assert float(failing_s[1]) >= 0.2
    with pytest.raises(StoppedError):
        predictor.submit(request_of(1))
    endpoint.start()
    predictor.start()
    predictor.stop()


def test_stop_ends_a_waiting_start(endpoint):
    endpoint.default_fault = EndpointFault(hang=True)
    predictor = endpoint_predictor(endpoint.oip_url, environ={})
    raised = []

    def start():
        try:
            predictor.start()
        except StoppedError as error:
            raised.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    endpoint.wait_for_requests(1, other_requests=True)
    predictor.stop()
    thread.join(10)
    assert len(raised) == 1


def test_wrong_token_raises_at_once(endpoint):
    endpoint.token = "right"
    with pytest.raises(EndpointRefusedError, match="HEADRACE_ENDPOINT_TOKEN") as caught:
        endpoint_predictor(endpoint.oip_url, environ={"HEADRACE_ENDPOINT_TOKEN": "wrong"}).start()
    assert caught.value.status == 401
    assert "wrong" not in str(caught.value)


def test_metadata_is_available_after_start(endpoint):
    predictor = endpoint_predictor(endpoint.oip_url, environ={})
    with pytest.raises(StoppedError, match="start"):
        _ = predictor.metadata
    predictor.start()
    predictor.stop()
    assert predictor.metadata.inputs == (X,)


def test_request_with_inconsistent_rows_fails_its_future(endpoint):
    with predicting(endpoint.oip_url) as predictor:
        uneven = InferRequest((Tensor("x", np.zeros(2)), Tensor("z", np.zeros(3))))
        with pytest.raises(ModelInputError, match="disagree on the number of rows"):
            predictor.submit(uneven).result(10)
        with pytest.raises(ModelInputError, match="model model: input 'x' has no row axis"):
            predictor.submit(InferRequest((Tensor("x", np.array(1.0)),))).result(10)


def test_deadline_ends_the_wait(endpoint):
    clock = SystemClock()
    with predicting(endpoint.oip_url) as predictor:
        predictor.submit(request_of(0)).result(10)
        endpoint.hold()
        request = request_of(1, id="r")
        expiring = InferRequest(request.inputs, id="r", deadline=clock.now() + 0.05)
        with pytest.raises(DeadlineError, match="request r before its deadline"):
            predictor.submit(expiring).result(10)
        sent = len(endpoint.requests)
        expired = InferRequest(request.inputs, deadline=clock.now() - 1)
        with pytest.raises(DeadlineError):
            predictor.submit(expired).result(10)
        assert len(endpoint.requests) == sent
        endpoint.release()


def test_stop_without_drain_fails_requests_in_flight(endpoint):
    endpoint.hold()
    with predicting(endpoint.oip_url, in_flight_max=4) as predictor:
        futures = [predictor.submit(request_of(i)) for i in range(4)]
        endpoint.wait_for_requests(1)
        predictor.stop(drain=False)
        for future in futures:
            assert isinstance(future.exception(0), StoppedError)
    endpoint.release()


def test_stop_without_drain_ends_a_drain(endpoint):
    endpoint.hold()
    with predicting(endpoint.oip_url) as predictor:
        future = predictor.submit(request_of(1))
        endpoint.wait_for_requests(1)
        draining = threading.Thread(target=predictor.stop)
        draining.start()
        predictor.stop(drain=False)
        draining.join(10)
        assert not draining.is_alive()
        assert isinstance(future.exception(0), StoppedError)
    endpoint.release()


def test_started_request_cannot_be_cancelled(endpoint):
    with predicting(endpoint.oip_url, in_flight_max=1) as predictor:
        endpoint.hold()
        future = predictor.submit(request_of(1))
        endpoint.wait_for_requests(1)
        assert not future.cancel()
        endpoint.release()
        assert future.result(10)


def test_request_cancelled_before_start_frees_its_slot(endpoint):
    with predicting(endpoint.oip_url, in_flight_max=1) as predictor:
        session = predictor._session
        blocked, entered = threading.Event(), threading.Event()
        session.loop.call_soon_threadsafe(lambda: (entered.set(), blocked.wait(10)))
        entered.wait(10)
        future = predictor.submit(request_of(1))
        assert future.cancel()
        blocked.set()
        assert predictor.submit(request_of(2)).result(10).outputs[0].rows == 1
        with pytest.raises(CancelledError):
            future.result(0)
        assert len(endpoint.requests) == 1


def test_internal_error_fails_only_its_request(endpoint):
    with predicting(endpoint.oip_url) as predictor:
        predictor._session.protocol._guard = None
        with pytest.raises(EndpointError, match="the call raised AttributeError"):
            predictor.submit(request_of(1)).result(10)


def test_system_exit_in_a_callback_leaves_other_requests_unharmed(endpoint):
    def raise_system_exit(_: object) -> None:
        raise SystemExit(3)

    with predicting(endpoint.oip_url, in_flight_max=2) as predictor:
        endpoint.hold()
        first = predictor.submit(request_of(1))
        first.add_done_callback(raise_system_exit)
        endpoint.release()
        assert first.result(10)
        assert [predictor.submit(request_of(i)).result(10).outputs[0].rows for i in range(3)] == [1, 1, 1]


def test_predictor_can_start_after_a_failed_thread_start(endpoint, monkeypatch):
    predictor = endpoint_predictor(endpoint.oip_url, environ={})

    def fail_to_start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail_to_start)
        with pytest.raises(RuntimeError, match="new thread"):
            predictor.start()
    predictor.start()
    predictor.stop()


def test_repr_omits_the_token(endpoint):
    predictor = endpoint_predictor(endpoint.oip_url, environ={"HEADRACE_ENDPOINT_TOKEN": "s3cret"})
    assert repr(predictor) == f"EndpointPredictor('{endpoint.oip_url}')"
