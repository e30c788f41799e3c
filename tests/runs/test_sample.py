import gzip

import numpy as np
import pytest

from cases import for_each
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.runs.sample import schema_of, try_records
from headrace.runs.schema import RecordSchema, Schema
from headrace.storage.resolve import Stores
from runs.support import IN, make_settings, plan_of, put, tar

TWO = ModelMetadata("m", inputs=(TensorSpec("x", "FP32", (-1, 2)),))
ANY = ModelMetadata("m")
FIELDS = ModelMetadata("m", inputs=(TensorSpec("x", "FP32", (-1,)), TensorSpec("y", "FP32", (-1,))))


def sampled(stores, objects, metadata=TWO, *, known=None, schema="infer", **settings) -> Schema:
    put(stores, objects)
    run_settings = make_settings(schema=schema, **settings)
    infos = [planned.info for planned in plan_of(stores, run_settings).objects]
    return schema_of(infos, stores, run_settings, metadata, known=known)


def tried(stores, objects, metadata=TWO, *, count=0, **settings):
    put(stores, objects)
    run_settings = make_settings(**settings)
    infos = [planned.info for planned in plan_of(stores, run_settings).objects]
    schema = schema_of(infos, stores, run_settings, metadata)
    return try_records(infos, stores, run_settings, metadata, schema, count=count)


def csv_of(found: Schema) -> RecordSchema:
    csv = found.find("csv")
    assert csv is not None
    return csv


def widths(found: Schema) -> tuple[int, dict[int, int]]:
    return len(csv_of(found).columns), dict(csv_of(found).widths)


def test_one_unusual_first_record_does_not_decide(stores):
    found = sampled(stores, {"a.csv": b"1,2\n" + b"1,2,3\n" * 50, "b.csv": b"4,5,6\n"}, ANY)
    assert widths(found) == (3, {3: 51, 2: 1})
    assert csv_of(found).place == IN + "a.csv, record 0, line 1, byte 0"


def test_one_unusual_first_object_does_not_decide(stores):
    names = [f"{n}.jsonl" for n in range(5)]
    objects = dict.fromkeys(names, b'{"x": 1, "y": 2}\n') | {"0.jsonl": b'{"z": 1}\n'}
    found = sampled(stores, objects, FIELDS).find("jsonl")
    assert found is not None
    assert found.names == ("z", "x", "y")


def test_objects_are_spread_over_the_source_and_bounded(stores):
    objects = {f"{n:03d}.csv": b"1,2\n" for n in range(100)}
    assert csv_of(sampled(stores, objects)).records == 20
    many = {f"{n:03d}.csv": b"1,2\n" * 400 for n in range(100)}
    trial = tried(stores, many)
    assert (trial.objects, trial.records) == (3, 1002)


def test_header_of_the_options_names_the_columns(stores):
    found = sampled(stores, {"a.csv": b"p,q\n1,2\n"}, read={"header": "names"})
    assert (csv_of(found).names, found.column_names) == (("p", "q"), ("p", "q"))


def test_each_format_is_sampled(stores):
    found = sampled(stores, {"a.csv": b"1,2\n", "b.jsonl": b'{"x": [1, 2]}\n'})
    assert [one.format for one in found.formats] == ["csv", "jsonl"]
    with pytest.raises(ModelInputError, match="have the fields z"):
        sampled(stores, {"b.jsonl": b'{"z": [1, 2]}\n'}, FIELDS)


def test_members_of_archives_are_sampled(stores):
    members = {"1.csv": b"1,2\n", "2.jsonl": b'{"x": [1, 2]}\n'}
    found = sampled(stores, {"a.tar": tar(members)})
    assert [one.format for one in found.formats] == ["csv", "jsonl"]


def test_empty_and_broken_objects_are_skipped(stores):
    objects = {
        "a.csv": b"",
        "b.csv.gz": b"\x1f\x8b",
        "c.csv": b"\0",
        "d.csv.gz": gzip.compress(b""),
        "e.csv": b"1,2\n",
    }
    assert widths(sampled(stores, objects)) == (2, {2: 1})


def test_empty_objects_have_no_schema(stores):
    assert sampled(stores, {"a.csv": b"", "b.csv": b"\n\n"}) == Schema()


def test_misfit_is_an_error_only_if_no_object_fits(stores):
    assert 2 in widths(sampled(stores, {"a.csv": b"1\n", "b.csv": b"1,2,3\n", "c.csv": b"1,2\n"}))[1]
    stores.for_uri(IN).delete(IN + "c.csv")
    with pytest.raises(ModelInputError, match=r"takes 2 numbers.*a\.csv"):
        sampled(stores, {})


def test_filtered_field_may_be_missing_in_the_first_object(stores):
    objects = {"a.jsonl": b'{"x": [1, 2]}\n', "b.jsonl": b'{"f": [1, 2]}\n'}
    found = sampled(stores, objects, mapping={"input_filter": "$.f"}).find("jsonl")
    assert found is not None
    assert found.is_whole
    with pytest.raises(ConfigError, match="the input filter selects nothing"):
        sampled(stores, objects, mapping={"input_filter": "$.g"})


def test_schema_of_earlier_objects_is_kept(stores):
    known = sampled(stores, {"a.csv": b"1,2,3\n"}, ANY)
    stores.for_uri(IN).delete(IN + "a.csv")
    assert sampled(stores, {"b.csv": b"1,2\n"}, ANY, known=known) == known
    more = sampled(stores, {"c.jsonl": b"[1]\n"}, ANY, known=known)
    assert [one.format for one in more.formats] == ["csv", "jsonl"]


@for_each("content", [b"a\rb,1\nc,2\n", b'"' + b"x" * 200_000 + b'",2\n'])
def test_first_record_may_be_odd(stores, content):
    assert widths(sampled(stores, {"a.csv": content}))[0] == 2


def test_large_object_is_read_partially(stores):
    put(stores, {"a.csv": b"1,2\n" * 500_000})
    lengths = []
    store = stores.for_uri(IN)
    real = store.get_range
    store.get_range = lambda uri, start, length, **more: (
        lengths.append(length) or real(uri, start, length, **more)
    )
    assert widths(sampled(stores, {}))[0] == 2
    assert sum(lengths) < 300_000


def test_strict_schema_refuses_records_that_do_not_decode(stores):
    objects = {"a.csv": b"1,2\n" * 9 + b"x,2\n"}
    with pytest.raises(
        ConfigError, match=r'strict, but 90 % of 10 sampled(?s:.*)record 9, .*"x" is not a number'
    ):
        sampled(stores, objects, schema="strict")
    assert widths(sampled(stores, {"a.csv": b"1,2\n"}, schema="strict"))[0] == 2


def test_schema_file_replaces_the_sample(stores):
    document = b'{"formats": [{"format": "csv", "columns": [{"name": "p"}, {"name": "q"}, {"name": "r"}]}]}'
    stores.for_uri("memory://conf/").put("memory://conf/s.json", document)
    found = sampled(stores, {"a.csv": b"1,2\n"}, ANY, schema="memory://conf/s.json")
    assert found.column_names == ("p", "q", "r")
    with pytest.raises(ModelInputError, match=r"takes 2 numbers .* have 3 columns \(p, q, r\)"):
        sampled(stores, {}, TWO, schema="memory://conf/s.json")


def test_first_records_have_model_inputs(stores):
    objects = {"a.csv": b"1,2\nx,3\n5,6\n", "b.csv": b"", "c.csv": b"7,8\n9,9\n"}
    trial = tried(stores, objects, count=4)
    assert [one.record for one in trial.first] == [b"1,2", b"x,3", b"5,6", b"7,8"]
    assert [one.inputs["x"].tolist() for one in trial.first if not one.failure] == [[1, 2], [5, 6], [7, 8]]
    assert trial.first[1].inputs == {}
    assert "is not a number" in trial.first[1].failure.why
    assert trial.first[3].position.startswith(IN + "c.csv, record 0")
    assert all(isinstance(one.inputs["x"], np.ndarray) for one in trial.first if not one.failure)
    assert (trial.objects, trial.records, trial.decoded) == (2, 5, 4)
    assert trial.first_failure == trial.first[1]
    assert trial.text().startswith(
        "80 % of 5 sampled records of 2 objects decode; the first that does not is\n"
    )


def test_invalid_first_records_are_included(stores):
    trial = tried(stores, {"a.csv": b'1,2\n"never closed'}, count=9)
    assert [(one.record, bool(one.failure)) for one in trial.first] == [
        (b"1,2", False),
        (b'"never closed', True),
    ]


@for_each(
    ("name", "content", "decoded"),
    [
        ("a.csv", b"1,x,\n2,y,5\nz,3,1\n", 2),
        ("a.csv", b"a,a,b\n1,2,x\n3,4,y\n", 2),
        ("a.jsonl", b'{"a": 1, "b.c": 2}\n{"a": "x"}\n{"a": 3}\n', 2),
        ("a.jsonl", b'[1, 2]\n[1]\n{"a": 1}\n[3, 4]\n', 2),
        ("a.jsonl", b"{}\n{}\n", 2),
        ("a.json", b'{"a": {"b": 1}}', 1),
    ],
)
def test_records_are_compared_with_the_schema_without_a_model(name, content, decoded):
    stores = Stores()
    trial = tried(stores, {name: content}, None, read={"header": "none"})
    assert (trial.decoded, trial.text() != "") == (decoded, True)
