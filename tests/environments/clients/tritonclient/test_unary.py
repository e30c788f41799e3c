"""All unary calls of tritonclient's four unmodified clients."""

import queue
import urllib.request

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

A = np.arange(8, dtype=np.int32).reshape(2, 4)
B = np.full((2, 4), 3, np.int32)

VALUES = {
    "BOOL": np.array([[True, False]]),
    "UINT8": np.array([[0, 255]], np.uint8),
    "UINT16": np.array([[0, 65535]], np.uint16),
    "UINT32": np.array([[0, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 127]], np.int8),
    "INT16": np.array([[-32768, 32767]], np.int16),
    "INT32": np.array([[-(2**31), 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 2**63 - 1]], np.int64),
    "FP16": np.array([[1.5, -65504]], np.float16),
    "BF16": np.array([[1.5, -(2.0**100)]], ml_dtypes.bfloat16),
    "FP32": np.array([[1.1, -3e38]], np.float32),
    "FP64": np.array([[1.1, -1e308]], np.float64),
    "BYTES": np.array([[b"a\0\xff", "grüße".encode()]], object),
}


def infer_sum(any_client, **kwargs):
    inputs = [any_client.input("a", A, "INT32"), any_client.input("b", B, "INT32")]
    return any_client.infer("sum", inputs, **kwargs)


# Health and metadata


def test_health(any_client):
    assert any_client.is_server_live()
    assert any_client.is_server_ready()
    assert any_client.is_model_ready("sum")
    assert any_client.is_model_ready("sum", "2")
    assert not unknown_is_ready(any_client, "nothing")


def unknown_is_ready(any_client, model):
    """Return the readiness of an unknown model.

    Over HTTP the client takes any status but 200 for False. Over gRPC it raises the error.
    """
    if any_client.is_http:
        return any_client.is_model_ready(model)
    with pytest.raises(InferenceServerException, match="nothing") as raised:
        any_client.is_model_ready(model)
    assert raised.value.status() == "StatusCode.NOT_FOUND"
    return False


def test_server_metadata_names_extensions(any_client):
    document = any_client.as_json("get_server_metadata")
    assert document["name"] == "headrace"
    assert document["version"]
    assert {"binary_tensor_data", "model_repository", "schedule_policy", "statistics"} <= set(
        document["extensions"]
    )
    assert "model_configuration" in document["extensions"]


def test_model_metadata(any_client):
    document = any_client.as_json("get_model_metadata", "sum")
    assert document["name"] == "sum"
    assert document["versions"] == ["1", "2"]
    assert [(t["name"], t["datatype"], list(map(int, t["shape"]))) for t in document["inputs"]] == [
        ("a", "INT32", [-1, 4]),
        ("b", "INT32", [-1, 4]),
    ]
    assert [t["name"] for t in document["outputs"]] == ["sum", "difference"]
    assert any_client.as_json("get_model_metadata", "sum", "1")["name"] == "sum"


def test_model_config(any_client):
    """The batch axis is the rows: `max_batch_size` is their limit, and `dims` omit them."""
    document = any_client.as_json("get_model_config", "sum", "1")
    config = document if any_client.is_http else document["config"]
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("sum", "headrace", 64)
    assert [(t["name"], t["data_type"], list(map(int, t["dims"]))) for t in config["input"]] == [
        ("a", "TYPE_INT32", [4]),
        ("b", "TYPE_INT32", [4]),
    ]
    assert [t["name"] for t in config["output"]] == ["sum", "difference"]
    words = any_client.as_json("get_model_config", "words")
    words = words if any_client.is_http else words["config"]
    assert words["model_transaction_policy"] == {"decoupled": True}
    assert words.get("max_batch_size", 0) == 0
    assert words["input"][0]["data_type"] == "TYPE_STRING"


def test_statistics_count_requests(any_client):
    before = statistics(any_client)
    infer_sum(any_client, model_version="2")
    after = statistics(any_client)
    changed = {name: after[name] - before[name] for name in after}
    assert changed.pop("last_inference") >= 0
    assert changed.pop("success_ns") > 0
    assert changed == {"inference_count": 2, "execution_count": 1, "success": 1, "batches_of_two": 1}
    assert after["last_inference"] > 1_600_000_000_000
    everything = any_client.as_json("get_inference_statistics")["model_stats"]
    assert {"sum", "words", "upper"} <= {m["name"] for m in everything}


def statistics(any_client):
    """Return figures of one version. Over gRPC zeros are missing and 64-bit numbers are text."""
    (model,) = any_client.as_json("get_inference_statistics", "sum", "2")["model_stats"]
    assert (model["name"], model["version"]) == ("sum", "2")
    success = model.get("inference_stats", {}).get("success", {})
    twos = [b["compute_infer"]["count"] for b in model.get("batch_stats", ()) if int(b["batch_size"]) == 2]
    return {
        **{
            name: int(model.get(name, 0)) for name in ("last_inference", "inference_count", "execution_count")
        },
        "success": int(success.get("count", 0)),
        "success_ns": int(success.get("ns", 0)),
        "batches_of_two": sum(map(int, twos)),
    }


# Inference


@pytest.mark.parametrize("datatype", VALUES)
def test_every_datatype_round_trips(any_client, datatype):
    """Binary data, the client's default over HTTP and its only form over gRPC."""
    values = VALUES[datatype]
    result = any_client.infer(f"echo_{datatype}", [any_client.input("x", values, datatype)])
    np.testing.assert_array_equal(result.as_numpy("y"), values)
    document = result.get_output("y")
    assert (document["datatype"] if any_client.is_http else document.datatype) == datatype


@pytest.mark.parametrize("datatype", sorted(set(VALUES) - {"FP16", "BF16", "BYTES"}))
def test_every_datatype_as_json(any_client, datatype):
    """The client itself refuses FP16 and BF16 in JSON."""
    if not any_client.is_http:
        pytest.skip("JSON is HTTP's")
    values = VALUES[datatype]
    inputs = [any_client.input("x", values, datatype, binary_data=False)]
    result = any_client.infer(f"echo_{datatype}", inputs, outputs=[any_client.output("y", binary_data=False)])
    assert "data" in result.get_output("y")
    np.testing.assert_array_equal(result.as_numpy("y"), values)


def test_text_as_json_and_as_bytes_in_one_response(any_client):
    if not any_client.is_http:
        pytest.skip("JSON is HTTP's")
    text = np.array(["straße", "b"], object)
    as_json = any_client.infer(
        "upper",
        [any_client.input("text", text, "BYTES", binary_data=False)],
        outputs=[any_client.output("upper", binary_data=False)],
    )
    assert as_json.get_output("upper")["data"] == ["STRASSE", "B"]
    binary = any_client.infer("upper", [any_client.input("text", text, "BYTES")])
    assert binary.get_output("upper")["parameters"]["binary_data_size"] == len("STRASSEB") + 2 * 4
    assert list(binary.as_numpy("upper")) == [b"STRASSE", b"B"]


def test_one_output_binary_and_the_other_json(any_client):
    if not any_client.is_http:
        pytest.skip("JSON is HTTP's")
    result = infer_sum(
        any_client,
        outputs=[
            any_client.output("sum", binary_data=True),
            any_client.output("difference", binary_data=False),
        ],
    )
    assert "data" not in result.get_output("sum")
    assert "data" in result.get_output("difference")
    np.testing.assert_array_equal(result.as_numpy("sum"), A + B)
    np.testing.assert_array_equal(result.as_numpy("difference"), A - B)


def test_only_requested_outputs_are_returned(any_client):
    result = infer_sum(any_client, outputs=[any_client.output("difference")])
    np.testing.assert_array_equal(result.as_numpy("difference"), A - B)
    assert result.as_numpy("sum") is None


def test_names_versions_and_ids_are_returned(any_client):
    response = infer_sum(any_client, model_version="1", request_id="mine").get_response()
    assert [field(response, key) for key in ("id", "model_name", "model_version")] == ["mine", "sum", "1"]
    assert field(infer_sum(any_client).get_response(), "model_version") == "2"


def field(response, key):
    return response[key] if isinstance(response, dict) else getattr(response, key)


def test_schedule_and_sequence_parameters_are_accepted(any_client):
    result = infer_sum(
        any_client,
        priority=1,
        timeout=10_000_000,
        sequence_id=7,
        sequence_start=True,
        sequence_end=True,
        parameters={"mood": "good", "times": 3, "sure": True},
    )
    np.testing.assert_array_equal(result.as_numpy("sum"), A + B)
    infer_sum(any_client, sequence_id="a-name", sequence_start=True)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [4, 40_000])
def test_compression_both_ways(any_client, algorithm, size):
    """The server compresses long responses if the client accepts that.

    The client decompresses them itself.
    """
    values = np.tile(np.arange(4, dtype=np.int32), (2, size // 4))
    inputs = [any_client.input("x", values, "INT32")]
    if any_client.is_http:
        kwargs = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    else:
        kwargs = {"compression_algorithm": algorithm}
    result = any_client.infer("echo_INT32", inputs, **kwargs)
    np.testing.assert_array_equal(result.as_numpy("y"), values)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_large_tensor(any_client):
    large = np.arange(4_000_000, dtype=np.float32).reshape(1000, 4000)
    result = any_client.infer("echo_FP32", [any_client.input("x", large, "FP32")])
    np.testing.assert_array_equal(result.as_numpy("y"), large)


def test_client_bodies_over_another_transport(addresses):
    """``generate_request_body`` and ``parse_response_body`` with a compressed response."""
    client = tritonclient.http.InferenceServerClient
    values = np.zeros((2, 20_000), np.int32)
    x = tritonclient.http.InferInput("x", list(values.shape), "INT32")
    x.set_data_from_numpy(values)
    body, json_bytes = client.generate_request_body([x])
    headers = {"Inference-Header-Content-Length": str(json_bytes), "Accept-Encoding": "gzip"}
    request = urllib.request.Request(f"http://{addresses['rest']}/v2/models/echo_INT32/infer", body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        encoding = response.headers["Content-Encoding"]
        length = int(response.headers["Inference-Header-Content-Length"])
        result = client.parse_response_body(response.read(), header_length=length, content_encoding=encoding)
    assert encoding == "gzip"
    np.testing.assert_array_equal(result.as_numpy("y"), values)


def test_http_disconnect_reaches_the_model(addresses):
    def infer_held(command, **kwargs):
        text = tritonclient.http.InferInput("text", [1], "BYTES")
        text.set_data_from_numpy(np.array([command], object))
        with tritonclient.http.InferenceServerClient(addresses["rest"], **kwargs) as client:
            return int(client.infer("held", [text]).as_numpy("status")[0])

    before = infer_held("closed")
    with pytest.raises(TimeoutError):
        infer_held("hold", network_timeout=0.3)
    while infer_held("closed") == before:  # pytest's timeout bounds this loop.
        pass


def test_async_infer(any_client):
    if any_client.kind.endswith("aio"):
        pytest.skip("the clients of asyncio have no such method")
    inputs = [any_client.input("a", A, "INT32"), any_client.input("b", B, "INT32")]
    result = (
        any_client.async_infer("sum", inputs).get_result()
        if any_client.is_http
        else grpc_async(any_client, inputs)
    )
    np.testing.assert_array_equal(result.as_numpy("sum"), A + B)


def grpc_async(any_client, inputs):
    received = queue.Queue()
    any_client.async_infer("sum", inputs, callback=lambda result, error: received.put((result, error)))
    result, error = received.get(timeout=30)
    assert error is None
    return result


# Errors


@pytest.mark.parametrize(
    ("model", "values", "message", "statuses"),
    [
        (("nothing", ""), [[1.0]], "model nothing", ("404", "NOT_FOUND")),
        (("fails", "9"), [[1.0]], "model fails", ("404", "NOT_FOUND")),
        (("fails", ""), [[1.0]], "out of luck", ("500", "INTERNAL")),
        (("fails", ""), [[1.0], [-1.0]], "negative", ("422", "INVALID_ARGUMENT")),
        (("fails", ""), [[1.0, 2.0]], "input 'x' takes FP32", ("400", "INVALID_ARGUMENT")),
    ],
)
def test_errors_are_client_exceptions_with_server_message(any_client, model, values, message, statuses):
    x = any_client.input("x", np.array(values, np.float32), "FP32")
    with pytest.raises(InferenceServerException) as raised:
        any_client.infer(model[0], [x], model_version=model[1])
    assert message in raised.value.message()
    assert raised.value.status() == (statuses[0] if any_client.is_http else f"StatusCode.{statuses[1]}")


def test_unknown_output_is_an_error(any_client):
    with pytest.raises(InferenceServerException, match="product"):
        infer_sum(any_client, outputs=[any_client.output("product")])


def test_request_timeout_is_kept(any_client):
    """The timeout is in microseconds. The model responds only after a disconnect."""
    text = np.array(["hold"], object)
    with pytest.raises(InferenceServerException) as raised:
        any_client.infer("held", [any_client.input("text", text, "BYTES")], timeout=200_000)
    assert raised.value.status() == ("504" if any_client.is_http else "StatusCode.DEADLINE_EXCEEDED")


def test_classification_is_refused(any_client):
    with pytest.raises(InferenceServerException, match="classification") as raised:
        infer_sum(any_client, outputs=[any_client.output("sum", class_count=2)])
    assert raised.value.status() == ("501" if any_client.is_http else "StatusCode.UNIMPLEMENTED")


def test_shared_memory_is_refused(any_client):
    named = any_client.module.InferInput("x", [1, 1], "FP32")
    named.set_shared_memory("region", 4)
    with pytest.raises(InferenceServerException, match="shared memory") as raised:
        any_client.infer("echo_FP32", [named])
    assert raised.value.status() == ("501" if any_client.is_http else "StatusCode.UNIMPLEMENTED")
    wanted = any_client.output("y")
    wanted.set_shared_memory("region", 4)
    with pytest.raises(InferenceServerException, match="shared memory") as raised:
        any_client.infer("echo_FP32", [any_client.input("x", VALUES["FP32"], "FP32")], outputs=[wanted])
    assert raised.value.status() == ("501" if any_client.is_http else "StatusCode.UNIMPLEMENTED")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("get_system_shared_memory_status", ()),
        ("register_system_shared_memory", ("region", "key", 4)),
        ("unregister_system_shared_memory", ()),
        ("unregister_system_shared_memory", ("region",)),
        ("get_cuda_shared_memory_status", ("region",)),
        ("register_cuda_shared_memory", ("region", b"aGFuZGxl", 0, 4)),
        ("unregister_cuda_shared_memory", ()),
        ("get_trace_settings", ()),
        ("get_trace_settings", ("sum",)),
        ("update_trace_settings", ("sum", {"trace_rate": "1"})),
        ("get_log_settings", ()),
        ("update_log_settings", ({"log_info": True},)),
    ],
)
def test_unsupported_extensions_are_refused(any_client, method, arguments):
    with pytest.raises(InferenceServerException, match=r"not offered|cannot be changed") as raised:
        getattr(any_client, method)(*arguments)
    assert raised.value.status() == ("501" if any_client.is_http else "StatusCode.UNIMPLEMENTED")


# The model repository


def test_index_unload_and_load(any_client):
    assert index(any_client)["spare"] == "READY"
    any_client.unload_model("spare")
    assert index(any_client)["spare"] == "UNAVAILABLE"
    with pytest.raises(InferenceServerException, match="spare"):
        any_client.infer("spare", [any_client.input("a", A, "INT32"), any_client.input("b", B, "INT32")])
    any_client.load_model("spare")
    assert index(any_client)["spare"] == "READY"
    assert any_client.is_model_ready("spare")
    any_client.load_model("spare")  # A second load changes nothing.


def index(any_client):
    document = any_client.as_json("get_model_repository_index")
    return {m["name"]: m["state"] for m in (document if any_client.is_http else document["models"])}


def test_load_accepts_dependents_but_no_configuration(any_client):
    any_client.unload_model("spare", unload_dependents=True)
    any_client.load_model("spare")
    with pytest.raises(InferenceServerException, match="config") as raised:
        any_client.load_model("spare", config='{"backend": "python"}')
    assert raised.value.status() == ("501" if any_client.is_http else "StatusCode.UNIMPLEMENTED")
    with pytest.raises(InferenceServerException, match="config"):
        any_client.load_model("spare", config="{}", files={"file:1/model.py": b"import os"})
    with pytest.raises(InferenceServerException, match="nothing"):
        any_client.load_model("nothing")
    with pytest.raises(InferenceServerException, match="nothing"):
        any_client.unload_model("nothing")


def test_datatype_names_match_the_client():
    for name, values in VALUES.items():
        assert np_to_triton_dtype(values.dtype) == name
