"""transform/objects.py and its clients: their outputs are compared."""

import object_loop
import object_requests
import objects
import orjson
import pytest
from headrace_runs import BrokenRunError


def test_same_scores_allows_a_difference_in_the_last_digit_only():
    assert objects.same_scores(b"1,2,0.25\n3,4,0.5\n", b"1,2,0.250001\n3,4,0.5\n")
    assert not objects.same_scores(b"1,2,0.25\n", b"1,2,0.26\n")
    assert not objects.same_scores(b"1,2,0.25\n", b"1,2.0,0.25\n")
    assert not objects.same_scores(b"1,2,0.25\n", b"1,2,0.25\n3,4,0.5\n")


def test_check_requires_an_output_for_each_object(tmp_path):
    for folder in ("loop", "other"):
        (tmp_path / folder).mkdir()
        for name in ("a.csv", "b.csv"):
            (tmp_path / folder / f"{name}.out").write_bytes(b"1,0.5\n")
    names, loop, other = ["a.csv", "b.csv"], tmp_path / "loop", tmp_path / "other"
    objects.check(names, loop, [other], "transform")
    (other / "a.csv.out").write_bytes(b"1,0.5\n1,0.5\n")
    (other / "b.csv.out").unlink()
    with pytest.raises(BrokenRunError, match="1 outputs for 2 objects"):
        objects.check(names, loop, [other], "transform")


def test_a_request_holds_the_lines_as_one_tensor():
    body = orjson.loads(object_requests.request_body([b"1.5,-2", b"3,4"]))
    assert body == {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1.5, -2, 3, 4]}],
    }


def test_copy_writes_the_objects_and_counts_rows(tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    (source / "a").write_bytes(b"1\n2\n")
    assert object_loop.copy(source, out) == 2
    assert (out / "a.out").read_bytes() == b"1\n2\n"
