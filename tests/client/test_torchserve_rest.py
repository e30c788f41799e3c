"""TorchServe asked over real sockets: a request a row, and refusals that are that row's."""

import numpy as np
import pytest

from client.support import ScriptedConnection, asker_over, predicting, request_of, run, status
from headrace.client.address import resolve_address
from headrace.client.refusals import RefusalGuard
from headrace.client.retry import HttpAnswer, Verdict
from headrace.client.torchserve_rest import TorchServeRest, judge_torchserve
from headrace.core import InferRequest, RowError, Tensor
from headrace.core.errors import EndpointRefusedError, EndpointUnavailableError, ModelContractError
from headrace.protocols.torchserve import encode_error_body
from headrace.testing import ScriptedEndpoint

FAILED = encode_error_body(503, "InternalServerException", "Prediction failed")
BUSY = encode_error_body(503, "ServiceUnavailableException", "no worker to serve")
WRONG_KEY = encode_error_body(400, "InvalidKeyException", "Token Authorization failed")


def double(tensors):
    return tensors["x"][:, 0] * 2


def torchserve(*script):
    url = "http://h/predictions/m"
    connection = ScriptedConnection(*script)
    return TorchServeRest(resolve_address(url), RefusalGuard(url)), asker_over(connection), connection


def test_each_row_is_a_request_and_answers_stand_in_row_order():
    with (
        ScriptedEndpoint(double) as endpoint,
        predicting(endpoint.torchserve_url, in_flight_max=4) as predictor,
    ):
        endpoint.delay_s = lambda n: 0.1 if n % 4 == 0 else 0.05
        response = predictor.submit(request_of(*range(12))).result(10)
        assert len(endpoint.requests) == 12
        assert endpoint.answered != sorted(endpoint.answered)
        assert endpoint.in_flight_peak == 4
    assert response.outputs[0].data.tolist() == [2.0 * i for i in range(12)]
    assert (response.model_name, response.id, response.failures) == ("model", "batch-0", ())


def test_several_requests_share_the_bound():
    with (
        ScriptedEndpoint(double) as endpoint,
        predicting(endpoint.torchserve_url, in_flight_max=3) as predictor,
    ):
        endpoint.delay_s = lambda _: 0.001
        futures = [predictor.submit(request_of(*range(8))) for _ in range(6)]
        for future in futures:
            assert future.result(10).outputs[0].rows == 8
        assert endpoint.in_flight_peak == 3


def test_a_refused_row_fails_alone_and_a_handler_that_raises_is_tried_briefly():
    def predict(tensors):
        value = float(tensors["x"][0, 0])
        if value == 1:
            raise RowError(0, "too young")
        if value == 2:
            raise ValueError
        return tensors["x"][:, 0] * 2

    with ScriptedEndpoint(predict) as endpoint, predicting(endpoint.torchserve_url) as predictor:
        response = predictor.submit(request_of(0, 1, 2, 3)).result(10)
    assert response.outputs[0].data.tolist() == [0.0, 6.0]
    assert [(f.row, f.attempts) for f in response.failures] == [(1, 1), (2, 3)]
    assert "too young" in response.failures[0].why
    assert "Prediction failed" in response.failures[1].why


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (HttpAnswer(200), Verdict.ANSWERED),
        (HttpAnswer(503, FAILED), Verdict.RETRY_BRIEFLY),
        (HttpAnswer(503, BUSY), Verdict.RETRY),
        (HttpAnswer(503, b"<html>"), Verdict.RETRY),
        (HttpAnswer(400, WRONG_KEY), Verdict.REFUSED_WHOLE),
        (HttpAnswer(400, b"{}"), Verdict.REFUSED),
        (HttpAnswer(404, b"{}"), Verdict.REFUSED_WHOLE),
    ],
)
def test_what_its_statuses_mean_depends_on_the_exception(answer, verdict):
    assert judge_torchserve(answer) is verdict


def test_an_unknown_model_fails_the_request():
    dialect, asker, _ = torchserve(status(404, encode_error_body(404, "ModelNotFoundException", "no m")))
    with pytest.raises(EndpointRefusedError, match="HTTP 404: no m"):
        run(dialect.answer(asker, request_of(1, 2, 3), 3))


def test_an_endpoint_that_does_not_answer_fails_the_request():
    dialect, asker, _ = torchserve(status(503, BUSY))
    with pytest.raises(EndpointUnavailableError, match="no worker to serve"):
        run(dialect.answer(asker, request_of(1, 2, 3), 3))


def test_rows_that_are_all_refused_end_the_run():
    dialect, asker, connection = torchserve(status(400, b'{"message":"what is this"}'))
    with pytest.raises(EndpointRefusedError, match=r"each of the first 100 rows.*what is this"):
        run(dialect.answer(asker, request_of(*range(300)), 300))
    assert len(connection.calls) < 110


def test_a_row_that_cannot_travel_fails_alone():
    dialect, asker, _ = torchserve(status(200, b"1.5"))
    response = run(dialect.answer(asker, request_of(1, np.inf), 2))
    assert [(f.row, "infinite" in f.why) for f in response.failures] == [(1, True)]


def test_objects_become_columns_which_may_be_asked_for():
    dialect, asker, _ = torchserve(status(200, b'{"cat": 0.5, "dog": 0.25}'))
    request = request_of(1, 2)
    response = run(dialect.answer(asker, request, 2))
    assert {t.name: t.data.tolist() for t in response.outputs} == {"cat": [0.5, 0.5], "dog": [0.25, 0.25]}
    response = run(dialect.answer(asker, InferRequest(request.inputs, outputs=("dog",)), 2))
    assert [t.name for t in response.outputs] == ["dog"]
    with pytest.raises(ModelContractError, match=r"without output 'cow' \(it has cat, dog\)"):
        run(dialect.answer(asker, InferRequest(request.inputs, outputs=("dog", "cow")), 2))


def test_answers_of_another_form_than_the_first_name_the_batch():
    dialect, asker, _ = torchserve(status(200, b'{"cat": 1}'), status(200, b'{"dog": 1}'))
    run(dialect.answer(asker, request_of(1), 1))
    with pytest.raises(ModelContractError, match=r"model m: request batch-0: an answer is .*dog.*keys cat"):
        run(dialect.answer(asker, request_of(1), 1))


def test_text_goes_out_as_it_is():
    with ScriptedEndpoint(lambda t: np.array([len(t["x"][0])])) as endpoint:
        with predicting(endpoint.torchserve_url) as predictor:
            request = InferRequest((Tensor("x", np.array(["tabby", "b"], object)),))
            assert predictor.submit(request).result(10).outputs[0].data.tolist() == [5, 1]
        assert {r.headers["content-type"] for r in endpoint.requests} == {"text/plain; charset=utf-8"}


def test_no_rows_are_no_call():
    dialect, asker, connection = torchserve(status(500))
    assert run(dialect.answer(asker, request_of(), 0)).outputs == ()
    assert connection.calls == []


def test_its_metadata_is_a_name():
    dialect, asker, connection = torchserve(status(500))
    told = run(dialect.describe(asker))
    assert (told.name, told.platform, told.inputs, connection.calls) == ("m", "torchserve", (), [])
