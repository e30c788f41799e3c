"""The tests of Beam's own handlers for headrace's handler.

They cover batches, keys, pre- and postprocessing, dead letters, metrics and hints.
"""

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

from contrib.beam.support import (
    create,
    expect,
    expect_results,
    pipeline,
    read_metrics,
    rows,
    summarize,
    write_model,
)
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


class EchoSum(Model):
    """A model that returns its inputs and a sum."""

    inputs = (TensorSpec("x", "FP32", (-1, -1)), TensorSpec("name", "BYTES", (-1,)))

    def predict(self, x, name):
        return {"sum": x.sum(axis=1), "name": name, "x": x}


class OneShort(Model):
    def predict(self, x):
        return x[:-1]


class Hanging(Model):
    """A model that waits for an event."""

    released = threading.Event()

    def predict(self, x):
        if (x == 13).any():
            self.released.wait(60)
        return x


class CallCounter(Model):
    """A model that returns the number of its calls, by which a pipeline can distinguish copies."""

    max_batch_rows = 1

    def load(self):
        self.calls = 0

    def predict(self, x):
        self.calls += 1
        return np.full(x.shape, self.calls, x.dtype)


def run(handler, elements, **more):
    """Return the results of the handler without a pipeline."""
    model = handler.load_model()
    try:
        return handler.run_inference(elements, model, **more)
    finally:
        model.close()


def expect_pipeline_error(handler, elements, why: str, **more) -> None:
    """Expect a pipeline with the handler to fail."""

    def run_pipeline():
        with pipeline() as p:
            _ = create(p, elements) | RunInference(handler, **more)

    with pytest.raises(Exception, match=why):
        run_pipeline()


# Elements and results


def test_every_element_has_its_prediction(spec):
    with pipeline() as p:
        results = create(p, rows(*range(20))) | RunInference(ModelHandler(spec))
        expect_results(results, [(i, i + 1) for i in range(20)])


def test_results_are_beams_own_with_model_id(spec):
    (result,) = run(ModelHandler(spec), rows(4))
    assert isinstance(result, PredictionResult)
    assert result.model_id == spec
    assert result.inference["output"].tolist() == [5]


def test_dicts_of_arrays_are_rows_by_input_name():
    elements = [
        {"x": np.arange(3, dtype=np.float32), "name": "a"},
        {"name": np.str_("b"), "x": np.ones(3, np.float32)},
    ]
    first, second = run(ModelHandler(EchoSum), elements)
    assert (first.inference["sum"], first.inference["name"]) == (3, "a")
    assert (second.inference["sum"], second.inference["name"]) == (3, "b")
    assert second.example is elements[1]


def test_rows_of_different_shapes_keep_their_places():
    elements = [{"x": np.ones(width, np.float32), "name": str(width)} for width in (2, 5, 2, 1, 5)]
    results = run(ModelHandler(EchoSum), elements)
    assert [(r.inference["sum"], r.inference["x"].shape, r.inference["name"]) for r in results] == [
        (2, (2,), "2"),
        (5, (5,), "5"),
        (2, (2,), "2"),
        (1, (1,), "1"),
        (5, (5,), "5"),
    ]


def test_request_element_gets_a_response(spec):
    request = InferRequest((Tensor("x", np.array([[1], [2]], np.float32)),), id="q")
    (result,) = run(ModelHandler(spec), [request])
    assert result.inference.id == "q"
    assert result.inference["output"].tolist() == [[2], [3]]


def test_prebuilt_batches_are_accepted(spec):
    with pipeline() as p:
        batches = [rows(1, 2), rows(3)]
        results = create(p, batches) | RunInference(ModelHandler(spec).with_no_batching())
        expect_results(results, [(1, 2), (2, 3), (3, 4)])


# Failures


def test_failed_row_fails_alone(spec):
    with pipeline() as p:
        handler = ModelHandler(spec, failures="return", min_batch_size=8)
        elements = [*rows(1, -1, 3, -4, 5), np.float32(7), "no array"]
        split = create(p, elements) | RunInference(handler) | SplitFailures()
        # A scalar is a row of another shape, which this model accepts too.
        predictions = split.predictions | beam.Map(
            lambda r: (float(np.ravel(r.example)[0]), float(np.ravel(r.inference["output"])[0]))
        )
        expect(predictions, [(1, 2), (3, 4), (5, 6), (7, 8)])
        whys = split.failures | beam.Map(lambda r: r.inference.why)
        no_array = (
            "an element must be a numpy array, a dict of arrays by input name or an InferRequest, not a str"
        )
        expect(whys, ["it is negative", "it is negative", no_array])
    assert read_metrics(p.result, "Headrace")["failed_inferences"] == 3


def test_keyed_failures_are_split(spec):
    with pipeline() as p:
        handler = KeyedModelHandler(ModelHandler(spec, failures="return"))
        keyed = zip("abc", rows(1, -2, 3), strict=True)
        split = create(p, keyed) | RunInference(handler) | SplitFailures()
        expect_results(split.predictions, [("a", (1, 2)), ("c", (3, 4))])
        expect_results(split.failures, [("b", (-2, "it is negative"))])


def test_raising_handler_names_the_failed_element(spec):
    with pytest.raises(RefusedRowsError, match=r"1 of 3 elements .* element 1: it is negative.*failures="):
        run(ModelHandler(spec), rows(1, -1, 3))


def test_request_fails_only_if_all_its_rows_fail(spec):
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
def test_model_with_missing_rows_raises(failures):
    with pytest.raises(ModelContractError):
        run(ModelHandler(OneShort, failures=failures), rows(1, 2, 3))


def test_bare_array_needs_a_model_of_one_input():
    with pytest.raises(RefusedRowsError, match="the inputs are 'x', 'name': pass dicts"):
        run(ModelHandler(EchoSum), rows(1))


def test_beam_dead_letters_hold_the_whole_batch(spec):
    with pipeline() as p:
        handler = ModelHandler(spec, min_batch_size=3, max_batch_size=3)
        good, dead = create(p, rows(1, -1, 3)) | RunInference(handler).with_exception_handling()
        expect_results(good, [])
        batches = dead.failed_inferences | beam.Map(lambda failed: [float(x[0]) for x in failed[0]])
        expect(batches, [[1, -1, 3]])
    counters = read_metrics(p.result, "Headrace")
    assert counters["failed_batches_counter"] == 1
    assert counters.get("num_inferences", 0) == 0


def test_successful_batches_are_not_counted_as_failed(spec):
    with pipeline() as p:
        _ = create(p, rows(1, 2)) | RunInference(ModelHandler(spec))
    assert read_metrics(p.result, "Headrace").get("failed_batches_counter", 0) == 0


def test_hanging_call_ends_in_dead_letters(spec):
    Hanging.released.clear()
    try:
        with pipeline() as p:
            handler = ModelHandler(Hanging, max_batch_size=1, min_batch_size=1)
            good, dead = create(p, rows(1, 13)) | RunInference(handler).with_exception_handling(timeout=4)
            expect(good | beam.Map(lambda r: float(r.example[0])), [1])
            late = dead.failed_inferences | beam.Map(lambda failed: float(failed[0][0][0]))
            expect(late, [13])
    finally:
        Hanging.released.set()


# Keys, and functions before and after the model


def test_keys_stay_with_their_elements(spec):
    with pipeline() as p:
        keyed = list(enumerate(rows(1, 5, 3, 10)))
        results = create(p, keyed) | RunInference(KeyedModelHandler(ModelHandler(spec)))
        expect_results(results, [(0, (1, 2)), (1, (5, 6)), (2, (3, 4)), (3, (10, 11))])


@pytest.mark.parametrize("keyed", [True, False])
def test_elements_may_be_keyed_or_not(spec, keyed):
    with pipeline() as p:
        elements = list(enumerate(rows(1, 5))) if keyed else rows(1, 5)
        results = create(p, elements) | RunInference(MaybeKeyedModelHandler(ModelHandler(spec)))
        expect_results(results, [(0, (1, 2)), (1, (5, 6))] if keyed else [(1, 2), (5, 6)])


def test_keys_select_models(spec, tmp_path):
    handler = KeyedModelHandler(
        [
            KeyModelMapping(["one", "uno"], ModelHandler(spec)),
            KeyModelMapping(["ten"], ModelHandler(write_model(tmp_path, by=10), failures="return")),
        ],
        max_models_per_worker_hint=1,
    )
    keyed = [("one", rows(1)[0]), ("ten", rows(1)[0]), ("uno", rows(2)[0]), ("ten", rows(-1)[0])]
    with pipeline() as p:
        results = create(p, keyed) | RunInference(handler, metrics_namespace="mine")
        expect_results(
            results, [("one", (1, 2)), ("ten", (1, 11)), ("uno", (2, 3)), ("ten", (-1, "it is negative"))]
        )
    counters = read_metrics(p.result, "mine")
    assert (counters["num_inferences"], counters["one-_num_inferences"], counters["ten-_num_inferences"]) == (
        4,
        2,
        2,
    )


def test_elements_with_wrong_keying_are_refused(spec):
    expect_pipeline_error(KeyedModelHandler(ModelHandler(spec)), rows(1, 2), "not enough values")
    expect_pipeline_error(
        ModelHandler(spec),
        list(enumerate(rows(1, 2))),
        "use KeyedModelHandler for pairs of a key and an element",
    )


def test_pre_and_postprocessing_run_in_order(spec):
    handler = (
        ModelHandler(spec)
        .with_preprocess_fn(lambda text: np.array([float(text)], np.float32))
        .with_preprocess_fn(lambda text: text.strip("<>"))
        .with_postprocess_fn(lambda result: result.inference["output"])
        .with_postprocess_fn(lambda output: float(output[0]))
    )
    with pipeline() as p:
        results = create(p, ["<1>", "<5>"]) | RunInference(handler)
        expect(results, [2.0, 6.0])


def test_failures_are_reported_by_stage(spec):
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
            create(p, [1, 0, 500, -1])
            | RunInference(
                handler.with_preprocess_fn(positive).with_postprocess_fn(small)
            ).with_exception_handling()
        )
        expect(good, [2.0])
        before = dead.failed_preprocessing[0] | beam.Map(lambda failed: failed[0])
        expect(before, [0])
        between = dead.failed_inferences | beam.Map(lambda failed: float(failed[0][0][0]))
        expect(between, [-1])
        after = dead.failed_postprocessing[0] | "summarize" >> beam.Map(lambda failed: summarize(failed[0]))
        expect(after, [(500, 501)])


# Metrics and hints


def test_beam_metrics_are_counted(spec):
    with pipeline() as p:
        _ = create(p, rows(1, 5, 3, 10)) | RunInference(ModelHandler(spec), metrics_namespace="mine")
    counters = read_metrics(p.result, "mine")
    assert counters["num_inferences"] == 4
    assert counters["inference_request_batch_size"].sum == 4
    assert counters["inference_request_batch_byte_size"].sum == 16
    assert counters["load_model_latency_milli_secs"].count >= 1
    assert counters["inference_batch_latency_micro_secs"].count >= 1
    assert read_metrics(p.result, "Headrace") == {}


def test_default_batch_size_is_the_models_row_limit(tmp_path, spec):
    assert ModelHandler(spec).batch_elements_kwargs() == {"max_batch_size": 8}
    given = ModelHandler(spec, min_batch_size=3, max_batch_duration_secs=1).batch_elements_kwargs()
    assert given == {"min_batch_size": 3, "max_batch_duration_secs": 1, "max_batch_size": 8}
    assert ModelHandler(spec, min_batch_size=20).batch_elements_kwargs()["max_batch_size"] == 20
    assert ModelHandler(spec, max_batch_size=20).batch_elements_kwargs() == {"max_batch_size": 20}
    # Large models, and models that exist only on the workers, are not loaded for the batch size.
    for handler in (ModelHandler(spec, large_model=True), ModelHandler(str(tmp_path / "not-here.onnx"))):
        assert handler.batch_elements_kwargs() == {"max_batch_size": 1024}


def test_other_settings_are_passed_to_beam(spec):
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
        expect_results(create(p, rows(1)) | RunInference(handler), [(1, 2)])
    assert os.environ.pop("HEADRACE_BEAM_TEST") == "1"


def test_batch_bytes_are_those_of_the_arrays(spec):
    text = {"a": np.zeros((2, 3), np.float64), "b": "four", "c": np.array(["x", "yz"], object), "d": [1, 2]}
    request = InferRequest((Tensor("x", np.zeros(5, np.uint8)),))
    assert (
        ModelHandler(spec).get_num_bytes([np.zeros(3, np.float32), text, request]) == 12 + 48 + 4 + 3 + 16 + 5
    )


def test_inference_args_are_parameters_of_the_request(spec):
    handler = ModelHandler(spec)
    assert [summarize(r) for r in run(handler, rows(1), inference_args={"key": True})] == [(1, 2)]
    expect_pipeline_error(handler, rows(1), "'key' is a list", inference_args={"key": [1]})


# Sharing and life cycle


@pytest.mark.parametrize("more", [{"large_model": True}, {"model_copies": 2}])
def test_one_model_serves_all_processes(spec, more):
    with pipeline() as p:
        handler = ModelHandler(spec, failures="return", **more)
        results = create(p, rows(1, -5, 3)) | RunInference(handler)
        expect_results(results, [(1, 2), (-5, "it is negative"), (3, 4)])


def test_copies_are_called_in_turns():
    with pipeline() as p:
        handler = ModelHandler(CallCounter, model_copies=4, max_batch_size=1, min_batch_size=1)
        results = create(p, rows(*range(16))) | RunInference(handler)
        called = results | beam.Map(lambda result: int(result.inference["output"][0]))
        expect(called, [1, 2, 3, 4] * 4)


def test_copies_are_called_in_turns_with_keys():
    with pipeline() as p:
        handler = ModelHandler(CallCounter, model_copies=2, max_batch_size=1, min_batch_size=1)
        keyed = [("key", row) for row in rows(*range(4))]
        results = create(p, keyed) | RunInference(KeyedModelHandler(handler))
        expect(results, [1, 1, 2, 2], lambda pair: int(pair[1].inference["output"][0]))


def test_two_steps_may_share_one_model():
    name = uuid4().hex
    with pipeline() as p:
        values = create(p, rows(0))
        calls = [
            values
            | step
            >> RunInference(
                ModelHandler(CallCounter, large_model=True, max_batch_size=1), model_identifier=name
            )
            for step in ("first", "second")
        ]
        # In either order, the later step makes the second call of the same model.
        expect(calls | beam.Flatten(), [1, 2], lambda result: int(result.inference["output"][0]))


def test_failing_load_in_shared_process_is_raised(tmp_path):
    (tmp_path / "broken.py").write_text(
        "import headrace\n\n\nclass Broken(headrace.Model):\n"
        "    def load(self):\n        raise OSError('no weights')\n\n"
        "    def predict(self, x):\n        return x\n"
    )
    expect_pipeline_error(ModelHandler(str(tmp_path / "broken.py"), large_model=True), rows(1), "no weights")


def test_two_handlers_have_two_models(spec, tmp_path):
    with pipeline() as p:
        values = create(p, rows(1, 2))
        expect_results(values | "one" >> RunInference(ModelHandler(spec)), [(1, 2), (2, 3)])
        other = ModelHandler(write_model(tmp_path, by=20))
        expect_results(values | "twenty" >> RunInference(other), [(1, 21), (2, 22)])


def test_handler_is_picklable_before_and_after_use(spec):
    handler = ModelHandler(spec, options=PredictorOptions(instances=2), failures="return")
    for _ in range(2):
        again = pickle.loads(pickle.dumps(handler))
        assert [summarize(r) for r in run(again, rows(1, -1))] == [(1, 2), (-1, "it is negative")]
        handler = again


def test_invalid_arguments_are_refused(spec):
    with pytest.raises(ConfigError, match='"raise" or "return"'):
        ModelHandler(spec, failures="ignore")
    with pytest.raises(ConfigError, match="model must be a model's name or class"):
        ModelHandler(3)
    with pytest.raises(ModelLoadError):
        ModelHandler("nowhere.onnx").load_model()
