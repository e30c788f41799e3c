"""Each of tritonclient's four clients, unmodified, asks for everything but streams."""

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


def ask_sum(door, **kwargs):
    inputs = [door.input("a", A, "INT32"), door.input("b", B, "INT32")]
    return door.infer("sum", inputs, **kwargs)


# Health and what is there


def test_health(door):
    assert door.is_server_live()
    assert door.is_server_ready()
    assert door.is_model_ready("sum")
    assert door.is_model_ready("sum", "2")
    assert not unknown_is_ready(door, "nothing")


def unknown_is_ready(door, model):
    """Over HTTP the client reads any status but 200 as a no; over gRPC it is told why."""
    if door.is_http:
        return door.is_model_ready(model)
    with pytest.raises(InferenceServerException, match="nothing") as told:
        door.is_model_ready(model)
    assert told.value.status() == "StatusCode.NOT_FOUND"
    return False


def test_server_metadata_names_the_extensions_that_hold(door):
    told = door.told("get_server_metadata")
    assert told["name"] == "headrace"
    assert told["version"]
    assert {"binary_tensor_data", "model_repository", "schedule_policy", "statistics"} <= set(
        told["extensions"]
    )
    assert "model_configuration" in told["extensions"]


def test_model_metadata(door):
    told = door.told("get_model_metadata", "sum")
    assert told["name"] == "sum"
    assert told["versions"] == ["1", "2"]
    assert [(t["name"], t["datatype"], list(map(int, t["shape"]))) for t in told["inputs"]] == [
        ("a", "INT32", [-1, 4]),
        ("b", "INT32", [-1, 4]),
    ]
    assert [t["name"] for t in told["outputs"]] == ["sum", "difference"]
    assert door.told("get_model_metadata", "sum", "1")["name"] == "sum"


def test_model_config(door):
    """Rows are the batch: `max_batch_size` says how many, and `dims` leave them out."""
    told = door.told("get_model_config", "sum", "1")
    config = told if door.is_http else told["config"]
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("sum", "headrace", 64)
    assert [(t["name"], t["data_type"], list(map(int, t["dims"]))) for t in config["input"]] == [
        ("a", "TYPE_INT32", [4]),
        ("b", "TYPE_INT32", [4]),
    ]
    assert [t["name"] for t in config["output"]] == ["sum", "difference"]
    words = door.told("get_model_config", "words")
    words = words if door.is_http else words["config"]
    assert words["model_transaction_policy"] == {"decoupled": True}
    assert words.get("max_batch_size", 0) == 0
    assert words["input"][0]["data_type"] == "TYPE_STRING"


def test_statistics_count_what_was_asked(door):
    before = statistics(door)
    ask_sum(door, model_version="2")
    after = statistics(door)
    changed = {name: after[name] - before[name] for name in after}
    assert changed.pop("last_inference") >= 0
    assert changed.pop("success_ns") > 0
    assert changed == {"inference_count": 2, "execution_count": 1, "success": 1, "batches_of_two": 1}
    assert after["last_inference"] > 1_600_000_000_000
    everything = door.told("get_inference_statistics")["model_stats"]
    assert {"sum", "words", "upper"} <= {m["name"] for m in everything}


def statistics(door):
    """Figures of one version; over gRPC zeros are left out and 64-bit numbers are text."""
    (one,) = door.told("get_inference_statistics", "sum", "2")["model_stats"]
    assert (one["name"], one["version"]) == ("sum", "2")
    success = one.get("inference_stats", {}).get("success", {})
    twos = [b["compute_infer"]["count"] for b in one.get("batch_stats", ()) if int(b["batch_size"]) == 2]
    return {
        **{name: int(one.get(name, 0)) for name in ("last_inference", "inference_count", "execution_count")},
        "success": int(success.get("count", 0)),
        "success_ns": int(success.get("ns", 0)),
        "batches_of_two": sum(map(int, twos)),
    }


# Inference


@pytest.mark.parametrize("datatype", VALUES)
def test_every_datatype_comes_back_as_it_went(door, datatype):
    """Binary, which is this client's default over HTTP and its only way over gRPC."""
    values = VALUES[datatype]
    result = door.infer(f"echo_{datatype}", [door.input("x", values, datatype)])
    np.testing.assert_array_equal(result.as_numpy("y"), values)
    told = result.get_output("y")
    assert (told["datatype"] if door.is_http else told.datatype) == datatype


@pytest.mark.parametrize("datatype", sorted(set(VALUES) - {"FP16", "BF16", "BYTES"}))
def test_every_datatype_as_json(door, datatype):
    """FP16 and BF16 are not for JSON, the client says so itself."""
    if not door.is_http:
        pytest.skip("JSON is HTTP's")
    values = VALUES[datatype]
    inputs = [door.input("x", values, datatype, binary_data=False)]
    result = door.infer(f"echo_{datatype}", inputs, outputs=[door.output("y", binary_data=False)])
    assert "data" in result.get_output("y")
    np.testing.assert_array_equal(result.as_numpy("y"), values)


def test_text_as_json_and_as_bytes_in_one_response(door):
    if not door.is_http:
        pytest.skip("JSON is HTTP's")
    text = np.array(["straße", "b"], object)
    as_json = door.infer(
        "upper",
        [door.input("text", text, "BYTES", binary_data=False)],
        outputs=[door.output("upper", binary_data=False)],
    )
    assert as_json.get_output("upper")["data"] == ["STRASSE", "B"]
    binary = door.infer("upper", [door.input("text", text, "BYTES")])
    assert binary.get_output("upper")["parameters"]["binary_data_size"] == len("STRASSEB") + 2 * 4
    assert list(binary.as_numpy("upper")) == [b"STRASSE", b"B"]


def test_one_output_binary_and_the_other_json(door):
    if not door.is_http:
        pytest.skip("JSON is HTTP's")
    result = ask_sum(
        door,
        outputs=[door.output("sum", binary_data=True), door.output("difference", binary_data=False)],
    )
    assert "data" not in result.get_output("sum")
    assert "data" in result.get_output("difference")
    np.testing.assert_array_equal(result.as_numpy("sum"), A + B)
    np.testing.assert_array_equal(result.as_numpy("difference"), A - B)


def test_requested_outputs_alone_come(door):
    result = ask_sum(door, outputs=[door.output("difference")])
    np.testing.assert_array_equal(result.as_numpy("difference"), A - B)
    assert result.as_numpy("sum") is None


def test_names_versions_and_ids_are_told_back(door):
    response = ask_sum(door, model_version="1", request_id="mine").get_response()
    assert [said(response, key) for key in ("id", "model_name", "model_version")] == ["mine", "sum", "1"]
    assert said(ask_sum(door).get_response(), "model_version") == "2"


def said(response, key):
    return response[key] if isinstance(response, dict) else getattr(response, key)


def test_schedule_and_sequence_parameters_are_taken(door):
    result = ask_sum(
        door,
        priority=1,
        timeout=10_000_000,
        sequence_id=7,
        sequence_start=True,
        sequence_end=True,
        parameters={"mood": "good", "times": 3, "sure": True},
    )
    np.testing.assert_array_equal(result.as_numpy("sum"), A + B)
    ask_sum(door, sequence_id="a-name", sequence_start=True)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [4, 40_000])
def test_compression_both_ways(door, algorithm, size):
    """Long responses come compressed where the client takes it, and this client decompresses them itself."""
    values = np.tile(np.arange(4, dtype=np.int32), (2, size // 4))
    inputs = [door.input("x", values, "INT32")]
    if door.is_http:
        kwargs = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    else:
        kwargs = {"compression_algorithm": algorithm}
    result = door.infer("echo_INT32", inputs, **kwargs)
    np.testing.assert_array_equal(result.as_numpy("y"), values)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_large_tensor(door):
    large = np.arange(4_000_000, dtype=np.float32).reshape(1000, 4000)
    result = door.infer("echo_FP32", [door.input("x", large, "FP32")])
    np.testing.assert_array_equal(result.as_numpy("y"), large)


def test_bodies_that_the_client_makes_and_reads_for_other_transports(doors):
    """``generate_request_body`` and ``parse_response_body``; a long answer comes compressed."""
    client = tritonclient.http.InferenceServerClient
    values = np.zeros((2, 20_000), np.int32)
    x = tritonclient.http.InferInput("x", list(values.shape), "INT32")
    x.set_data_from_numpy(values)
    body, json_bytes = client.generate_request_body([x])
    headers = {"Inference-Header-Content-Length": str(json_bytes), "Accept-Encoding": "gzip"}
    request = urllib.request.Request(f"http://{doors['rest']}/v2/models/echo_INT32/infer", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        encoding = answer.headers["Content-Encoding"]
        length = int(answer.headers["Inference-Header-Content-Length"])
        result = client.parse_response_body(answer.read(), header_length=length, content_encoding=encoding)
    assert encoding == "gzip"
    np.testing.assert_array_equal(result.as_numpy("y"), values)


def test_leaving_over_http_reaches_the_model(doors):
    def asked(what, **kwargs):
        text = tritonclient.http.InferInput("text", [1], "BYTES")
        text.set_data_from_numpy(np.array([what], object))
        with tritonclient.http.InferenceServerClient(doors["rest"], **kwargs) as client:
            return int(client.infer("held", [text]).as_numpy("said")[0])

    before = asked("gone")
    with pytest.raises(TimeoutError):
        asked("hold", network_timeout=0.3)
    while asked("gone") == before:  # pytest's timeout bounds this
        pass


def test_async_infer(door):
    if door.kind.endswith("aio"):
        pytest.skip("the clients of asyncio have no such method")
    inputs = [door.input("a", A, "INT32"), door.input("b", B, "INT32")]
    result = door.async_infer("sum", inputs).get_result() if door.is_http else grpc_async(door, inputs)
    np.testing.assert_array_equal(result.as_numpy("sum"), A + B)


def grpc_async(door, inputs):
    came = queue.Queue()
    door.async_infer("sum", inputs, callback=lambda result, error: came.put((result, error)))
    result, error = came.get(timeout=30)
    assert error is None
    return result


# Errors


@pytest.mark.parametrize(
    ("model", "values", "says", "statuses"),
    [
        (("nothing", ""), [[1.0]], "model nothing", ("404", "NOT_FOUND")),
        (("fails", "9"), [[1.0]], "model fails", ("404", "NOT_FOUND")),
        (("fails", ""), [[1.0]], "out of luck", ("500", "INTERNAL")),
        (("fails", ""), [[1.0], [-1.0]], "negative", ("422", "INVALID_ARGUMENT")),
        (("fails", ""), [[1.0, 2.0]], "input 'x' takes FP32", ("400", "INVALID_ARGUMENT")),
    ],
)
def test_errors_are_the_client_s_exception_with_our_words(door, model, values, says, statuses):
    x = door.input("x", np.array(values, np.float32), "FP32")
    with pytest.raises(InferenceServerException) as told:
        door.infer(model[0], [x], model_version=model[1])
    assert says in told.value.message()
    assert told.value.status() == (statuses[0] if door.is_http else f"StatusCode.{statuses[1]}")


def test_an_unknown_output_is_an_error(door):
    with pytest.raises(InferenceServerException, match="product"):
        ask_sum(door, outputs=[door.output("product")])


def test_a_timeout_of_the_request_is_kept(door):
    """Microseconds; the model answers only when its caller goes."""
    text = np.array(["hold"], object)
    with pytest.raises(InferenceServerException) as told:
        door.infer("held", [door.input("text", text, "BYTES")], timeout=200_000)
    assert told.value.status() == ("504" if door.is_http else "StatusCode.DEADLINE_EXCEEDED")


def test_classification_is_refused_clearly(door):
    with pytest.raises(InferenceServerException, match="classification") as told:
        ask_sum(door, outputs=[door.output("sum", class_count=2)])
    assert told.value.status() == ("501" if door.is_http else "StatusCode.UNIMPLEMENTED")


def test_shared_memory_of_a_tensor_is_refused_clearly(door):
    named = door.module.InferInput("x", [1, 1], "FP32")
    named.set_shared_memory("region", 4)
    with pytest.raises(InferenceServerException, match="shared memory") as told:
        door.infer("echo_FP32", [named])
    assert told.value.status() == ("501" if door.is_http else "StatusCode.UNIMPLEMENTED")
    wanted = door.output("y")
    wanted.set_shared_memory("region", 4)
    with pytest.raises(InferenceServerException, match="shared memory") as told:
        door.infer("echo_FP32", [door.input("x", VALUES["FP32"], "FP32")], outputs=[wanted])
    assert told.value.status() == ("501" if door.is_http else "StatusCode.UNIMPLEMENTED")


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
def test_what_is_not_offered_says_so(door, method, arguments):
    with pytest.raises(InferenceServerException, match=r"not offered|cannot be changed") as told:
        getattr(door, method)(*arguments)
    assert told.value.status() == ("501" if door.is_http else "StatusCode.UNIMPLEMENTED")


# The model repository


def test_index_unload_and_load(door):
    assert index(door)["spare"] == "READY"
    door.unload_model("spare")
    assert index(door)["spare"] == "UNAVAILABLE"
    with pytest.raises(InferenceServerException, match="spare"):
        door.infer("spare", [door.input("a", A, "INT32"), door.input("b", B, "INT32")])
    door.load_model("spare")
    assert index(door)["spare"] == "READY"
    assert door.is_model_ready("spare")
    door.load_model("spare")  # again


def index(door):
    told = door.told("get_model_repository_index")
    return {m["name"]: m["state"] for m in (told if door.is_http else told["models"])}


def test_dependents_may_be_named_and_a_configuration_may_not(door):
    door.unload_model("spare", unload_dependents=True)
    door.load_model("spare")
    with pytest.raises(InferenceServerException, match="config") as told:
        door.load_model("spare", config='{"backend": "python"}')
    assert told.value.status() == ("501" if door.is_http else "StatusCode.UNIMPLEMENTED")
    with pytest.raises(InferenceServerException, match="config"):
        door.load_model("spare", config="{}", files={"file:1/model.py": b"import os"})
    with pytest.raises(InferenceServerException, match="nothing"):
        door.load_model("nothing")
    with pytest.raises(InferenceServerException, match="nothing"):
        door.unload_model("nothing")


def test_the_names_of_datatypes_are_the_client_s():
    for name, values in VALUES.items():
        assert np_to_triton_dtype(values.dtype) == name
