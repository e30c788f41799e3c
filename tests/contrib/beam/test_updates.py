"""Models that a side input changes while a pipeline runs, as in Beam's own tests.

One model, a model per key, and cohorts that split.
"""

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.ml.inference.base import (
    KeyedModelHandler,
    KeyModelMapping,
    KeyModelPathMapping,
    ModelMetadata,
    RunInference,
)
from apache_beam.transforms import trigger, window

from contrib.beam.support import create, expect, pipeline, write_model
from headrace.beam import ModelHandler

WINDOW_S = 7


def in_windows(p, pairs):
    """Return a PCollection of values in windows, from pairs of seconds (from a common start) and
    values.
    """
    first_s = 1_700_000_000 // WINDOW_S * WINDOW_S
    return (
        create(p, [(first_s + at_s, value) for at_s, value in pairs])
        | f"times {id(pairs)}" >> beam.Map(lambda pair: window.TimestampedValue(pair[1], pair[0]))
        | f"windows {id(pairs)}"
        >> beam.WindowInto(
            window.FixedWindows(WINDOW_S), accumulation_mode=trigger.AccumulationMode.DISCARDING
        )
        | f"keys {id(pairs)}" >> beam.Map(lambda value: (None, value))
        | f"groups {id(pairs)}" >> beam.GroupByKey()
        | f"values {id(pairs)}" >> beam.FlatMap(lambda group: group[1])
    )


def row(value):
    return np.array([value], np.float32)


def output_and_model(result):
    """Return the output of a result and its model id."""
    return float(result.inference["output"][0]), result.model_id


@pytest.mark.parametrize("more", [{}, {"large_model": True}, {"model_copies": 2}])
def test_a_side_input_changes_the_model(tmp_path, more):
    one, ten, hundred = (write_model(tmp_path, f"by{by}", by) for by in (1, 10, 100))
    hundred = f"file://{hundred}"
    models = [
        (1, ModelMetadata("", "")),
        (8, ModelMetadata(ten, "ten")),
        (15, ModelMetadata(hundred, "hundred")),
    ]
    elements = [(at_s, row(at_s)) for at_s in (1, 8, 15)]
    with pipeline() as p:
        results = in_windows(p, elements) | RunInference(
            ModelHandler(one, **more), model_metadata_pcoll=in_windows(p, models)
        )
        expect(results, [(2, one), (18, ten), (115, hundred)], output_and_model)


def test_without_update_the_original_model_predicts(tmp_path):
    one = write_model(tmp_path)
    with pipeline() as p:
        results = create(p, [row(1), row(2)]) | RunInference(
            ModelHandler(one), model_metadata_pcoll=create(p, [])
        )
        expect(results, [(2, one), (3, one)], output_and_model)


def test_updates_apply_per_key_and_split_cohorts(tmp_path):
    one, ten, hundred = (write_model(tmp_path, f"by{by}", by) for by in (1, 10, 100))
    handler = KeyedModelHandler(
        [KeyModelMapping(["a", "b"], ModelHandler(one)), KeyModelMapping(["c"], ModelHandler(ten))]
    )
    first = [KeyModelPathMapping(["a", "b"], one, "1"), KeyModelPathMapping(["c"], ten, "10")]
    split = [
        KeyModelPathMapping(["a"], one, "1"),
        KeyModelPathMapping(["b"], hundred, "100"),
        KeyModelPathMapping(["c"], hundred, "100"),
    ]
    elements = [(at_s, (key, row(at_s))) for at_s in (1, 8) for key in "abc"]
    with pipeline() as p:
        results = in_windows(p, elements) | RunInference(
            handler, model_metadata_pcoll=in_windows(p, [(1, first), (8, split)])
        )
        expect(
            results,
            [
                ("a", (2, one)),
                ("b", (2, one)),
                ("c", (11, ten)),
                ("a", (9, one)),
                ("b", (108, hundred)),
                ("c", (108, hundred)),
            ],
            lambda pair: (pair[0], output_and_model(pair[1])),
        )


def test_update_to_invalid_path_fails_load(tmp_path):
    handler = ModelHandler(write_model(tmp_path))
    handler.update_model_path(None)
    handler.load_model().close()
    handler.update_model_path(str(tmp_path / "gone.py"))
    with pytest.raises(Exception, match=r"gone\.py"):
        handler.load_model()
