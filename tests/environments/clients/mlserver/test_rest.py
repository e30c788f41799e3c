"""MLServer's own types and codecs over plain HTTP, event streams, and the command ``mlserver
infer``.
"""

import datetime as dt
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlserver.codecs import (
    Base64Codec,
    DatetimeCodec,
    NumpyCodec,
    NumpyRequestCodec,
    PandasCodec,
    StringCodec,
    StringRequestCodec,
)
from mlserver.types import (
    Datatype,
    InferenceRequest,
    InferenceResponse,
    MetadataModelResponse,
    MetadataServerResponse,
    Parameters,
    RepositoryIndexResponse,
    RequestInput,
    RequestOutput,
    State,
)

A = np.arange(8, dtype=np.int32).reshape(2, 4)


def post(addresses, path, body=b"{}"):
    """Return the body of the response. `body` is bytes, or one of MLServer's types."""
    request = urllib.request.Request(
        f"http://{addresses['rest']}{path}",
        body if isinstance(body, bytes) else body.model_dump_json().encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read()


def get(addresses, path):
    with urllib.request.urlopen(f"http://{addresses['rest']}{path}", timeout=30) as response:
        return response.read()


def infer(addresses, model, request):
    return InferenceResponse.model_validate_json(post(addresses, f"/v2/models/{model}/infer", request))


def sum_request(**more):
    return InferenceRequest(inputs=[NumpyCodec.encode_input("a", A), NumpyCodec.encode_input("b", A)], **more)


def test_metadata(addresses):
    metadata = MetadataServerResponse.model_validate_json(get(addresses, "/v2"))
    assert metadata.name == "headrace"
    assert get(addresses, "/v2/health/live")
    assert get(addresses, "/v2/health/ready")
    assert get(addresses, "/v2/models/sum/versions/1/ready")
    model = MetadataModelResponse.model_validate_json(get(addresses, "/v2/models/sum/versions/1"))
    assert [(t.name, t.datatype, t.shape) for t in model.inputs] == [
        ("a", "INT32", [-1, 4]),
        ("b", "INT32", [-1, 4]),
    ]


def test_numpy_codec(addresses):
    """`parameters` of MLServer's types may be null, and carry its content types."""
    response = infer(addresses, "sum", sum_request(id="mine", parameters=Parameters(content_type="np")))
    assert (response.id, response.model_name, response.model_version) == ("mine", "sum", "2")
    total, difference = map(NumpyCodec.decode_output, response.outputs)
    np.testing.assert_array_equal(total, A + A)
    np.testing.assert_array_equal(difference, A - A)


def test_request_with_null_fields(addresses):
    """pydantic itself would write these types with null fields."""
    document = sum_request().model_dump(exclude_unset=False, exclude_none=False)
    for tensor in document["inputs"]:
        tensor["parameters"] = None
    body = json.dumps({"id": None, "parameters": None, "outputs": None, **document}).encode()
    assert b"null" in body
    response = InferenceResponse.model_validate_json(post(addresses, "/v2/models/sum/infer", body))
    np.testing.assert_array_equal(NumpyCodec.decode_output(response.outputs[0]), A + A)


def test_requested_outputs(addresses):
    response = infer(addresses, "sum", sum_request(outputs=[RequestOutput(name="difference")]))
    assert [o.name for o in response.outputs] == ["difference"]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int8, np.int64, np.float32, np.float64, np.bool_])
def test_every_number_round_trips(addresses, dtype):
    x = NumpyCodec.encode_input("x", np.array([[0, 1], [1, 1]], dtype))
    response = infer(addresses, f"echo_{Datatype(x.datatype).value}", InferenceRequest(inputs=[x]))
    back = NumpyCodec.decode_output(response.outputs[0])
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, [[0, 1], [1, 1]])


def test_string_codecs(addresses):
    for use_bytes in (False, True):
        text = StringCodec.encode_input("text", ["straße", "b"], use_bytes=use_bytes)
        response = infer(addresses, "upper", InferenceRequest(inputs=[text]))
        assert StringCodec.decode_output(response.outputs[0]) == ["STRASSE", "B"]
    request = StringRequestCodec.encode_request(["a"])
    request.inputs[0].name = "text"
    assert StringRequestCodec.decode_response(infer(addresses, "upper", request)) == ["A"]


def test_other_codecs_are_sent_as_text(addresses):
    """Base64 and dates are text with a content type. The model returns text."""
    encoded = Base64Codec.encode_input("text", [b"\0\xff"])
    response = infer(addresses, "upper", InferenceRequest(inputs=[encoded]))
    assert StringCodec.decode_output(response.outputs[0]) == ["AP8="]
    dated = DatetimeCodec.encode_input("text", [dt.datetime(2026, 1, 2, tzinfo=dt.UTC)])
    response = infer(addresses, "upper", InferenceRequest(inputs=[dated]))
    assert DatetimeCodec.decode_output(response.outputs[0])[0].year == 2026


def test_pandas_codec(addresses):
    """A frame has one column per input."""
    frame = pd.DataFrame({"text": ["a", "b"]})
    response = infer(addresses, "upper", PandasCodec.encode_request(frame))
    assert list(PandasCodec.decode_response(response)["upper"]) == ["A", "B"]


def test_numpy_request_codec(addresses):
    request = NumpyRequestCodec.encode_request(np.array([[1.5]], np.float32))
    request.inputs[0].name = "x"
    response = infer(addresses, "echo_FP32", request)
    np.testing.assert_array_equal(NumpyRequestCodec.decode_response(response), [[1.5]])


def test_events_are_whole_responses(addresses):
    """The events of ``infer_stream`` and ``generate_stream``, line by line."""
    request = InferenceRequest(id="1", inputs=[StringCodec.encode_input("text", ["to be or"])])
    for verb in ("infer_stream", "generate_stream"):
        words = []
        for line in post(addresses, f"/v2/models/words/{verb}", request).decode().split("\n"):
            if line:
                assert line.startswith("data: ")
                response = InferenceResponse.model_validate_json(line.removeprefix("data: "))
                assert response.id == "1"
                words += StringCodec.decode_output(response.outputs[0])
        assert words == ["to", "be", "or"]


def test_stream_errors_before_and_after_its_start(addresses):
    request = InferenceRequest(inputs=[StringCodec.encode_input("text", ["good !"])])
    with pytest.raises(urllib.error.HTTPError) as raised:
        post(addresses, "/v2/models/nothing/infer_stream", request)
    assert raised.value.code == 404
    raised.value.close()
    events = post(addresses, "/v2/models/words/infer_stream", request).decode().split("\n\n")
    assert "good" in events[0]
    assert "no word: !" in json.loads(events[1].removeprefix("data: "))["error"]


def test_disconnect_from_event_stream_reaches_the_model(addresses):
    def open_stream(text):
        request = InferenceRequest(inputs=[StringCodec.encode_input("text", [text])])
        return urllib.request.urlopen(
            urllib.request.Request(
                f"http://{addresses['rest']}/v2/models/held/infer_stream", request.model_dump_json().encode()
            ),
            timeout=30,
        )

    def count_closed():
        with open_stream("closed") as response:
            return json.loads(response.readline().removeprefix(b"data: "))["outputs"][0]["data"]

    before = count_closed()
    with open_stream("hold") as events:
        assert b"held" in events.readline()
    while count_closed() == before:  # pytest's timeout bounds this loop.
        pass


def test_errors(addresses):
    x = RequestInput(name="x", datatype="FP32", shape=[1, 1], data=[1.0])
    for path, status, message in (
        ("/v2/models/fails/infer", 500, "out of luck"),
        ("/v2/models/nothing/infer", 404, "nothing"),
        ("/v2/models/sum/infer", 400, "input 'a' is missing"),
    ):
        with pytest.raises(urllib.error.HTTPError) as raised:
            post(addresses, path, InferenceRequest(inputs=[x]))
        assert raised.value.code == status
        assert message in json.loads(raised.value.read())["error"]
        raised.value.close()


def test_repository(addresses):
    def states():
        found = RepositoryIndexResponse.model_validate_json(post(addresses, "/v2/repository/index"))
        return {entry.name: State(entry.state).value for entry in found}

    post(addresses, "/v2/repository/models/spare/unload", b"")
    assert states()["spare"] == "UNAVAILABLE"
    post(addresses, "/v2/repository/models/spare/load", b"")
    assert states()["spare"] == "READY"


def test_mlserver_infer_command(addresses, tmp_path):
    """The command sends batches of its own through tritonclient."""
    input_file, output_file = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests = [
        InferenceRequest(
            inputs=[NumpyCodec.encode_input(name, np.full((1, 4), n, np.int32)) for name in ("a", "b")]
        )
        for n in range(10)
    ]
    input_file.write_text("".join(r.model_dump_json(exclude_none=True) + "\n" for r in requests))
    command = [str(Path(sys.executable).with_name("mlserver")), "infer", "-u", addresses["rest"], "-m", "sum"]
    completed = subprocess.run(
        [*command, "-i", str(input_file), "-o", str(output_file), "--batch-size", "3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert completed.returncode == 0, completed.stderr
    lines = [json.loads(line) for line in output_file.read_text().splitlines()]
    assert len(lines) == 10
    assert sorted(line["outputs"][0]["data"][0] for line in lines) == [2 * n for n in range(10)]
