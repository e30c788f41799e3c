"""The predictor over gRPC: its life cycle, its limits, and the bisection of refused requests."""

import asyncio
import threading
from concurrent.futures import wait

import numpy as np
import pytest

from headrace.app.models import open_model_server
from headrace.client.model_server import ModelAddress
from headrace.client.model_server_grpc import may_be_about_rows
from headrace.contrib.beam.remote import GrpcPredictor
from headrace.core.errors import (
    EndpointRefusedError,
    EndpointUnavailableError,
    ModelContractError,
    ModelInputError,
    StoppedError,
)
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, Tensor
from headrace.testing.service import check_predictor, check_service
from servers.ports import free_ports


def request_of(*values):
    return InferRequest((Tensor("x", np.array(values, np.float32)),), id="q")


def count_threads() -> int:
    return sum(thread.name.startswith("headrace-grpc") for thread in threading.enumerate())


@pytest.fixture
def predictor(served):
    predictor = GrpcPredictor(lambda: open_model_server(served.grpc), ModelAddress("sums"))
    predictor.start()
    yield predictor
    predictor.stop()
    assert count_threads() == 0


class Scripted:
    """A stand-in for a server with responses that a real server does not give on demand."""

    url = "grpc://scripted"

    def __init__(self, respond):
        self.respond = respond

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def metadata(self, model):
        return ModelMetadata(model.name)

    async def infer(self, model, request, *, binary):
        return await self.respond(request)


def start_scripted(respond, **more) -> GrpcPredictor:
    predictor = GrpcPredictor(lambda: Scripted(respond), ModelAddress("m"), **more)
    predictor.start()
    return predictor


def test_refused_rows_are_isolated(predictor):
    response = predictor.submit(request_of([1, 1, 1], [-1, 0, 0], [2, 2, 2], [0, -1, 0])).result(30)
    assert response["sum"].tolist() == [3, 6]
    assert [(f.row, "a value is negative" in f.why) for f in response.failures] == [(1, True), (3, True)]
    assert response.id == "q"
    nothing = predictor.submit(request_of([-1, 0, 0])).result(30)
    assert (nothing.outputs, [f.row for f in nothing.failures]) == ((), [0])
    assert (predictor.statistics().rows, predictor.statistics().failed_rows) == (2, 3)


def test_empty_request_is_not_sent(predictor):
    with pytest.raises(ModelInputError, match="sums"):
        predictor.submit(InferRequest(())).result(30)


def test_unknown_model_fails_start(served):
    predictor = GrpcPredictor(lambda: open_model_server(served.grpc), ModelAddress("gone"))
    with pytest.raises(EndpointRefusedError, match="NOT_FOUND"):
        predictor.start()
    with pytest.raises(StoppedError):
        _ = predictor.metadata
    assert count_threads() == 0


def test_unreachable_server_fails_start():
    (port,) = free_ports(1)
    predictor = GrpcPredictor(lambda: open_model_server(f"grpc://127.0.0.1:{port}"), ModelAddress("m"))
    with pytest.raises(EndpointUnavailableError):
        predictor.start()
    assert count_threads() == 0


def test_fulfils_predictor_contract(served):
    def make():
        return GrpcPredictor(lambda: open_model_server(served.grpc), ModelAddress("sums"))

    check_service(make)
    check_predictor(make, request_of([1, 1, 1], [-1, 0, 0]))
    assert count_threads() == 0


def test_stop_without_drain_fails_requests():
    received = threading.Event()

    async def hang(request):
        received.set()
        await asyncio.Event().wait()

    predictor = start_scripted(hang, in_flight_max=1)
    future = predictor.submit(request_of([1]))
    assert received.wait(30)
    predictor.stop(drain=False)
    with pytest.raises(StoppedError):
        future.result(30)
    assert count_threads() == 0


def test_in_flight_limit_holds():
    in_flight, peak = 0, 0

    async def respond(request):
        nonlocal in_flight, peak
        in_flight += 1
        peak = max(peak, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        return InferResponse((request.inputs[0],), "m")

    predictor = start_scripted(respond, in_flight_max=2)
    futures = [predictor.submit(request_of([i])) for i in range(20)]
    assert len(wait(futures, 30).done) == 20
    assert 1 <= peak <= 2
    predictor.stop()


@pytest.mark.parametrize(("code", "received"), [("PERMISSION_DENIED", 1), ("INVALID_ARGUMENT", 3)])
def test_only_row_refusals_are_bisected(code, received):
    seen = []

    async def refuse(request):
        seen.append(request.rows)
        error = EndpointRefusedError("grpc://scripted", f"{code}: no")
        error.may_be_about_rows = may_be_about_rows(code)
        raise error

    predictor = start_scripted(refuse)
    future = predictor.submit(request_of([1], [2]))
    if received == 1:
        with pytest.raises(EndpointRefusedError):
            future.result(30)
    else:
        assert [f.row for f in future.result(30).failures] == [0, 1]
    assert len(seen) == received
    predictor.stop()


def test_endpoint_that_refuses_every_row_stops_bisection():
    async def refuse(request):
        raise EndpointRefusedError("grpc://scripted", "INTERNAL: no")

    predictor = start_scripted(refuse)
    with pytest.raises(EndpointRefusedError, match="each of the first 100 rows"):
        predictor.submit(request_of(*([i] for i in range(200)))).result(30)
    predictor.stop()


def test_response_with_too_few_rows_is_refused():
    async def fewer(request):
        return InferResponse((Tensor("y", np.zeros(request.rows - 1)),), "m")

    predictor = start_scripted(fewer)
    with pytest.raises(ModelContractError, match="1 rows for 2 rows"):
        predictor.submit(request_of([1], [2])).result(30)
    predictor.stop()
