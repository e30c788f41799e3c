"""A predictor over gRPC: its life, its bounds, and which row of a refused request is at fault."""

import asyncio
import threading
from concurrent.futures import wait

import numpy as np
import pytest

from headrace.app.asking import open_model_server
from headrace.beam.grpc_predictor import GrpcPredictor
from headrace.client.oip_grpc import may_be_about_rows
from headrace.client.server import ModelAddress
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


def threads() -> int:
    return sum(thread.name.startswith("headrace-grpc") for thread in threading.enumerate())


@pytest.fixture
def predictor(served):
    predictor = GrpcPredictor(lambda: open_model_server(served.grpc), ModelAddress("sums"))
    predictor.start()
    yield predictor
    predictor.stop()
    assert threads() == 0


class Scripted:
    """Stands for a server that does what no real one is made to do on demand."""

    url = "grpc://scripted"

    def __init__(self, answer):
        self.answer = answer

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def metadata(self, model):
        return ModelMetadata(model.name)

    async def infer(self, model, request, *, binary):
        return await self.answer(request)


def scripted(answer, **more) -> GrpcPredictor:
    predictor = GrpcPredictor(lambda: Scripted(answer), ModelAddress("m"), **more)
    predictor.start()
    return predictor


def test_refused_rows_are_found_among_the_others(predictor):
    response = predictor.submit(request_of([1, 1, 1], [-1, 0, 0], [2, 2, 2], [0, -1, 0])).result(30)
    assert response["sum"].tolist() == [3, 6]
    assert [(f.row, "a value is negative" in f.why) for f in response.failures] == [(1, True), (3, True)]
    assert response.id == "q"
    nothing = predictor.submit(request_of([-1, 0, 0])).result(30)
    assert (nothing.outputs, [f.row for f in nothing.failures]) == ((), [0])
    assert (predictor.statistics().rows, predictor.statistics().failed_rows) == (2, 3)


def test_requests_that_are_none_are_not_sent(predictor):
    with pytest.raises(ModelInputError, match="sums"):
        predictor.submit(InferRequest(())).result(30)


def test_a_model_that_is_not_there(served):
    predictor = GrpcPredictor(lambda: open_model_server(served.grpc), ModelAddress("gone"))
    with pytest.raises(EndpointRefusedError, match="NOT_FOUND"):
        predictor.start()
    with pytest.raises(StoppedError):
        _ = predictor.metadata
    assert threads() == 0


def test_a_server_that_is_not_there():
    (port,) = free_ports(1)
    predictor = GrpcPredictor(lambda: open_model_server(f"grpc://127.0.0.1:{port}"), ModelAddress("m"))
    with pytest.raises(EndpointUnavailableError):
        predictor.start()
    assert threads() == 0


def test_it_is_a_predictor(served):
    def make():
        return GrpcPredictor(lambda: open_model_server(served.grpc), ModelAddress("sums"))

    check_service(make)
    check_predictor(make, request_of([1, 1, 1], [-1, 0, 0]))
    assert threads() == 0


def test_stopping_without_draining_fails_what_is_asked():
    asked = threading.Event()

    async def hang(request):
        asked.set()
        await asyncio.Event().wait()

    predictor = scripted(hang, in_flight_max=1)
    future = predictor.submit(request_of([1]))
    assert asked.wait(30)
    predictor.stop(drain=False)
    with pytest.raises(StoppedError):
        future.result(30)
    assert threads() == 0


def test_no_more_are_under_way_than_may_be():
    under_way, peak = 0, 0

    async def answer(request):
        nonlocal under_way, peak
        under_way += 1
        peak = max(peak, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return InferResponse((request.inputs[0],), "m")

    predictor = scripted(answer, in_flight_max=2)
    futures = [predictor.submit(request_of([i])) for i in range(20)]
    assert len(wait(futures, 30).done) == 20
    assert 1 <= peak <= 2
    predictor.stop()


@pytest.mark.parametrize(("code", "asked"), [("PERMISSION_DENIED", 1), ("INVALID_ARGUMENT", 3)])
def test_only_refusals_that_may_be_about_rows_are_parted(code, asked):
    seen = []

    async def refuse(request):
        seen.append(request.rows)
        error = EndpointRefusedError("grpc://scripted", f"{code}: no")
        error.may_be_about_rows = may_be_about_rows(code)
        raise error

    predictor = scripted(refuse)
    future = predictor.submit(request_of([1], [2]))
    if asked == 1:
        with pytest.raises(EndpointRefusedError):
            future.result(30)
    else:
        assert [f.row for f in future.result(30).failures] == [0, 1]
    assert len(seen) == asked
    predictor.stop()


def test_an_endpoint_that_never_answers_a_row_ends_the_asking():
    async def refuse(request):
        raise EndpointRefusedError("grpc://scripted", "INTERNAL: no")

    predictor = scripted(refuse)
    with pytest.raises(EndpointRefusedError, match="each of the first 100 rows"):
        predictor.submit(request_of(*([i] for i in range(200)))).result(30)
    predictor.stop()


def test_a_row_for_each_row():
    async def fewer(request):
        return InferResponse((Tensor("y", np.zeros(request.rows - 1)),), "m")

    predictor = scripted(fewer)
    with pytest.raises(ModelContractError, match="1 rows for 2 rows"):
        predictor.submit(request_of([1], [2])).result(30)
    predictor.stop()
