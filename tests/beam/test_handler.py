"""What Beam tests of its own handlers, with ours: batches, keys, pre- and postprocessing, dead letters, metrics, hints."""

import os
import pickle
import threading
from uuid import uuid4

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.ml.inference.base import (
    KeyedModelHandler,
    KeyModelMapping,
    MaybeKeyedModelHandler,
    PredictionResult,
    RunInference,
)

from beam.support import created, gives, holds, metrics, pipeline, plain, rows, write_model
from headrace import InferRequest, Model, PredictorOptions, Tensor, TensorSpec
from headrace.beam import ElementFailure, ModelHandler, SplitFailures
from headrace.core.errors import (
    ConfigError,
    ModelContractError,
    ModelLoadError,
    RefusedRowsError,
)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


class Told(Model):
    """Gives back what it is told."""

    inputs = (TensorSpec("x", "FP32", (-1, -1)), TensorSpec("name", "BYTES", (-1,)))

    def predict(self, x, name):
        return {"sum": x.sum(axis=1), "name": name, "x": x}


class OneShort(Model):
    def predict(self, x):
        return x[:-1]


class Stuck(Model):
    """Waits for an event."""

    may_go = threading.Event()

    def predict(self, x):
        if (x == 13).any():
            self.may_go.wait(60)
        return x


class Counts(Model):
    """How often it was called so far, by which a pipeline can tell one copy from another."""

    max_batch_rows = 1

    def load(self):
        self.calls = 0

    def predict(self, x):
        self.calls += 1
        return np.full(x.shape, self.calls, x.dtype)


def run(handler, elements, **more):
    """The results of the handler alone, without a pipeline."""
    model = handler.load_model()
    try:
        return handler.run_inference(elements, model, **more)
    finally:
        model.close()


def refused(handler, elements, why: str, **more) -> None:
    """A pipeline with it fails."""

    def run_pipeline():
        with pipeline() as p:
            _ = created(p, elements) | RunInference(handler, **more)

    with pytest.raises(Exception, match=why):
        run_pipeline()


# Elements and results


def test_every_element_has_its_prediction(spec):
    with pipeline() as p:
        results = created(p, rows(*range(20))) | RunInference(ModelHandler(spec))
        holds(results, [(i, i + 1) for i in range(20)])


def test_results_are_beams_own_and_say_which_model(spec):
    (result,) = run(ModelHandler(spec), rows(4))
    assert isinstance(result, PredictionResult)
    assert result.model_id == spec
    assert result.inference["output"].tolist() == [5]


def test_dicts_of_arrays_are_rows_by_input_name():
    elements = [
        {"x": np.arange(3, dtype=np.float32), "name": "a"},
        {"name": np.str_("b"), "x": np.ones(3, np.float32)},
    ]
    first, second = run(ModelHandler(Told), elements)
    assert (first.inference["sum"], first.inference["name"]) == (3, "a")
    assert (second.inference["sum"], second.inference["name"]) == (3, "b")
    assert second.example is elements[1]


def test_rows_of_other_shapes_come_back_in_their_places():
    elements = [{"x": np.ones(width, np.float32), "name": str(width)} for width in (2, 5, 2, 1, 5)]
    results = run(ModelHandler(Told), elements)
    assert [(r.inference["sum"], r.inference["x"].shape, r.inference["name"]) for r in results] == [
        (2, (2,), "2"),
        (5, (5,), "5"),
        (2, (2,), "2"),
        (1, (1,), "1"),
        (5, (5,), "5"),
    ]


def test_a_request_gets_a_response(spec):
    request = InferRequest((Tensor("x", np.array([[1], [2]], np.float32)),), id="q")
    (result,) = run(ModelHandler(spec), [request])
    assert result.inference.id == "q"
    assert result.inference["output"].tolist() == [[2], [3]]


def test_batches_handed_over_whole_are_taken(spec):
    with pipeline() as p:
        batches = [rows(1, 2), rows(3)]
        results = created(p, batches) | RunInference(ModelHandler(spec).with_no_batching())
        holds(results, [(1, 2), (2, 3), (3, 4)])


# Failures


def test_a_row_that_fails_costs_that_row(spec):
    with pipeline() as p:
        handler = ModelHandler(spec, failures="return", min_batch_size=8)
        elements = [*rows(1, -1, 3, -4, 5), np.float32(7), "no array"]
        parted = created(p, elements) | RunInference(handler) | SplitFailures()
        # A scalar is a row of another shape, which this model takes as well.
        found = parted.predictions | beam.Map(
            lambda r: (float(np.ravel(r.example)[0]), float(np.ravel(r.inference["output"])[0]))
        )
        gives(found, [(1, 2), (3, 4), (5, 6), (7, 8)])
        whys = parted.failures | beam.Map(lambda r: r.inference.why)
        no_array = "an element is a numpy array, a dict of arrays by input name or an InferRequest, not a str"
        gives(whys, ["it is negative", "it is negative", no_array])
    assert metrics(p.result, "Headrace")["failed_inferences"] == 3


def test_keyed_failures_are_parted_too(spec):
    with pipeline() as p:
        handler = KeyedModelHandler(ModelHandler(spec, failures="return"))
        keyed = zip("abc", rows(1, -2, 3), strict=True)
        parted = created(p, keyed) | RunInference(handler) | SplitFailures()
        holds(parted.predictions, [("a", (1, 2)), ("c", (3, 4))])
        holds(parted.failures, [("b", (-2, "it is negative"))])


def test_without_that_the_batch_fails_and_says_which_element(spec):
    with pytest.raises(RefusedRowsError, match=r"1 of 3 elements .* element 1: it is negative.*failures="):
        run(ModelHandler(spec), rows(1, -1, 3))


def test_a_request_is_lost_only_with_its_last_row(spec):
    some, none = (
        InferRequest((Tensor("x", np.array([[a], [b]], np.float32)),)) for a, b in ((-1, 2), (-1, -2))
    )
    first, second = run(ModelHandler(spec, failures="return"), [some, none])
    assert first.inference["output"].tolist() == [[3]]
    assert [f.row for f in first.inference.failures] == [0]
    assert isinstance(second.inference, ElementFailure)
    with pytest.raises(RefusedRowsError, match="row 0: it is negative"):
        run(ModelHandler(spec), [some])


@pytest.mark.parametrize("failures", ["raise", "return"])
def test_a_model_that_returns_too_few_rows_loses_none_in_silence(failures):
    with pytest.raises(ModelContractError):
        run(ModelHandler(OneShort, failures=failures), rows(1, 2, 3))


def test_a_bare_array_needs_a_model_of_one_input():
    with pytest.raises(RefusedRowsError, match="its inputs are 'x', 'name': give dicts"):
        run(ModelHandler(Told), rows(1))


def test_beams_dead_letters_hold_the_whole_batch(spec):
    with pipeline() as p:
        handler = ModelHandler(spec, min_batch_size=3, max_batch_size=3)
        good, dead = created(p, rows(1, -1, 3)) | RunInference(handler).with_exception_handling()
        holds(good, [])
        batches = dead.failed_inferences | beam.Map(lambda failed: [float(x[0]) for x in failed[0]])
        gives(batches, [[1, -1, 3]])
    found = metrics(p.result, "Headrace")
    assert found["failed_batches_counter"] == 1
    assert found.get("num_inferences", 0) == 0


def test_no_batch_is_counted_as_failed_where_none_is(spec):
    with pipeline() as p:
        _ = created(p, rows(1, 2)) | RunInference(ModelHandler(spec))
    assert metrics(p.result, "Headrace").get("failed_batches_counter", 0) == 0


def test_a_call_that_hangs_ends_in_the_dead_letters(spec):
    Stuck.may_go.clear()
    try:
        with pipeline() as p:
            handler = ModelHandler(Stuck, max_batch_size=1, min_batch_size=1)
            good, dead = created(p, rows(1, 13)) | RunInference(handler).with_exception_handling(timeout=4)
            gives(good | beam.Map(lambda r: float(r.example[0])), [1])
            late = dead.failed_inferences | beam.Map(lambda failed: float(failed[0][0][0]))
            gives(late, [13])
    finally:
        Stuck.may_go.set()


# Keys, and functions before and after


def test_keys_stay_with_their_elements(spec):
    with pipeline() as p:
        keyed = list(enumerate(rows(1, 5, 3, 10)))
        results = created(p, keyed) | RunInference(KeyedModelHandler(ModelHandler(spec)))
        holds(results, [(0, (1, 2)), (1, (5, 6)), (2, (3, 4)), (3, (10, 11))])


@pytest.mark.parametrize("keyed", [True, False])
def test_elements_may_be_keyed_or_not(spec, keyed):
    with pipeline() as p:
        elements = list(enumerate(rows(1, 5))) if keyed else rows(1, 5)
        results = created(p, elements) | RunInference(MaybeKeyedModelHandler(ModelHandler(spec)))
        holds(results, [(0, (1, 2)), (1, (5, 6))] if keyed else [(1, 2), (5, 6)])


def test_keys_name_models(spec, tmp_path):
    handler = KeyedModelHandler(
        [
            KeyModelMapping(["one", "uno"], ModelHandler(spec)),
            KeyModelMapping(["ten"], ModelHandler(write_model(tmp_path, by=10), failures="return")),
        ],
        max_models_per_worker_hint=1,
    )
    keyed = [("one", rows(1)[0]), ("ten", rows(1)[0]), ("uno", rows(2)[0]), ("ten", rows(-1)[0])]
    with pipeline() as p:
        results = created(p, keyed) | RunInference(handler, metrics_namespace="mine")
        holds(results, [("one", (1, 2)), ("ten", (1, 11)), ("uno", (2, 3)), ("ten", (-1, "it is negative"))])
    found = metrics(p.result, "mine")
    assert (found["num_inferences"], found["one-_num_inferences"], found["ten-_num_inferences"]) == (4, 2, 2)


def test_elements_without_the_keys_that_are_wanted_are_refused(spec):
    refused(KeyedModelHandler(ModelHandler(spec)), rows(1, 2), "not enough values")
    refused(
        ModelHandler(spec),
        list(enumerate(rows(1, 2))),
        "pairs of a key and an element there is KeyedModelHandler",
    )


def test_functions_before_and_after_run_in_their_order(spec):
    handler = (
        ModelHandler(spec)
        .with_preprocess_fn(lambda text: np.array([float(text)], np.float32))
        .with_preprocess_fn(lambda text: text.strip("<>"))
        .with_postprocess_fn(lambda result: result.inference["output"])
        .with_postprocess_fn(lambda output: float(output[0]))
    )
    with pipeline() as p:
        results = created(p, ["<1>", "<5>"]) | RunInference(handler)
        gives(results, [2.0, 6.0])


def test_what_fails_before_after_and_between_lands_in_three_places(spec):
    def positive(value):
        if value == 0:
            raise ValueError("zero")
        return np.array([value], np.float32)

    def small(result):
        if result.inference["output"][0] > 100:
            raise ValueError("too large")
        return float(result.inference["output"][0])

    handler = ModelHandler(spec, max_batch_size=1, min_batch_size=1)
    with pipeline() as p:
        good, dead = (
            created(p, [1, 0, 500, -1])
            | RunInference(
                handler.with_preprocess_fn(positive).with_postprocess_fn(small)
            ).with_exception_handling()
        )
        gives(good, [2.0])
        before = dead.failed_preprocessing[0] | beam.Map(lambda failed: failed[0])
        gives(before, [0])
        between = dead.failed_inferences | beam.Map(lambda failed: float(failed[0][0][0]))
        gives(between, [-1])
        after = dead.failed_postprocessing[0] | "plain" >> beam.Map(lambda failed: plain(failed[0]))
        gives(after, [(500, 501)])


# Metrics and hints


def test_what_is_counted(spec):
    with pipeline() as p:
        _ = created(p, rows(1, 5, 3, 10)) | RunInference(ModelHandler(spec), metrics_namespace="mine")
    found = metrics(p.result, "mine")
    assert found["num_inferences"] == 4
    assert found["inference_request_batch_size"].sum == 4
    assert found["inference_request_batch_byte_size"].sum == 16
    assert found["load_model_latency_milli_secs"].count >= 1
    assert found["inference_batch_latency_micro_secs"].count >= 1
    assert metrics(p.result, "Headrace") == {}


def test_a_batch_is_no_larger_than_what_the_model_takes_in_one_call(tmp_path, spec):
    assert ModelHandler(spec).batch_elements_kwargs() == {"max_batch_size": 8}
    given = ModelHandler(spec, min_batch_size=3, max_batch_duration_secs=1).batch_elements_kwargs()
    assert given == {"min_batch_size": 3, "max_batch_duration_secs": 1, "max_batch_size": 8}
    assert ModelHandler(spec, min_batch_size=20).batch_elements_kwargs()["max_batch_size"] == 20
    assert ModelHandler(spec, max_batch_size=20).batch_elements_kwargs() == {"max_batch_size": 20}
    # Large models are not loaded for a hint, and one that is on the workers alone cannot be.
    for handler in (ModelHandler(spec, large_model=True), ModelHandler(str(tmp_path / "not-here.onnx"))):
        assert handler.batch_elements_kwargs() == {"max_batch_size": 1024}


def test_beams_other_settings_are_handed_on(spec):
    def size(_: object) -> int:
        return 1

    handler = ModelHandler(
        spec,
        min_batch_size=1,
        max_batch_size=2,
        max_batch_duration_secs=3,
        max_batch_weight=4,
        element_size_fn=size,
        batch_length_fn=size,
        batch_bucket_boundaries=[5],
        model_copies=6,
        min_ram="1GB",
        accelerator="type:any;count:1",
        env_vars={"HEADRACE_BEAM_TEST": "1"},
    )
    assert handler.batch_elements_kwargs() == {
        "min_batch_size": 1,
        "max_batch_size": 2,
        "max_batch_duration_secs": 3,
        "max_batch_weight": 4,
        "element_size_fn": size,
        "length_fn": size,
        "bucket_boundaries": [5],
    }
    assert (handler.share_model_across_processes(), handler.model_copies()) == (True, 6)
    assert handler.get_resource_hints() == {"min_ram": "1GB", "accelerator": "type:any;count:1"}
    assert (ModelHandler(spec).share_model_across_processes(), ModelHandler(spec).model_copies()) == (
        False,
        1,
    )


def test_resource_hints_and_variables_reach_the_pipeline(spec, monkeypatch):
    monkeypatch.delenv("HEADRACE_BEAM_TEST", raising=False)
    with pipeline() as p:
        handler = ModelHandler(spec, min_ram="1GB", env_vars={"HEADRACE_BEAM_TEST": "1"})
        holds(created(p, rows(1)) | RunInference(handler), [(1, 2)])
    assert os.environ.pop("HEADRACE_BEAM_TEST") == "1"


def test_bytes_are_those_of_the_arrays(spec):
    text = {"a": np.zeros((2, 3), np.float64), "b": "four", "c": np.array(["x", "yz"], object), "d": [1, 2]}
    request = InferRequest((Tensor("x", np.zeros(5, np.uint8)),))
    assert (
        ModelHandler(spec).get_num_bytes([np.zeros(3, np.float32), text, request]) == 12 + 48 + 4 + 3 + 16 + 5
    )


def test_inference_args_are_parameters_of_the_request(spec):
    handler = ModelHandler(spec)
    assert [plain(r) for r in run(handler, rows(1), inference_args={"key": True})] == [(1, 2)]
    refused(handler, rows(1), "'key' is a list", inference_args={"key": [1]})


# Sharing and life


@pytest.mark.parametrize("more", [{"large_model": True}, {"model_copies": 2}])
def test_one_model_serves_all_processes(spec, more):
    with pipeline() as p:
        handler = ModelHandler(spec, failures="return", **more)
        results = created(p, rows(1, -5, 3)) | RunInference(handler)
        holds(results, [(1, 2), (-5, "it is negative"), (3, 4)])


def test_copies_are_asked_in_turns():
    with pipeline() as p:
        handler = ModelHandler(Counts, model_copies=4, max_batch_size=1, min_batch_size=1)
        results = created(p, rows(*range(16))) | RunInference(handler)
        called = results | beam.Map(lambda result: int(result.inference["output"][0]))
        gives(called, [1, 2, 3, 4] * 4)


def test_copies_are_asked_in_turns_also_with_keys():
    with pipeline() as p:
        handler = ModelHandler(Counts, model_copies=2, max_batch_size=1, min_batch_size=1)
        keyed = [("key", row) for row in rows(*range(4))]
        results = created(p, keyed) | RunInference(KeyedModelHandler(handler))
        gives(results, [1, 1, 2, 2], lambda pair: int(pair[1].inference["output"][0]))


def test_two_steps_may_share_one_model():
    name = uuid4().hex
    with pipeline() as p:
        values = created(p, rows(0))
        calls = [
            values
            | step
            >> RunInference(ModelHandler(Counts, large_model=True, max_batch_size=1), model_identifier=name)
            for step in ("first", "second")
        ]
        # Whichever is asked first, the other is the second call of the same model.
        gives(calls | beam.Flatten(), [1, 2], lambda result: int(result.inference["output"][0]))


def test_a_failing_load_is_raised_through_the_process_that_shares(tmp_path):
    (tmp_path / "broken.py").write_text(
        "import headrace\n\n\nclass Broken(headrace.Model):\n    def load(self):\n        raise OSError('no weights')\n\n"
        "    def predict(self, x):\n        return x\n"
    )
    refused(ModelHandler(str(tmp_path / "broken.py"), large_model=True), rows(1), "no weights")


def test_two_handlers_have_two_models(spec, tmp_path):
    with pipeline() as p:
        values = created(p, rows(1, 2))
        holds(values | "one" >> RunInference(ModelHandler(spec)), [(1, 2), (2, 3)])
        other = ModelHandler(write_model(tmp_path, by=20))
        holds(values | "twenty" >> RunInference(other), [(1, 21), (2, 22)])


def test_a_handler_may_be_pickled_before_and_after_its_use(spec):
    handler = ModelHandler(spec, options=PredictorOptions(instances=2), failures="return")
    for _ in range(2):
        again = pickle.loads(pickle.dumps(handler))
        assert [plain(r) for r in run(again, rows(1, -1))] == [(1, 2), (-1, "it is negative")]
        handler = again


def test_what_cannot_be_is_refused_at_once(spec):
    with pytest.raises(ConfigError, match='"raise" or "return"'):
        ModelHandler(spec, failures="ignore")
    with pytest.raises(ConfigError, match="a model's name or class"):
        ModelHandler(3)
    with pytest.raises(ModelLoadError):
        ModelHandler("nowhere.onnx").load_model()
