"""Predictors of endpoints through the conformance suite, over all protocols and with faults."""

import numpy as np
import pytest

from headrace.client.endpoint import endpoint_predictor
from headrace.core import InferRequest, RowError, Tensor, TensorSpec
from headrace.testing import EndpointFault, ScriptedEndpoint, check_predictor, check_service

REQUEST = InferRequest((Tensor("x", np.array([[1, 0], [2, 0], [3, 0]], np.float32)),), id="r")


def picky(tensors):
    """Refuse 2, so that every response has a failure."""
    bad = [i for i, v in enumerate(tensors["x"][:, 0].tolist()) if v == 2]
    if bad:
        raise RowError(bad[0], "2 is not taken")
    return tensors["x"][:, 0]


@pytest.fixture(params=["oip, binary", "oip, JSON", "torchserve"])
def endpoint(request):
    with ScriptedEndpoint(
        picky, inputs=(TensorSpec("x", "FP32", (-1, 2)),), binary=request.param != "oip, JSON"
    ) as endpoint:
        endpoint.url_under_test = (
            endpoint.torchserve_url if request.param == "torchserve" else endpoint.oip_url
        )
        yield endpoint


def maker(endpoint, **more):
    return lambda: endpoint_predictor(endpoint.url_under_test, environ={}, **more)


@pytest.mark.parametrize("in_flight_max", [1, 4])
def test_predictors(endpoint, in_flight_max):
    check_predictor(maker(endpoint, in_flight_max=in_flight_max), REQUEST)


def test_predictors_of_a_faulty_endpoint(endpoint):
    endpoint.delay_s = lambda n: (n % 3) / 500
    bad = [EndpointFault(status=503), EndpointFault(drop=True), EndpointFault(cut_bytes=1)]
    endpoint.faults += [bad[n // 5 % 3] if n % 5 == 0 else None for n in range(60)]
    check_predictor(maker(endpoint, in_flight_max=4, retry_s=30.0), REQUEST)


def test_stop_needs_no_response_of_the_endpoint(endpoint):
    """Only the start does; no thread is left although the endpoint hangs."""
    endpoint.hold()
    check_service(maker(endpoint))
    endpoint.release()
