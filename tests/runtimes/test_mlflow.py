"""Pyfunc folders written by mlflow: signatures of columns and tensors, params, streams, refusals."""

import importlib
import json
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from headrace.core.errors import ConfigError, MissingExtraError, ModelInputError, ModelLoadError
from headrace.core.model import RowError, overrides
from headrace.core.tensor import InferRequest, Tensor, TensorSpec, text_array
from headrace.runtimes import mlflow as adapter
from headrace.runtimes.load import model_factory
from runtimes.loaded import LoadedModel

pytestmark = pytest.mark.slow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import mlflow.pyfunc
    import mlflow.sklearn
    from mlflow.models import infer_signature

PEOPLE = pd.DataFrame({"age": [20.0, 30.0], "name": ["Ann", "Bo"], "visits": [1, 2]})


with warnings.catch_warnings():
    # mlflow would require type hints.
    warnings.simplefilter("ignore")

    class Scaled(mlflow.pyfunc.PythonModel):
        """A model of columns that returns a DataFrame, and streams words."""

        def predict(self, context, model_input, params=None):
            factor = (params or {}).get("factor", 1.0)
            return pd.DataFrame({"scaled": model_input["age"] * factor, "hello": "hi " + model_input["name"]})

        def predict_stream(self, context, model_input, params=None):
            for _ in range(int((params or {}).get("factor", 1))):
                yield from (f"{model_input['name']} ", {"age": model_input["age"], "seen": [1, 2]})

    class Lambda(mlflow.pyfunc.PythonModel):
        """A model that applies a function."""

        def __init__(self, function):
            self.function = function

        def predict(self, context, model_input, params=None):
            return self.function(model_input)


@pytest.fixture
def saved(tmp_path):
    """A function that saves a pyfunc folder."""

    def save(model, signature=None, name="churn"):
        path = tmp_path / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mlflow.pyfunc.save_model(
                path, python_model=model, signature=signature, pip_requirements=["numpy"]
            )
        return path

    return save


@pytest.fixture
def load(saved):
    def load(model, signature=None, **options):
        made = model_factory(str(saved(model, signature)), {"allow_pickle": True, **options}).make()
        made.load()
        return made

    return load


def signature(*args, **params):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return infer_signature(*args, **({"params": params} if params else {}))


SCALED = signature(PEOPLE, Scaled().predict(None, PEOPLE), factor=1.0)


def test_columns_and_outputs_come_from_the_signature(saved):
    source = model_factory(str(saved(Scaled(), SCALED)), {"allow_pickle": True, "params": {"factor": 3.0}})
    instance = LoadedModel(source.make, source.name)
    try:
        metadata = instance.metadata
        assert metadata.inputs == (
            TensorSpec("age", "FP64", (-1,)),
            TensorSpec("name", "BYTES", (-1,)),
            TensorSpec("visits", "INT64", (-1,)),
        )
        assert metadata.outputs == (TensorSpec("scaled", "FP64", (-1,)), TensorSpec("hello", "BYTES", (-1,)))
        columns = {
            "age": np.array([[10.0], [20.0], [30.0]]),
            "name": text_array(["Ann", b"\xff", b"Bo"]),
            "visits": np.arange(3),
        }
        request = InferRequest(tuple(Tensor(n, d) for n, d in columns.items()))
        response = instance.predict(request)
    finally:
        instance.close()
    assert response["scaled"].tolist() == [30, 90]
    assert response["hello"].tolist() == ["hi Ann", "hi Bo"]
    assert [(f.row, "not UTF-8" in f.why) for f in response.failures] == [(1, True)]


def test_unknown_params_are_refused(load):
    with pytest.raises(ConfigError, match="churn has no param speed; its signature has factor"):
        load(Scaled(), SCALED, params={"speed": 2})


def test_streams_use_request_parameters(load):
    model = load(Scaled(), SCALED, params={"factor": 1.0})
    assert overrides(model, "predict_stream")
    row = (
        Tensor("age", np.array([5.0])),
        Tensor("name", text_array([b"Ann"])),
        Tensor("visits", np.array([1])),
    )
    items = list(
        model.predict_stream(iter([InferRequest(row), InferRequest(row, parameters={"factor": 2.0})]))
    )
    assert len(items) == 6
    assert items[0]["output"].tolist() == ["Ann "]
    assert items[1]["age"].tolist() == [5.0]
    assert items[1]["seen"].tolist() == ["[1,2]"]
    with pytest.raises(ModelInputError, match="a stream takes one row, but the request has 2"):
        list(model.predict_stream(iter([InferRequest((Tensor("age", np.ones(2)),))])))
    with pytest.raises(ModelInputError, match="input 'name', 'visits' is missing"):
        list(model.predict_stream(iter([InferRequest(row[:1])])))


def test_unstreamable_model_has_no_stream(load):
    assert not overrides(load(Lambda(lambda x: x)), "predict_stream")


def test_sklearn_model_with_tensor_signature(tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 3))
    fitted = LogisticRegression().fit(x, x[:, 0] > 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.sklearn.save_model(
            fitted,
            tmp_path / "m",
            signature=signature(x, fitted.predict(x)),
            pip_requirements=["scikit-learn"],
        )
    model = model_factory(str(tmp_path / "m"), {"allow_pickle": True}).make()
    model.load()
    assert model.inputs == (TensorSpec("x", "FP64", (-1, 3)),)
    assert model.outputs == (TensorSpec("output", "BOOL", (-1,)),)
    assert model.predict(x=x)["output"].tolist() == fitted.predict(x).tolist()


def test_named_tensors_are_passed_by_name(load):
    given = {"p": np.ones((2, 3), np.float32), "q": np.array([1, 2])}
    model = load(Lambda(lambda t: {"sum": t["p"].sum(1) + t["q"]}), signature(given, {"sum": np.ones(2)}))
    assert model.inputs == (TensorSpec("p", "FP32", (-1, 3)), TensorSpec("q", "INT64", (-1,)))
    assert model.predict(**given)["sum"].tolist() == [4, 5]


def test_unnamed_columns_are_one_matrix(load):
    frame = pd.DataFrame(np.ones((2, 3)))
    frame.columns = range(3)
    schema = mlflow.types.Schema([mlflow.types.ColSpec("double")] * 3)
    model = load(Lambda(lambda f: f.sum(axis=1)), mlflow.models.ModelSignature(inputs=schema))
    assert model.inputs == (TensorSpec("x", "FP64", (-1, 3)),)
    assert model.predict(x=frame.to_numpy())["output"].tolist() == [3, 3]


def test_single_unnamed_text_column(load):
    schema = mlflow.types.Schema([mlflow.types.ColSpec("string")])
    model = load(
        Lambda(lambda f: [text.upper() for text in f[0]]), mlflow.models.ModelSignature(inputs=schema)
    )
    assert model.inputs == (TensorSpec("x", "BYTES", (-1,)),)
    assert model.predict(x=text_array(["a", b"b"]))["output"].tolist() == ["A", "B"]


def test_nested_columns_dates_and_bytes(load):
    frame = pd.DataFrame(
        {
            "list": [[1, 2], [3]],
            "when": pd.to_datetime(["2026-01-01", "2026-01-02"]),
            "raw": [b"\xff", b"b"],
        }
    )
    model = load(
        Lambda(
            lambda f: pd.DataFrame(
                {
                    "n": [len(v) for v in f["list"]],
                    "when": f["when"],
                    "list": f["list"],
                    "raw": [len(v) for v in f["raw"]],
                }
            )
        ),
        signature(frame),
    )
    assert [s.datatype for s in model.inputs] == ["BYTES"] * 3
    columns = {
        "list": text_array(["[1,2]", b"[3]"]),
        "when": text_array(["2026-01-01", "2026-01-02T03:04:05"]),
        "raw": text_array([b"\xff\xfe", "b"]),
    }
    outputs = model.predict(**columns)
    assert outputs["n"].tolist() == [2, 1]
    assert outputs["raw"].tolist() == [2, 1]
    assert outputs["when"][1].startswith("2026-01-02T03:04:05")
    assert [json.loads(v) for v in outputs["list"]] == [[1, 2], [3]]
    for name, value, why in (
        ("list", "[", "row 1: input 'list' is not JSON"),
        ("when", "soon", "input 'when' is not a date"),
    ):
        wrong = text_array([columns[name][0], value])
        with pytest.raises(RowError, match=why):
            model.predict(**{**columns, name: wrong})


@pytest.mark.parametrize(
    ("function", "output"),
    [
        (lambda x: x.sum(axis=1), [3.0, 3.0]),
        (lambda x: ["a", "b"], ["a", "b"]),
        (lambda x: [{"a": 1}, {"a": [2]}], ['{"a":1}', '{"a":[2]}']),
        (lambda x: [[1], [2, 3]], ["[1]", "[2,3]"]),
        (lambda x: pd.Series([1, 2], name="output"), [1, 2]),
        (lambda x: {"output": np.array([1, 2])}, [1, 2]),
    ],
)
def test_model_without_signature(load, function, output):
    model = load(Lambda(function))
    assert model.inputs == model.outputs == ()
    assert model.predict(any=np.ones((2, 3)))["output"].tolist() == output


def test_several_inputs_without_signature_are_a_frame(load):
    model = load(Lambda(lambda f: f["a"] + f["b"]))
    assert model.predict(a=np.ones(2), b=np.ones(2))["output"].tolist() == [2, 2]


# Refusals


def test_folder_needs_allow_pickle(saved):
    path = saved(Scaled(), SCALED)
    for options in ({}, {"allow_pickle": False}, {"allow_pickle": 1}):
        with pytest.raises(
            ConfigError, match=r"runs the code and the pickles in the folder.*allow_pickle = true"
        ):
            model_factory(str(path), options).make()


def test_broken_folder_fails_to_load(saved):
    path = saved(Scaled(), SCALED)
    (path / "python_model.pkl").write_bytes(b"junk")
    model = model_factory(str(path), {"allow_pickle": True}).make()
    with pytest.raises(ModelLoadError, match="churn does not load: UnpicklingError"):
        model.load()
    (path / "MLmodel").write_text("flavors: {}")
    with pytest.raises(ModelLoadError, match="churn does not load: "):
        model.load()


def test_telemetry_is_disabled():
    assert adapter.os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", None)
    monkeypatch.delitem(sys.modules, adapter.__name__)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[mlflow\]'"):
        importlib.import_module(adapter.__name__)
