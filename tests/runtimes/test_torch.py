"""Real torch modules in every supported form, and files that are refused without unpickling."""

import importlib
import math
import os
import sys
import textwrap
import warnings
from collections import OrderedDict

import numpy as np
import pytest

from cases import for_each
from engine.support import serving
from headrace.core.errors import (
    ConfigError,
    MissingExtraError,
    ModelContractError,
    ModelInputError,
    ModelLoadError,
)
from headrace.core.tensor import InferRequest, Tensor, TensorSpec, text_array
from headrace.runtimes.load import model_factory
from runtimes.loaded import LoadedModel

torch = pytest.importorskip("torch")

from safetensors.torch import save_model  # noqa: E402

from headrace.runtimes import torch as adapter  # noqa: E402
from headrace.runtimes.torch import TorchModel  # noqa: E402

pytestmark = pytest.mark.slow

NET = """
    from dataclasses import dataclass
    from typing import NamedTuple
    import torch

    class Net(torch.nn.Module):
        def __init__(self, width=4, result="tensor"):
            super().__init__()
            self.linear = torch.nn.Linear(3, width)
            self.result = result

        def forward(self, x, shift=None):
            y = self.linear(x)
            if shift is not None:
                y = y + shift
            return {
                "tensor": lambda: y,
                "tuple": lambda: (y, x.sum(1)),
                "dict": lambda: {"y": y, "none": None, "sum": x.sum(1)},
                "named": lambda: Pair(y, x.sum(1)),
                "dataclass": lambda: Data(y, x.sum(1)),
                "bfloat16": lambda: y.to(torch.bfloat16),
                "text": lambda: "text",
            }[self.result]()

    class Pair(NamedTuple):
        y: torch.Tensor
        sum: torch.Tensor

    @dataclass
    class Data:
        y: torch.Tensor
        sum: torch.Tensor

    class NoModule:
        pass
"""
X = np.random.default_rng(3).normal(size=(7, 3)).astype(np.float32)


class Net(torch.nn.Module):
    """The class that NET defines, for saving."""

    def __init__(self, width=4):
        super().__init__()
        self.linear = torch.nn.Linear(3, width)

    def forward(self, x):
        return self.linear(x)


class Several(Net):
    def forward(self, x, mask):
        return {"y": self.linear(x) * mask, "sum": x.sum(1).to(torch.bfloat16)}


class Scripted(torch.nn.Module):
    def forward(this, x, scale: float = 2.0):  # noqa: N805 - TorchScript accepts any name
        return x * scale, x.sum(1)


@pytest.fixture
def net(tmp_path):
    """Weights, the file of their class, and the net's output for X."""
    torch.manual_seed(1)
    made = Net().eval()
    save_model(made, str(tmp_path / "net.safetensors"))
    torch.save(made.state_dict(), tmp_path / "weights.pt")
    (tmp_path / "net.py").write_text(textwrap.dedent(NET))
    made.output = made(torch.from_numpy(X)).detach().numpy()
    return made


def load(path, **options):
    model = model_factory(str(path), options).make()
    model.load()
    return model


def script(module, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(module), str(path))
    return path


def export(module, path, args, **settings):
    torch.export.save(torch.export.export(module.eval(), args, **settings), str(path))
    return path


# Weights and a class


@for_each("name", ["net.safetensors", "weights.pt"])
def test_weights_with_class_in_a_file(net, tmp_path, name):
    model = load(tmp_path / name, **{"class": "net.py:Net"})
    assert np.allclose(model.predict(x=X)["output"], net.output)
    assert not model._loaded.call.training


def test_weights_with_class_of_a_module(net, tmp_path, monkeypatch):
    (tmp_path / "net.py").rename(tmp_path / "my_torch_net.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    model = load(tmp_path / "net.safetensors", **{"class": "my_torch_net:Net"})
    assert np.allclose(model.predict(x=X)["output"], net.output)


def test_class_gets_its_arguments(net, tmp_path):
    save_model(Net(width=9), str(tmp_path / "wide.safetensors"))
    with pytest.raises(
        ModelLoadError, match=r"wide\.safetensors does not load: RuntimeError: .*size mismatch"
    ):
        load(tmp_path / "wide.safetensors", **{"class": "net.py:Net"})
    model = load(tmp_path / "wide.safetensors", **{"class": "net.py:Net", "arguments": {"width": 9}})
    assert model.predict(x=X)["output"].shape == (7, 9)


@for_each(
    ("result", "names"),
    [
        ("tensor", {"output": (7, 4)}),
        ("tuple", {"output_0": (7, 4), "output_1": (7,)}),
        ("dict", {"y": (7, 4), "sum": (7,)}),
        ("named", {"y": (7, 4), "sum": (7,)}),
        ("dataclass", {"y": (7, 4), "sum": (7,)}),
    ],
)
def test_results_of_any_form_are_named(net, tmp_path, result, names):
    options = {"class": "net.py:Net", "arguments": {"result": result}}
    outputs = load(tmp_path / "net.safetensors", **options).predict(x=X)
    assert {n: d.shape for n, d in outputs.items()} == names
    renamed = load(tmp_path / "net.safetensors", outputs=[f"o{i}" for i in range(len(names))], **options)
    assert [d.shape for d in renamed.predict(x=X).values()] == list(names.values())
    assert list(renamed.predict(x=X)) == [f"o{i}" for i in range(len(names))]
    wrong = load(tmp_path / "net.safetensors", outputs=["a", "b", "c"], **options)
    with pytest.raises(ModelContractError, match=r"has \d tensors, but the option 'outputs' names a, b, c"):
        wrong.predict(x=X)


def test_non_tensor_result_is_refused(net, tmp_path):
    model = load(tmp_path / "net.safetensors", **{"class": "net.py:Net", "arguments": {"result": "text"}})
    with pytest.raises(TypeError, match="the module returned a str"):
        model.predict(x=X)


def test_bfloat16_outputs_are_float32(net, tmp_path):
    options = {"class": "net.py:Net", "arguments": {"result": "bfloat16"}}
    declared = [{"name": "y", "datatype": "BF16", "shape": [-1, 4]}]
    model = load(tmp_path / "net.safetensors", outputs=declared, **options)
    assert model.outputs == (TensorSpec("y", "BF16", (-1, 4)),)
    assert model.predict(x=X)["y"].dtype == np.float32
    assert np.allclose(model.predict(x=X)["y"], net.output, rtol=0.01, atol=0.01)


def test_bf16_inputs_as_bits_or_widened(net, tmp_path):
    inputs = [{"name": "x", "datatype": "BF16", "shape": [-1, 3]}]
    model = load(tmp_path / "net.safetensors", inputs=inputs, dtype="bfloat16", **{"class": "net.py:Net"})
    bits = torch.from_numpy(X).to(torch.bfloat16).view(torch.uint16).numpy()
    as_bits, as_floats = model.predict(x=bits)["output"], model.predict(x=X)["output"]
    assert (as_bits == as_floats).all()
    assert np.allclose(as_bits, net.output, rtol=0.05, atol=0.05)


def test_autocast_computes_in_half(net, tmp_path):
    model = load(tmp_path / "net.safetensors", autocast="bfloat16", **{"class": "net.py:Net"})
    outputs = model.predict(x=X)["output"]
    assert np.allclose(outputs, net.output, rtol=0.05, atol=0.05)
    assert not np.allclose(outputs, net.output, rtol=1e-5, atol=1e-6)


def test_forward_parameters_name_the_inputs(net, tmp_path):
    source = model_factory(str(tmp_path / "net.safetensors"), {"class": "net.py:Net"})
    instance = LoadedModel(source.make, "net")
    try:
        assert [s.name for s in instance.inputs.specs] == ["x"]
        for extra in ((), (Tensor("shift", np.ones((7, 4), np.float32)),)):
            request = InferRequest((Tensor("x", X), *extra))
            response = instance.predict(request)
            assert np.allclose(response["output"], net.output + bool(extra))
        with pytest.raises(ModelInputError, match="it has no input 'z'"):
            instance.inputs.check(InferRequest((Tensor("x", X), Tensor("z", X))))
    finally:
        instance.close()


def test_declared_inputs_may_have_other_names(net, tmp_path):
    inputs = [{"name": "features", "shape": [-1, 3]}]
    model = load(tmp_path / "net.safetensors", inputs=inputs, **{"class": "net.py:Net"})
    assert model.inputs == (TensorSpec("features", "FP32", (-1, 3)),)
    assert np.allclose(model.predict(features=X)["output"], net.output)


@for_each(
    ("options", "error", "why"),
    [
        ({}, ConfigError, r"holds only weights: name their class, option class = 'net\.py:Net'"),
        ({"class": "net.py:NoModule"}, ConfigError, r"net\.py:NoModule is not a torch\.nn\.Module"),
        (
            {"class": "net.py:None"},
            ConfigError,
            r"net\.py has no class 'None'; it has Data, Net, NoModule, Pair",
        ),
        ({"class": "net"}, ConfigError, "'net' is not the name of a class: write"),
        ({"class": "gone.py:Net"}, ModelLoadError, r"gone\.py: its file cannot be read"),
        ({"class": "net.py:Net", "device": "abacus"}, ConfigError, "'device' must be auto, cpu or a GPU"),
        (
            {"class": "net.py:Net", "device": "cuda:99"},
            ModelLoadError,
            r"device cuda:99 does not exist here: torch .* sees \d+",
        ),
        (
            {"class": "net.py:Net", "dtype": "int8"},
            ConfigError,
            "'dtype' must be one of float32, bfloat16, float16",
        ),
        ({"class": "net.py:Net", "intra_op_threads": 0}, ConfigError, "'intra_op_threads' must be 1 or more"),
        ({"class": "net.py:Net", "arguments": {"depth": 3}}, ModelLoadError, "TypeError: .*'depth'"),
        (
            {"klass": "net.py:Net"},
            ConfigError,
            r"has no option 'klass'; it has device, class, arguments, inputs",
        ),
    ],
)
def test_invalid_options_are_refused(net, tmp_path, options, error, why):
    with pytest.raises(error, match=why):
        load(tmp_path / "net.safetensors", **options)


def test_thread_option_is_applied(net, tmp_path):
    before = torch.get_num_threads()
    try:
        load(tmp_path / "net.safetensors", intra_op_threads=1, **{"class": "net.py:Net"})
        assert torch.get_num_threads() == 1
        load(tmp_path / "net.safetensors", **{"class": "net.py:Net"})
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_class_changes_the_fingerprint(net, tmp_path):
    options = {"class": "net.py:Net"}
    first = model_factory(str(tmp_path / "net.safetensors"), options).fingerprint
    assert model_factory(str(tmp_path / "net.safetensors"), options).fingerprint == first
    (tmp_path / "net.py").write_text(textwrap.dedent(NET).replace("y + shift", "y - shift"))
    assert model_factory(str(tmp_path / "net.safetensors"), options).fingerprint != first


def test_inputs_are_not_copied(net, tmp_path):
    model = load(tmp_path / "net.safetensors", device="cpu", **{"class": "net.py:Net"})
    assert model._to_device("x", X).data_ptr() == X.ctypes.data
    assert model.writes_inputs
    assert model._to_device("x", X[::2]).shape == (4, 3)
    model.close()


def test_text_is_refused_and_read_only_input_accepted(net, tmp_path):
    model = load(tmp_path / "net.safetensors", **{"class": "net.py:Net"})
    frozen = np.frombuffer(X.tobytes(), np.float32).reshape(X.shape)
    assert np.allclose(model.predict(x=frozen)["output"], net.output)
    with pytest.raises(ModelInputError, match="input 'x' is text, which torch modules do not accept"):
        model.predict(x=text_array(["a"]))


# TorchScript


@for_each("name", ["net.pt", "net.ts"])
def test_torchscript_runs(net, tmp_path, name):
    model = load(script(Net(), tmp_path / name))
    assert model.predict(x=X)["output"].shape == (7, 4)


def test_torchscript_names_its_inputs(tmp_path):
    source = model_factory(str(script(Scripted(), tmp_path / "twice.pt")))
    instance = LoadedModel(source.make, "twice")
    try:
        assert [s.name for s in instance.inputs.specs] == ["x"]
        assert instance.inputs.optional == ("scale",)
        request = InferRequest((Tensor("x", X),))
        response = instance.predict(request)
        assert np.allclose(response["output_0"], 2 * X)
        assert np.allclose(response["output_1"], X.sum(1), atol=1e-6)
    finally:
        instance.close()


# torch.export


def test_exported_program_declares_inputs(tmp_path):
    batch = torch.export.Dim("batch", max=64)
    args, shapes = (
        (torch.zeros(2, 3), torch.ones(2, 1, dtype=torch.int64)),
        {"x": {0: batch}, "mask": {0: batch}},
    )
    model = load(export(Several(), tmp_path / "m.pt2", args, dynamic_shapes=shapes))
    assert model.inputs == (TensorSpec("x", "FP32", (-1, 3)), TensorSpec("mask", "INT64", (-1, 1)))
    assert model.outputs == (TensorSpec("y", "FP32", (-1, 4)), TensorSpec("sum", "FP32", (-1,)))
    assert model.max_batch_rows == 64
    for rows in (1, 7, 64):
        outputs = model.predict(x=np.ones((rows, 3), np.float32), mask=np.ones((rows, 1), np.int64))
        assert {n: (d.shape, d.dtype.name) for n, d in outputs.items()} == {
            "y": ((rows, 4), "float32"),
            "sum": ((rows,), "float32"),
        }


def test_exported_program_loads_in_several_instances(tmp_path):
    """torch.export keeps the state of a load in a global variable."""
    path = tmp_path / "m.pt2"
    batch = torch.export.Dim("batch", max=64)
    export(Several(), path, (torch.zeros(2, 3), torch.ones(2, 1)), dynamic_shapes=({0: batch}, {0: batch}))
    with serving(model_factory(str(path)).make, instances=3) as engine:
        assert engine.alive


def test_exported_program_with_keyword_inputs(tmp_path):
    batch = torch.export.Dim("batch")
    path = tmp_path / "m.pt2"
    args, kwargs = (torch.zeros(2, 3),), {"mask": torch.ones(2, 1)}
    export(Several(), path, args, kwargs=kwargs, dynamic_shapes={"x": {0: batch}, "mask": {0: batch}})
    model = load(path)
    assert model.max_batch_rows == 1024
    given = {"mask": np.full((5, 1), 2.0, np.float32), "x": np.ones((5, 3), np.float32)}
    assert np.allclose(model.predict(**given)["sum"], 3)


def test_fixed_rows_program_is_called_repeatedly(tmp_path):
    made = Net().eval()
    model = load(export(made, tmp_path / "m.pt2", (torch.zeros(3, 3),)))
    assert model.inputs == (TensorSpec("x", "FP32", (-1, 3)),)
    assert model.outputs == (TensorSpec("output", "FP32", (-1, 4)),)
    assert np.allclose(model.predict(x=X)["output"], made(torch.from_numpy(X)).detach().numpy(), atol=1e-6)


def test_nested_inputs_are_refused(tmp_path):
    class Nested(torch.nn.Module):
        def forward(self, pair):
            return pair["a"] + pair["b"]

    args = ({"a": torch.zeros(2), "b": torch.zeros(2)},)
    with pytest.raises(ModelLoadError, match="takes nested or constant inputs"):
        load(export(Nested(), tmp_path / "m.pt2", args))


# Invalid files


class _MarkingPickle:
    def __reduce__(self):
        return os.mkdir, (os.environ["HEADRACE_TEST_MARK"],)


@pytest.mark.parametrize("options", [{}, {"class": "net.py:Net"}])
@pytest.mark.parametrize("content", [_MarkingPickle(), OrderedDict(a=_MarkingPickle()), Net()])
def test_pickles_are_never_loaded(net, tmp_path, monkeypatch, content, options):
    mark = tmp_path / "ran"
    monkeypatch.setenv("HEADRACE_TEST_MARK", str(mark))
    path = tmp_path / "whole.pt"
    torch.save(content, path)
    with pytest.raises(
        ModelLoadError, match=r"is a pickle of weights or of a module|Weights only load failed"
    ):
        load(path, **options)
    assert not mark.exists()


@for_each("name", ["m.pt", "m.ts", "m.pt2"])
@for_each("junk", [b"", b"junk" * 100, b"PK\x03\x04" + b"\0" * 100])
def test_invalid_file_fails_to_load(tmp_path, name, junk):
    (tmp_path / name).write_bytes(junk)
    with pytest.raises(ModelLoadError, match=r"m\.\w+ is not an archive written by torch"):
        load(tmp_path / name)


@for_each(
    "junk",
    [
        b"",
        b"junk" * 100,
        (2**63).to_bytes(8, "little") + b"{}",
        (70).to_bytes(8, "little")
        + b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32"'
        + b"\0" * 16,
        (15).to_bytes(8, "little") + b'{"linear":{"a"}' + b"\0" * 16,
    ],
)
def test_corrupt_safetensors_fail_to_load(net, tmp_path, junk):
    (tmp_path / "bad.safetensors").write_bytes(junk)
    with pytest.raises(ModelLoadError, match=r"bad\.safetensors does not load: SafetensorError"):
        load(tmp_path / "bad.safetensors", **{"class": "net.py:Net"})


def test_zip_without_model_fails_to_load(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("readme", "nothing")
    with pytest.raises(ModelLoadError, match=r"m\.pt2 does not load: "):
        load(tmp_path / "m.pt2")


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.delitem(sys.modules, adapter.__name__)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[torch\]'"):
        importlib.import_module(adapter.__name__)


# On a GPU

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_gpu
@for_each("rows", [1, 7, 40_000])
def test_gpu_outputs_equal_cpu_outputs(net, tmp_path, rows):
    """The sizes are below and above the bound of pinned memory."""
    x = np.resize(X, (rows, 3))
    assert (x.nbytes >= adapter.PINNED_BYTES_MIN) == (rows == 40_000)
    model = load(tmp_path / "net.safetensors", device="cuda:0", **{"class": "net.py:Net"})
    assert not model.writes_inputs
    want = np.resize(net.output, (math.ceil(rows / 7) * 7, 4))[:rows]
    assert np.allclose(model.predict(x=x)["output"], want, atol=1e-4)


@needs_gpu
@for_each("name", ["m.pt", "m.pt2"])
def test_archives_move_to_a_gpu(tmp_path, name):
    made = Net().eval()
    path = tmp_path / name
    if name == "m.pt":
        script(made, path)
    else:
        export(made, path, (torch.zeros(2, 3),), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    for autocast, tolerance in ((None, 1e-4), ("bfloat16", 0.05)):
        outputs = load(path, device="cuda", autocast=autocast).predict(x=X)
        assert np.allclose(outputs["output"], made(torch.from_numpy(X)).detach().numpy(), atol=tolerance)


def test_auto_device_prefers_a_gpu(net, tmp_path):
    model = load(tmp_path / "net.safetensors", **{"class": "net.py:Net"})
    assert isinstance(model, TorchModel)
    assert model._device.type == ("cuda" if torch.cuda.is_available() else "cpu")
