"""Real estimators: metadata, outputs, and refusals before loading."""

import importlib
import os
import pickle
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import LinearSVC

from cases import for_each
from headrace.core.errors import ConfigError, MissingExtraError, ModelLoadError
from headrace.core.model import RowError
from headrace.core.tensor import InferRequest, Tensor, TensorSpec, text_array
from headrace.runtimes import sklearn as adapter
from headrace.runtimes.load import model_factory
from headrace.runtimes.sklearn import SklearnModel
from runtimes.loaded import LoadedModel

pytestmark = pytest.mark.slow

CANCER = load_breast_cancer()
X, Y = CANCER.data, CANCER.target
PEOPLE = pd.DataFrame(
    {
        "age": [20.0, 30.0, 40.0, 50.0],
        "city": ["rome", "oslo", "rome", "bern"],
        "note": ["likes tea", "likes milk", "hates tea", "hates milk"],
        "visits": [1, 2, 3, 4],
    }
)
LABELS = np.array(["no", "yes", "no", "yes"])
TREE = "sklearn.tree._tree.Tree"


@pytest.fixture
def saved(tmp_path):
    """A function that saves an estimator."""

    def save(estimator, name="model.skops"):
        path = tmp_path / name
        if path.suffix == ".skops":
            skops.io.dump(estimator, path)
        elif path.suffix == ".joblib":
            joblib.dump(estimator, path)
        else:
            path.write_bytes(pickle.dumps(estimator))
        return path

    return save


@pytest.fixture
def load(saved):
    def load(estimator, **options):
        model = SklearnModel(saved(estimator), **options)
        model.load()
        return model

    return load


# Outputs


def test_classifier_returns_labels_and_probabilities(load):
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    model = load(fitted)
    assert model.inputs == (TensorSpec("x", "FP64", (-1, 30)),)
    outputs = model.predict(x=X[:20])
    assert list(outputs) == ["predict", "predict_proba"]
    assert (outputs["predict"] == fitted.predict(X[:20])).all()
    assert (outputs["predict_proba"] == fitted.predict_proba(X[:20])).all()


def test_regressor_returns_its_prediction(load):
    fitted = LinearRegression().fit(X[:, :3], X[:, 3])
    outputs = load(fitted).predict(x=X[:5, :3])
    assert list(outputs) == ["predict"]
    assert np.array_equal(outputs["predict"], fitted.predict(X[:5, :3]))


def test_transformer_returns_its_transform(load):
    outputs = load(MinMaxScaler().fit(X)).predict(x=X[:3])
    assert list(outputs) == ["transform"]
    assert outputs["transform"].shape == (3, 30)


def test_sparse_result_becomes_dense(load):
    fitted = OneHotEncoder().fit([[1.0], [2.0], [5.0]])
    assert load(fitted).predict(x=np.array([[5.0]]))["transform"].tolist() == [[0, 0, 1]]


def test_methods_are_selected(load):
    fitted = LogisticRegression().fit(X[:, :2], Y)
    assert list(load(fitted, method="predict_proba").predict(x=X[:2, :2])) == ["predict_proba"]
    outputs = load(fitted, method=["predict", "decision_function"]).predict(x=X[:2, :2])
    assert np.array_equal(outputs["decision_function"], fitted.decision_function(X[:2, :2]))
    with pytest.raises(ConfigError, match=r"'method' must be one of predict, .*, not 'fit'"):
        load(fitted, method="fit")
    with pytest.raises(
        ModelLoadError, match=r"LinearSVC has no method predict_proba; of .* it has predict, decision_f"
    ):
        load(LinearSVC().fit(X[:, :2], Y), method=["predict_proba"])


def test_classifier_without_probabilities_returns_labels(load):
    assert list(load(LinearSVC().fit(X[:, :2], Y)).predict(x=X[:2, :2])) == ["predict"]


def test_each_target_has_a_probability_output(load):
    fitted = MultiOutputClassifier(LogisticRegression()).fit(X[:, :2], np.stack([Y, 1 - Y], axis=1))
    outputs = load(fitted).predict(x=X[:4, :2])
    assert {n: d.shape for n, d in outputs.items()} == {
        "predict": (4, 2),
        "predict_proba_0": (4, 2),
        "predict_proba_1": (4, 2),
    }


def test_labels_of_text_are_text(saved):
    """The engine passes text as objects, whatever numpy's kind was."""
    path = saved(LogisticRegression().fit(X[:4, :2], LABELS))
    instance = LoadedModel(model_factory(str(path)).make, "churn")
    try:
        response = instance.predict(InferRequest((Tensor("x", X[:4, :2]),)))
        assert response["predict"].dtype == object
        assert set(response["predict"]) <= {"no", "yes"}
    finally:
        instance.close()


# Inputs


def test_datatype_option_sets_single_precision(load):
    model = load(LogisticRegression().fit(X[:, :2], Y), datatype="FP32")
    assert model.inputs == (TensorSpec("x", "FP32", (-1, 2)),)
    with pytest.raises(ConfigError, match="must be FP32 or FP64, not 'INT8'"):
        load(LogisticRegression().fit(X[:, :2], Y), datatype="INT8")


@for_each(
    "wrap",
    [
        lambda p: p,
        lambda p: GridSearchCV(p, {"logisticregression__C": [1.0]}, cv=2),
        lambda p: Pipeline(
            [("both", FeatureUnion([("a", p[0]), ("b", p[0])])), ("logisticregression", p[1])]
        ),
    ],
)
def test_text_feeds_a_vectorizer(load, wrap):
    fitted = wrap(make_pipeline(TfidfVectorizer(), LogisticRegression())).fit(PEOPLE["note"], LABELS)
    model = load(fitted, trusted=skops.io.get_untrusted_types(data=skops.io.dumps(fitted)))
    assert model.inputs == (TensorSpec("x", "BYTES", (-1,)),)
    texts = text_array(["likes milk", b"hates tea"])
    assert model.predict(x=texts)["predict"].tolist() == fitted.predict(["likes milk", "hates tea"]).tolist()
    assert model.predict(x=texts[:, None])["predict"].shape == (2,)
    with pytest.raises(RowError, match="row 1: input 'x' is not UTF-8"):
        model.predict(x=text_array([b"tea", b"\xff"]))


def test_named_columns_feed_a_column_transformer(load):
    steps = [
        ("number", StandardScaler(), ["age", "visits"]),
        ("city", make_pipeline(OrdinalEncoder(), OneHotEncoder()), ["city"]),
        ("note", TfidfVectorizer(), "note"),
    ]
    fitted = make_pipeline(ColumnTransformer(steps), LogisticRegression()).fit(PEOPLE, LABELS)
    model = load(fitted)
    assert [(s.name, s.datatype, s.shape) for s in model.inputs] == [
        ("age", "FP64", (-1,)),
        ("city", "BYTES", (-1,)),
        ("note", "BYTES", (-1,)),
        ("visits", "FP64", (-1,)),
    ]
    columns = {name: PEOPLE[name].to_numpy() for name in PEOPLE}
    columns["city"] = text_array([b"rome", "oslo", "rome", b"bern"])
    columns["age"] = columns["age"][:, None]
    assert np.allclose(model.predict(**columns)["predict_proba"], fitted.predict_proba(PEOPLE))


def test_columns_by_slice_and_mask_keep_their_names(load):
    steps = [("a", StandardScaler(), slice(0, 1)), ("b", OneHotEncoder(), [False, True, False, False])]
    fitted = ColumnTransformer(steps).fit(PEOPLE)
    assert {s.name for s in load(fitted).inputs if s.datatype == "BYTES"} == {"city"}


def test_matrix_replaces_a_numeric_frame(load):
    """Column names matter only if a step selects by them. There is no warning, and no pandas."""
    frame = PEOPLE[["age", "visits"]]
    model = load(LogisticRegression().fit(frame, LABELS))
    assert model.inputs == (TensorSpec("x", "FP64", (-1, 2)),)
    assert model.predict(x=frame.to_numpy())["predict"].shape == (4,)


def test_inputs_option_overrides_detection(load):
    steps = [("number", StandardScaler(), ["age", "visits"])]
    fitted = make_pipeline(ColumnTransformer(steps), LogisticRegression()).fit(
        PEOPLE[["age", "visits"]], LABELS
    )
    wanted = [{"name": "age", "datatype": "FP32", "shape": [-1]}, {"name": "visits", "datatype": "INT32"}]
    model = load(fitted, inputs=wanted)
    assert model.inputs == (TensorSpec("age", "FP32", (-1,)), TensorSpec("visits", "INT32"))
    age, visits = np.float32([20, 30]), np.int32([1, 2])
    assert model.predict(age=age, visits=visits)["predict"].shape == (2,)


def test_engine_checks_rows(saved):
    source = model_factory(str(saved(LogisticRegression().fit(X[:, :2], Y))))
    instance = LoadedModel(source.make, "churn")
    try:
        assert [s.name for s in instance.metadata.inputs] == ["x"]
        request = InferRequest((Tensor("x", X[:9, :2]),), outputs=("predict_proba",))
        response = instance.predict(request)
        assert [(t.name, t.rows) for t in response.outputs] == [("predict_proba", 9)]
    finally:
        instance.close()


# Refusals


def test_untrusted_types_are_listed_and_not_loaded(saved):
    path = saved(RandomForestClassifier(3, random_state=0).fit(X, Y))
    with pytest.raises(ModelLoadError) as caught:
        model_factory(str(path)).make().load()
    assert f"types that skops does not trust: {TREE}" in str(caught.value)
    assert f"-O 'trusted=[\"{TREE}\"]'" in str(caught.value)
    model = model_factory(str(path), {"trusted": [TREE]}).make()
    model.load()
    assert model.predict(x=X[:3])["predict_proba"].shape == (3, 2)
    with pytest.raises(ConfigError, match="'trusted' must be a list"):
        model_factory(str(path), {"trusted": TREE}).make()


class _MarkingPickle:
    """A pickle that leaves a mark when it is loaded."""

    def __reduce__(self):
        return os.mkdir, (os.environ["HEADRACE_TEST_MARK"],)


@pytest.mark.parametrize("name", ["model.pkl", "model.pickle", "model.joblib"])
def test_pickle_needs_allow_pickle(saved, name, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_TEST_MARK", str(tmp_path / "ran"))
    bomb = saved(_MarkingPickle(), name)
    for options in ({}, {"allow_pickle": False}, {"allow_pickle": "yes"}):
        with pytest.raises(ConfigError, match=r"is a pickle.*skops\.io\.dump.*allow_pickle = true"):
            model_factory(str(bomb), options).make()
    assert not (tmp_path / "ran").exists()
    path = saved(LogisticRegression().fit(X[:, :2], Y), name)
    model = model_factory(str(path), {"allow_pickle": True}).make()
    model.load()
    assert model.predict(x=X[:2, :2])["predict"].shape == (2,)


def test_pickle_named_skops_is_not_loaded(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_TEST_MARK", str(tmp_path / "ran"))
    path = saved(_MarkingPickle(), "model.pkl").rename(tmp_path / "model.skops")
    with pytest.raises(ModelLoadError, match=r"model\.skops cannot be loaded: BadZipFile"):
        SklearnModel(path, allow_pickle=True).load()
    assert not (tmp_path / "ran").exists()


@for_each("junk", [b"", b"junk" * 40, b"PK\x03\x04" + b"\0" * 60])
def test_invalid_file_fails_to_load(tmp_path, junk):
    path = tmp_path / "model.skops"
    path.write_bytes(junk)
    with pytest.raises(ModelLoadError, match=r"^model model: .*model\.skops cannot be loaded: "):
        SklearnModel(path).load()
    with pytest.raises(ModelLoadError, match="its file cannot be read: No such file"):
        SklearnModel(tmp_path / "none.skops").load()


def test_close_releases_the_estimator(load):
    model = load(MinMaxScaler().fit(X))
    model.close()
    assert model._estimator is None


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "skops", None)
    monkeypatch.setitem(sys.modules, "skops.io", None)
    monkeypatch.delitem(sys.modules, adapter.__name__)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[sklearn\]'"):
        importlib.import_module(adapter.__name__)
