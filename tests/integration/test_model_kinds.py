"""Every kind of MODEL makes the same predictions in every command, in Python and in worker processes."""

import asyncio
import json
import os
import pickle
import shutil
import tarfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.app.models import open_model_server
from headrace.app.runners import Workers
from headrace.client.model_server import ModelAddress
from headrace.core.tensor import InferRequest, Tensor
from headrace.runners.engines import BeamWorkers
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import StreamSettings, TransformSettings
from integration.command import headrace
from servers.served import serving

pytestmark = pytest.mark.slow

ROWS = [(1.0, 2.0), (3.0, -4.0), (0.5, 0.25)]
EXPECTED = [4.0, 2.0, 1.25]


@dataclass(frozen=True)
class Kind:
    """A MODEL argument, its options, and further variables of processes that open it."""

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def flags(self) -> list[str]:
        return [word for k, v in self.options.items() for word in ("-O", f"{k}={json.dumps(v)}")]


def python_file(folder: Path) -> Kind:
    shutil.copy(Path(__file__).with_name("linear_model.py"), folder / "linear.py")
    return Kind("linear.py")


def class_in_a_file(folder: Path) -> Kind:
    python_file(folder)
    return Kind("linear.py:Linear")


def class_of_a_module(folder: Path) -> Kind:
    shutil.copy(Path(__file__).with_name("linear_model.py"), folder / "linear_of_kinds.py")
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(folder)]
    return Kind("linear_of_kinds:Linear", environ={"PYTHONPATH": os.pathsep.join(paths)})


def named(folder: Path) -> Kind:
    return Kind(f"line.2={python_file(folder).model}")


def model_file_folder(folder: Path) -> Kind:
    (folder / "m").mkdir()
    python_file(folder / "m")
    (folder / "m" / "model.toml").write_text('name = "line"\nmodel = "linear.py:Linear"\n')
    return Kind("m")


def folder_of_one_model(folder: Path) -> Kind:
    (folder / "models").mkdir()
    model_file_folder(folder / "models")
    return Kind("models/")


def folder_with_one_file(folder: Path) -> Kind:
    (folder / "m").mkdir()
    python_file(folder / "m")
    return Kind("m")


def archive(folder: Path) -> Kind:
    model_file_folder(folder)
    with tarfile.open(folder / "m.tar.gz", "w:gz") as packed:
        packed.add(folder / "m", "m")
    return Kind("m.tar.gz")


def onnx_file(folder: Path) -> Kind:
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    weights = helper.make_tensor("w", TensorProto.FLOAT, [2], [2.0, 1.0])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "line", [x], [y], [weights])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "line.onnx").write_bytes(proto.SerializeToString())
    return Kind("line.onnx", {"intra_op_threads": 1})


def _regression() -> Any:
    from sklearn.linear_model import LinearRegression

    x = np.array([[0.0, 0], [1, 0], [0, 1], [2, 3]])
    return LinearRegression().fit(x, x @ [2, 1])


def skops_file(folder: Path) -> Kind:
    import skops.io

    skops.io.dump(_regression(), folder / "line.skops")
    return Kind("line.skops", {"method": "predict"})


def joblib_file(folder: Path) -> Kind:
    import joblib

    joblib.dump(_regression(), folder / "line.joblib")
    return Kind("line.joblib", {"allow_pickle": True})


def pickle_file(folder: Path) -> Kind:
    (folder / "line.pkl").write_bytes(pickle.dumps(_regression()))
    return Kind("line.pkl", {"allow_pickle": True})


def torch_file(folder: Path) -> Kind:
    import torch

    line = torch.nn.Linear(2, 1, bias=False)
    line.weight.data = torch.tensor([[2.0, 1.0]])
    rows = torch.export.Dim("rows")
    torch.export.save(
        torch.export.export(line.eval(), (torch.zeros(2, 2),), dynamic_shapes=({0: rows},)),
        folder / "line.pt2",
    )
    return Kind("line.pt2", {"device": "cpu"})


def mlflow_folder(folder: Path) -> Kind:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow.sklearn
        from mlflow.models import infer_signature

        x, model = np.array(ROWS), _regression()
        mlflow.sklearn.save_model(
            model,
            folder / "line",
            signature=infer_signature(x, model.predict(x)),
            pip_requirements=[],
            serialization_format="pickle",
        )
    return Kind("line", {"allow_pickle": True})


KINDS: Sequence[Callable[[Path], Kind]] = (
    python_file,
    class_in_a_file,
    class_of_a_module,
    named,
    model_file_folder,
    folder_of_one_model,
    folder_with_one_file,
    archive,
    onnx_file,
    skops_file,
    joblib_file,
    pickle_file,
    torch_file,
    mlflow_folder,
)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request, tmp_path, monkeypatch) -> Kind:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    Path("rows.csv").write_text("".join(f"{a},{b}\n" for a, b in ROWS))
    monkeypatch.syspath_prepend("")
    made = request.param(tmp_path)
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    return made


def numbers(lines: Sequence[str]) -> list[float]:
    """Return the first output of each line of JSON."""
    return [float(np.ravel(next(iter(json.loads(line).values())))[0]) for line in lines]


def lines_in(folder: str) -> list[str]:
    """Return the lines of all predictions, in the order of their files."""
    files = sorted(p for p in Path(folder).iterdir() if p.is_file() and p.name != "_report.json")
    return [line for file in files for line in file.read_text().splitlines()]


@pytest.mark.in_turn
def test_every_way_makes_the_same_predictions(kind):
    ways: dict[str, list[float]] = {}
    model = ["--model", kind.model, *kind.flags]
    for name, more in (("stream", []), ("stream in processes", ["--workers", "1", "--isolation", "process"])):
        done = headrace(
            "stream", "rows.csv", "--output", "s/", "--output-format", "jsonl", "--overwrite", *model, *more
        )
        assert done.code == 0, (name, done.err)
        ways[name] = numbers(lines_in("s"))
    for name, more in (
        ("transform", []),
        ("transform in processes", ["--workers", "1", "--isolation", "process"]),
    ):
        done = headrace("transform", "rows.csv", "t/", "--accept", "jsonl", "--overwrite", *model, *more)
        assert done.code == 0, (name, done.err)
        ways[name] = numbers(lines_in("t"))
    ways |= in_python(kind)
    with serving(kind.model, *kind.flags, environ=kind.environ) as served:
        ways["serve"] = asyncio.run(answers(served.rest))
    for name, found in ways.items():
        assert found == pytest.approx(EXPECTED, abs=1e-6), name


def in_python(kind: Kind) -> dict[str, list[float]]:
    options = hr.PredictorOptions(model_options=dict(kind.options) or None)
    with hr.stream("rows.csv", model=kind.model, options=options) as outcomes:
        ways = {"headrace.stream": [float(np.ravel(next(iter(o.outputs.values())))[0]) for o in outcomes]}
    output = OutputSettings(format="jsonl")
    hr.run_sync(
        "rows.csv", model=kind.model, output="r/", settings=StreamSettings(output=output), options=options
    )
    ways["headrace.run"] = numbers(lines_in("r"))
    settings = TransformSettings(output=output)
    for number, workers in enumerate((Workers(2), BeamWorkers(("--direct_running_mode=in_memory",)))):
        hr.transform_sync(
            "rows.csv", f"p{number}/", model=kind.model, settings=settings, options=options, workers=workers
        )
        ways[f"headrace.transform, {type(workers).__name__}"] = numbers(lines_in(f"p{number}"))
    return ways


async def answers(url: str) -> list[float]:
    """Return the predictions of the only model of a server."""
    async with open_model_server(url) as server:
        (entry,) = await server.index()
        model = ModelAddress(entry.name)
        metadata = await server.metadata(model)
        (x,) = metadata.inputs
        data = np.array(ROWS, np.float64 if x.datatype == "FP64" else np.float32)
        response = await server.infer(model, InferRequest((Tensor(x.name, data),)), binary=False)
        return np.ravel(response.outputs[0].data).tolist()


@pytest.mark.timeout(300)
def test_hugging_face_folder_in_every_way(tmp_path, monkeypatch):
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    monkeypatch.chdir(tmp_path)
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "good", "bad", "day"])}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]"
    )
    config = transformers.BertConfig(
        vocab_size=5,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=2,
    )
    transformers.BertForSequenceClassification(config).save_pretrained("bert")
    tokenizer.save_pretrained("bert")
    Path("texts.txt").write_text("good day\nbad day\nunknown\n")
    found: list[list[str]] = []
    with ExitStack() as stack:
        outcomes = stack.enter_context(hr.stream("texts.txt", model=Path("bert")))
        expected = [str(o.outputs["label"]) for o in outcomes]
    for more in ([], ["--workers", "1", "--isolation", "process"]):
        done = headrace(
            "stream",
            "texts.txt",
            "--model",
            "bert",
            "--output",
            "s/",
            "--output-format",
            "jsonl",
            "--overwrite",
            *more,
        )
        assert done.code == 0, done.err
        found.append([json.loads(line)["label"] for line in lines_in("s")])
    done = headrace(
        "transform",
        "texts.txt",
        "t/",
        "--model",
        "b=bert",
        "--accept",
        "jsonl",
        "-O",
        "task=text-classification",
    )
    assert done.code == 0, done.err
    found.append([json.loads(line)["label"] for line in lines_in("t")])
    assert found == [expected] * 3
