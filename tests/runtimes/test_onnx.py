"""Real ONNX files: metadata, batches of any size, text, maps of classes, and errors."""

import importlib
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper

from cases import for_each
from headrace.core.errors import (
    ConfigError,
    MissingExtraError,
    ModelContractError,
    ModelInputError,
    ModelLoadError,
)
from headrace.core.model import Model, RowError
from headrace.core.tensor import InferRequest, Tensor, TensorSpec
from headrace.runtimes import onnx as adapter
from headrace.runtimes.onnx import BATCH_BYTES, BATCH_ROWS_MAX, BATCH_ROWS_MIN, OnnxModel
from runtimes.loaded import LoadedModel

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
RNG = np.random.default_rng(6)
X = RNG.normal(size=(50, 3)).astype(np.float32)
LABELS = np.where(X[:, 0] > 0.8, 2, (X[:, 1] > 0).astype(int))


def info(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, initializers=()):
    """Return the bytes of an ONNX file; nodes are (operator, inputs, outputs, attributes)."""
    graph_nodes = [helper.make_node(op, i, o, **attributes) for op, i, o, attributes in nodes]
    graph = helper.make_graph(graph_nodes, "graph", inputs, outputs, initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return proto.SerializeToString()


def doubles(rows, width=3):
    return model(
        [("Add", ["x", "x"], ["y"], {})], [info("x", FLOAT, [rows, width])], [info("y", FLOAT, [rows, width])]
    )


@pytest.fixture
def load(tmp_path):
    """A function that loads an ONNX file as a model."""
    loaded = []

    def load(data, **options):
        path = tmp_path / "small.onnx"
        path.write_bytes(data)
        loaded.append(OnnxModel(path, **options))
        loaded[-1].load()
        return loaded[-1]

    yield load
    for each in loaded:
        each.close()


# Metadata of the file


@for_each("rows", ["n", None])
def test_names_types_and_shapes_come_from_the_file(load, rows):
    nodes = [("Cast", ["ids"], ["score"], {"to": TensorProto.DOUBLE}), ("Identity", ["name"], ["same"], {})]
    data = model(
        nodes,
        [info("ids", INT64, [rows, 2]), info("name", STRING, [rows])],
        [info("score", TensorProto.DOUBLE, [rows, 2]), info("same", STRING, [rows])],
    )
    loaded = load(data)
    assert loaded.inputs == (TensorSpec("ids", "INT64", (-1, 2)), TensorSpec("name", "BYTES", (-1,)))
    assert loaded.outputs == (TensorSpec("score", "FP64", (-1, 2)), TensorSpec("same", "BYTES", (-1,)))
    ids = np.array([[1, 2], [3, 4]])
    outputs = loaded.predict(ids=ids, name=np.array(["a", "é"], object))
    assert outputs["score"].dtype == np.float64
    assert outputs["score"].tolist() == ids.tolist()
    assert outputs["same"].tolist() == ["a", "é"]


@for_each(
    ("kind", "datatype"),
    [
        (TensorProto.BOOL, "BOOL"),
        (TensorProto.UINT8, "UINT8"),
        (TensorProto.INT8, "INT8"),
        (TensorProto.UINT16, "UINT16"),
        (TensorProto.INT16, "INT16"),
        (TensorProto.UINT32, "UINT32"),
        (TensorProto.INT32, "INT32"),
        (TensorProto.UINT64, "UINT64"),
        (INT64, "INT64"),
        (TensorProto.FLOAT16, "FP16"),
        (FLOAT, "FP32"),
        (TensorProto.DOUBLE, "FP64"),
        (STRING, "BYTES"),
    ],
)
def test_every_datatype(load, kind, datatype):
    loaded = load(
        model([("Identity", ["x"], ["y"], {})], [info("x", kind, ["n", 2])], [info("y", kind, ["n", 2])])
    )
    assert loaded.inputs[0].datatype == loaded.outputs[0].datatype == datatype


def test_unsupported_input_type_is_refused(load):
    data = model(
        [("Identity", ["x"], ["y"], {})],
        [info("x", TensorProto.BFLOAT16, ["n"])],
        [info("y", TensorProto.BFLOAT16, ["n"])],
    )
    with pytest.raises(ModelLoadError, match=r"input 'x' has type tensor\(bfloat16\), which .* not support"):
        load(data)


def test_variable_sizes_are_minus_one(load):
    data = model(
        [("Identity", ["x"], ["y"], {})],
        [info("x", FLOAT, ["n", "length", 4])],
        [info("y", FLOAT, ["n", "length", 4])],
    )
    loaded = load(data)
    assert loaded.inputs == (TensorSpec("x", "FP32", (-1, -1, 4)),)
    for length in (1, 7):
        assert loaded.predict(x=np.ones((2, length, 4), np.float32))["y"].shape == (2, length, 4)


def test_unknown_shape_is_none(load):
    data = model([("Identity", ["x"], ["y"], {})], [info("x", FLOAT, None)], [info("y", FLOAT, None)])
    loaded = load(data)
    assert loaded.inputs == (TensorSpec("x", "FP32", None),)
    assert loaded.predict(x=X)["y"].shape == X.shape


def test_several_inputs_and_outputs(load):
    nodes = [("Concat", ["a", "b"], ["both"], {"axis": 1}), ("Sub", ["a", "b"], ["difference"], {})]
    data = model(
        nodes,
        [info("a", FLOAT, ["n", 1]), info("b", FLOAT, ["n", 1])],
        [info("both", FLOAT, ["n", 2]), info("difference", FLOAT, ["n", 1])],
    )
    a, b = X[:, :1], X[:, 1:2]
    outputs = load(data).predict(a=a, b=b)
    assert (outputs["both"] == X[:, :2]).all()
    assert (outputs["difference"] == a - b).all()


# Batches


@for_each("rows", [1, 2, 50])
def test_any_number_of_rows(load, rows):
    assert (load(doubles("n")).predict(x=X[:rows])["y"] == 2 * X[:rows]).all()


@for_each("size", [1, 4])
@for_each("rows", [1, 3, 4, 5, 50])
def test_fixed_batch_is_called_repeatedly(load, size, rows):
    """The file's number of rows appears neither in the specs nor in the outputs."""
    loaded = load(doubles(size))
    assert loaded.inputs == (TensorSpec("x", "FP32", (-1, 3)),)
    assert loaded.outputs == (TensorSpec("y", "FP32", (-1, 3)),)
    assert (loaded.predict(x=X[:rows])["y"] == 2 * X[:rows]).all()


def test_fixed_batch_is_padded_with_its_last_row(load):
    """A model that works across the batch gets the last row again, not zeros."""
    data = model(
        [("ReduceMax", ["x"], ["m"], {"axes": [0]}), ("Sub", ["x", "m"], ["y"], {})],
        [info("x", FLOAT, [4, 1])],
        [info("y", FLOAT, [4, 1])],
    )
    x = np.array([[-3], [-2]], np.float32)
    assert load(data).predict(x=x)["y"].tolist() == [[-1], [0]]


def test_fixed_batches_of_text(load):
    data = model([("Identity", ["x"], ["y"], {})], [info("x", STRING, [2, 1])], [info("y", STRING, [2, 1])])
    x = np.array([[b"a"], [b"b"], ["c"]], object)
    assert load(data).predict(x=x)["y"].tolist() == [["a"], ["b"], ["c"]]


def test_fixed_batch_output_without_rows_is_refused(load):
    data = model(
        [("ReduceSum", ["x"], ["y"], {"keepdims": 0})], [info("x", FLOAT, [4, 3])], [info("y", FLOAT, [])]
    )
    with pytest.raises(ModelContractError, match=r"output 'y' has shape \[\] for 4 rows"):
        load(data).predict(x=X)


def test_inputs_with_different_fixed_rows_are_refused(load):
    """For example, a state whose first axis is layers has no rows."""
    data = model(
        [("Identity", ["x"], ["y"], {}), ("Identity", ["state"], ["next"], {})],
        [info("x", FLOAT, [1, 3]), info("state", FLOAT, [2, 1, 8])],
        [info("y", FLOAT, [1, 3]), info("next", FLOAT, [2, 1, 8])],
    )
    with pytest.raises(
        ModelLoadError, match="must be rows in every input, but the file fixes it to 1 for 'x', 2"
    ):
        load(data)


def test_file_without_inputs_is_refused(load):
    constant = helper.make_tensor("c", FLOAT, [1], [3.0])
    with pytest.raises(ModelLoadError, match="it has no inputs"):
        load(model([("Identity", ["c"], ["y"], {})], [], [info("y", FLOAT, [1])], [constant]))


@for_each(
    ("width", "rows"), [(300, BATCH_BYTES // 1200), (1, BATCH_ROWS_MAX), (3 * 224 * 224, BATCH_ROWS_MIN)]
)
def test_batch_rows_depend_on_row_size(load, width, rows):
    assert load(doubles("n", width)).max_batch_rows == rows


def test_unknown_row_size_has_default_batch_rows(load):
    assert load(doubles("n", "width")).max_batch_rows == Model.max_batch_rows


@for_each("rows", ["n", 4])
def test_read_only_inputs_are_accepted(load, rows):
    """The model declares that it does not write into its inputs, so it gets the client's arrays."""
    loaded = load(doubles(rows))
    x = X.copy()
    x.flags.writeable = False
    assert not loaded.writes_inputs
    assert (loaded.predict(x=x)["y"] == 2 * X).all()


# Text


@pytest.fixture
def echo(load):
    return load(
        model([("Identity", ["x"], ["y"], {})], [info("x", STRING, ["n"])], [info("y", STRING, ["n"])])
    )


@for_each(
    "text",
    [
        np.array(["a", "é", ""], object),
        np.array([b"a", "é".encode(), b""], object),
        np.array(["a", "é".encode(), ""], object),
        np.array(["a", "é", ""]),
    ],
)
def test_text_is_passed_as_str(echo, text):
    """onnxruntime itself takes b"a" for the four characters b'a'."""
    assert echo.predict(x=text)["y"].tolist() == ["a", "é", ""]


def test_padded_numpy_bytes_are_text(echo):
    assert echo.predict(x=np.array([b"a", b"bcd"]))["y"].tolist() == ["a", "bcd"]


def test_rows_that_are_not_utf8_are_refused_alone(load):
    loaded = load(
        model([("Identity", ["x"], ["y"], {})], [info("x", STRING, ["n", 2])], [info("y", STRING, ["n", 2])])
    )
    x = np.array([[b"a", b"b"], [b"c", b"\xff"], [b"d", b"e"], [b"\xe9t\xe9", b"f"]], object)
    with pytest.raises(RowError) as caught:
        loaded.predict(x=x)
    assert caught.value.rows == {
        1: "input 'x' is not UTF-8: invalid start byte at byte 0",
        3: "input 'x' is not UTF-8: invalid continuation byte at byte 0",
    }


# Classifiers of scikit-learn


@pytest.mark.slow
@for_each("names", [None, np.array(["low", "mid", "high"])])
def test_labels_and_a_map_of_probabilities(load, names):
    """The converter's default: one map per row becomes one column per class."""
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    labels = LABELS if names is None else names[LABELS]
    classifier = LogisticRegression().fit(X, labels)
    loaded = load(to_onnx(classifier, X[:1]).SerializeToString())
    label = "INT64" if names is None else "BYTES"
    assert loaded.outputs == (
        TensorSpec("output_label", label, (-1,)),
        TensorSpec("output_probability", "FP32", (-1, -1)),
    )
    outputs = loaded.predict(X=X)
    assert outputs["output_label"].tolist() == classifier.predict(X).tolist()
    assert outputs["output_probability"].dtype == np.float32
    np.testing.assert_allclose(outputs["output_probability"], classifier.predict_proba(X), atol=1e-6)


@pytest.mark.slow
def test_labels_and_a_matrix_of_probabilities(load):
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    classifier = LogisticRegression().fit(X, LABELS)
    data = to_onnx(classifier, X[:1], options={"zipmap": False}).SerializeToString()
    outputs = load(data).predict(X=X)
    np.testing.assert_allclose(outputs["probabilities"], classifier.predict_proba(X), atol=1e-6)


def test_maps_of_probabilities_become_columns(load):
    maps = [{"b": 0.5, "a": 0.25}, {"a": 0.75, "b": 0.125}]
    array = load(doubles("n"))._from_maps("p", maps)
    assert (array.dtype, array.tolist()) == (np.float32, [[0.5, 0.25], [0.125, 0.75]])


def test_maps_with_different_keys_are_refused(load):
    loaded = load(doubles("n"))
    with pytest.raises(ModelContractError, match="output 'p' has no value for 'b' in some rows"):
        loaded._from_maps("p", [{"a": 0.5, "b": 0.5}, {"a": 1.0}])


def test_a_sequence_of_tensors_becomes_an_array(load):
    data = model(
        [("SplitToSequence", ["x"], ["y"], {"axis": 0, "keepdims": 0})],
        [info("x", FLOAT, ["n", 3])],
        [helper.make_tensor_sequence_value_info("y", FLOAT, [3])],
    )
    loaded = load(data)
    assert loaded.outputs == ()
    assert (loaded.predict(x=X)["y"] == X).all()


# Through an engine's instance


def test_engine_instance_predicts(tmp_path):
    (tmp_path / "small.onnx").write_bytes(doubles("n"))
    instance = LoadedModel(lambda: OnnxModel(tmp_path / "small.onnx"), "small")
    try:
        metadata = instance.metadata
        assert (metadata.platform, metadata.inputs) == ("OnnxModel", (TensorSpec("x", "FP32", (-1, 3)),))
        request = InferRequest((Tensor("x", X),))
        response = instance.predict(request)
        assert (response.outputs[0].data == 2 * X).all()
        with pytest.raises(
            ModelInputError, match=r"input 'x' takes FP32 \[-1, 3\], but the request has FP64 \[50, 3\]"
        ):
            instance.inputs.check(InferRequest((Tensor("x", X.astype(np.float64)),)))
        with pytest.raises(ModelInputError, match="it has no input 'z'"):
            instance.inputs.check(InferRequest((Tensor("x", X), Tensor("z", X))))
    finally:
        instance.close()


def test_wrong_type_raises_the_runtime_error(load):
    """Without an engine, a user of the model sees onnxruntime's own error."""
    with pytest.raises(Exception, match=r"Actual: \(tensor\(double\)\) , expected: \(tensor\(float\)\)"):
        load(doubles("n")).predict(x=X.astype(np.float64))


# Errors and settings


@for_each("data", [b"", b"junk" * 50, doubles("n")[:-20], b"\x89PNG"])
def test_invalid_file_fails_to_load(load, tmp_path, data):
    with pytest.raises(ModelLoadError) as caught:
        load(data)
    message = str(caught.value)
    assert message.startswith(f"model small: {tmp_path / 'small.onnx'} is not an ONNX model that runs here: ")
    assert "\n" not in message


def test_unknown_operator_fails_to_load(load):
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="nowhere")
    graph = helper.make_graph([node], "g", [info("x", FLOAT, ["n"])], [info("y", FLOAT, ["n"])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    with pytest.raises(ModelLoadError, match="Frobnicate"):
        load(data)


def test_missing_file_fails_to_load(tmp_path):
    with pytest.raises(ModelLoadError, match=r"none\.onnx is not an ONNX model .*File doesn't exist"):
        OnnxModel(tmp_path / "none.onnx").load()


def test_threads_by_argument_or_environment(monkeypatch, tmp_path):
    path = tmp_path / "m.onnx"
    monkeypatch.delenv("HEADRACE_ONNX_THREADS", raising=False)
    assert OnnxModel(path)._threads == 1
    monkeypatch.setenv("HEADRACE_ONNX_THREADS", "3")
    assert OnnxModel(path)._threads == 3
    assert OnnxModel(path, intra_op_threads=0)._threads == 0
    for wrong in ("many", "-1", ""):
        monkeypatch.setenv("HEADRACE_ONNX_THREADS", wrong)
        with pytest.raises(ConfigError, match=f"HEADRACE_ONNX_THREADS is '{wrong}'"):
            OnnxModel(path)


def test_providers_by_name(load):
    loaded = load(doubles("n"), providers=["CPUExecutionProvider"], intra_op_threads=2)
    assert loaded._session.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(ModelLoadError, match="NoSuchProvider"):
        load(doubles("n"), providers=["NoSuchProvider"])


@pytest.fixture
def cuda_calls(monkeypatch):
    """The order of calls to an onnxruntime that has CUDA; its sessions run on the CPU."""
    calls = []
    session = adapter.ort.InferenceSession

    def open_session(path, options, providers):
        calls.append(f"session on {', '.join(providers)}")
        return session(path, options, providers=["CPUExecutionProvider"])

    def load_libraries():
        calls.append("libraries")
        sys.stdout.write("Failed to load libcublas.so\n")

    providers = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(adapter.ort, "get_available_providers", lambda: providers)
    monkeypatch.setattr(adapter.ort, "preload_dlls", load_libraries)
    monkeypatch.setattr(adapter.ort, "InferenceSession", open_session)
    return calls


@for_each("providers", [None, ["CUDAExecutionProvider"]])
def test_cuda_libraries_are_loaded_before_the_session(load, cuda_calls, capsys, providers):
    """pip installs them where the dynamic linker does not look."""
    load(doubles("n"), providers=providers)
    assert cuda_calls[0] == "libraries"
    assert cuda_calls[1].startswith("session on CUDAExecutionProvider")
    assert capsys.readouterr() == ("", "Failed to load libcublas.so\n")


def test_cuda_libraries_are_not_loaded_for_the_cpu(load, cuda_calls, monkeypatch):
    load(doubles("n"), providers=["CPUExecutionProvider"])
    monkeypatch.setattr(adapter.ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    load(doubles("n"))
    assert cuda_calls == ["session on CPUExecutionProvider"] * 2


def test_onnxruntime_that_loads_no_cuda_libraries(load, cuda_calls, monkeypatch):
    """onnxruntime 1.20 leaves them to the dynamic linker."""
    monkeypatch.delattr(adapter.ort, "preload_dlls")
    load(doubles("n"))
    assert cuda_calls == ["session on CUDAExecutionProvider, CPUExecutionProvider"]


def test_close_releases_the_session(load):
    loaded = load(doubles("n"))
    loaded.close()
    loaded.close()
    assert loaded._session is None


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, adapter.__name__)
    with pytest.raises(
        MissingExtraError, match=r"an ONNX model needs an extra: pip install 'headrace\[onnx\]'"
    ):
        importlib.import_module(adapter.__name__)
