import gzip

import numpy as np
import pytest

from headrace.core.errors import ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.runs.sample import first_records, learn
from runs.support import IN, make_settings, plan_of, put

TWO = ModelMetadata("m", inputs=(TensorSpec("x", "FP32", (-1, 2)),))
ANY = ModelMetadata("m")


def learned(stores, objects, metadata=TWO, *, known=None, **settings):
    put(stores, objects)
    run_settings = make_settings(**settings)
    planned = plan_of(stores, run_settings).objects
    return learn(planned, stores, run_settings, metadata, known=known)


def test_first_records_decide_the_properties(stores):
    assert learned(stores, {"a.csv": b"1,2,3\n1\n", "b.csv": b"1,2\n"}, ANY) == {
        "format": "csv",
        "csv_width": 3,
        "delimiter": ",",
    }


def test_header_is_learned(stores):
    found = learned(stores, {"a.csv": b"p,q\n1,2\n"}, read={"header": "names"})
    assert (found["column_names"], found["csv_width"]) == (["p", "q"], 2)


def test_each_format_is_probed(stores):
    found = learned(stores, {"a.csv": b"1,2\n", "b.jsonl": b'{"x": [1, 2]}\n'})
    assert found["format"] == "csv"
    with pytest.raises(ModelInputError, match="have the fields z"):
        learned(
            stores,
            {"b.jsonl": b'{"z": [1, 2]}\n'},
            ModelMetadata("m", inputs=(TensorSpec("x", "FP32", (-1,)), TensorSpec("y", "FP32", (-1,)))),
        )


def test_empty_and_broken_objects_are_skipped(stores):
    objects = {
        "a.csv": b"",
        "b.csv.gz": b"\x1f\x8b",
        "c.csv": b"\0",
        "d.csv.gz": gzip.compress(b""),
        "e.csv": b"1,2\n",
    }
    assert learned(stores, objects)["csv_width"] == 2


def test_empty_objects_teach_nothing(stores):
    assert learned(stores, {"a.csv": b"", "b.csv": b"\n\n"}) == {}


def test_misfit_is_an_error_only_if_no_object_fits(stores):
    assert learned(stores, {"a.csv": b"1\n", "b.csv": b"1,2,3\n", "c.csv": b"1,2\n"})["csv_width"] == 2
    stores.for_uri(IN).delete(IN + "c.csv")
    with pytest.raises(ModelInputError, match=r"takes 2 numbers.*a\.csv"):
        learned(stores, {})


def test_undecodable_records_are_no_misfit(stores):
    assert learned(stores, {"a.csv": b"1\n", "b.csv": b"x,y\n"})["csv_width"] == 2


def test_properties_of_earlier_objects_are_kept(stores):
    known = learned(stores, {"a.csv": b"1,2,3\n"}, ANY)
    stores.for_uri(IN).delete(IN + "a.csv")
    assert learned(stores, {"b.csv": b"1,2\n"}, ANY, known=known) == known
    assert learned(stores, {}, ANY)["csv_width"] == 2


def test_large_object_is_read_partially(stores):
    put(stores, {"a.csv": b"1,2\n" * 500_000})
    lengths = []
    store = stores.for_uri(IN)
    real = store.get_range
    store.get_range = lambda uri, start, length, **more: (
        lengths.append(length) or real(uri, start, length, **more)
    )
    assert learned(stores, {})["csv_width"] == 2
    assert sum(lengths) < 300_000


def test_first_records_have_model_inputs(stores):
    put(stores, {"a.csv": b"1,2\nx,3\n5,6\n", "b.csv": b"", "c.csv": b"7,8\n9,9\n"})
    run_settings = make_settings()
    objects = plan_of(stores, run_settings).objects
    seen = first_records(objects, stores, run_settings, TWO, count=4)
    assert [s.record for s in seen] == [b"1,2", b"x,3", b"5,6", b"7,8"]
    assert [s.inputs["x"].tolist() for s in seen if not s.failure] == [[1, 2], [5, 6], [7, 8]]
    assert seen[1].inputs == {}
    assert "is not a number" in seen[1].failure.why
    assert seen[3].position.startswith(IN + "c.csv, record 0")
    assert all(isinstance(s.inputs["x"], np.ndarray) for s in seen if not s.failure)


def test_invalid_first_records_are_included(stores):
    put(stores, {"a.csv": b'1,2\n"never closed'})
    run_settings = make_settings()
    objects = plan_of(stores, run_settings).objects
    seen = first_records(objects, stores, run_settings, TWO, count=9)
    assert [(s.record, bool(s.failure)) for s in seen] == [(b"1,2", False), (b'"never closed', True)]
