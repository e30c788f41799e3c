"""What is given on the command line is read as what it is, or refused in words that say what could be given."""

import io

import numpy as np
import pytest

from headrace.cli import given as module
from headrace.cli.given import Document, Given, Json, Table, read_given
from headrace.core.errors import DataError, LimitError

REQUEST = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}'


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("[[1, 2]]", None, [[1, 2]]),
        ("x=[1, 2]", "x", [1, 2]),
        ("input-1=5", "input-1", 5),
        ("model/ids:0=[1]", None, None),
        ("ids:0=[1]", "ids:0", [1]),
        ('{"a": [1], "b": "x=y"}', None, {"a": [1], "b": "x=y"}),
        ('"a=b"', None, "a=b"),
        ('text="a=b"', "text", "a=b"),
        ("-1.5", None, -1.5),
        ("null", None, None),
    ],
)
def test_literals_are_json(text, name, value):
    if value is None and text != "null":
        with pytest.raises(DataError):
            read_given(text)
        return
    assert read_given(text) == Given(name, Json(value))


@pytest.mark.parametrize("text", ["hello", "[1, 2", "", "x=", "a b=1"])
def test_what_is_neither_json_nor_a_file_is_refused_with_what_could_be(text):
    with pytest.raises(DataError, match=r"--text"):
        read_given(text)


def test_a_whole_request_is_told_from_data(in_folder):
    assert read_given(REQUEST.decode()) == Given(None, Document(REQUEST))
    (in_folder / "request.json").write_bytes(REQUEST)
    assert read_given("request.json") == read_given("@request.json") == Given(None, Document(REQUEST))
    assert read_given("-", read_stdin=lambda: REQUEST) == Given(None, Document(REQUEST))
    assert read_given('{"inputs": [1, 2]}').value == Json({"inputs": [1, 2]})


def test_arrays_are_read_without_unpickling(in_folder):
    np.save("x.npy", np.arange(3))
    np.savez("several.npz", a=np.ones(2), b=np.zeros((1, 2)))
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    assert read_given("y=x.npy").value.tolist() == [0, 1, 2]
    assert {n: v.shape for n, v in read_given("several.npz").value.items()} == {"a": (2,), "b": (1, 2)}
    with pytest.raises(DataError, match=r"objects\.npy"):
        read_given("objects.npy")
    (in_folder / "broken.npz").write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match=r"broken\.npz is no \.npz"):
        read_given("broken.npz")


def test_csv_is_read_as_cells(in_folder):
    (in_folder / "rows.csv").write_bytes('\ufeffa,b\r\n1,"x, y"\r\n\r\n2,z\r\n'.encode())
    assert read_given("rows.csv").value == Table([["a", "b"], ["1", "x, y"], ["2", "z"]], "rows.csv")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,b\n1\n", "row 2: 1 cells, but the first has 2"),
        (b"", "no row"),
        (b"\xff", "not UTF-8"),
        (b'"a', "no CSV"),
    ],
)
def test_csv_that_is_none_is_refused(in_folder, content, said):
    (in_folder / "rows.csv").write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_given("rows.csv")


def test_files_that_cannot_be_are_named(in_folder):
    (in_folder / "photo.png").write_bytes(b"x")
    for text, said in (
        ("missing.csv", "no file missing.csv"),
        ("@missing.csv", "cannot be read"),
        ("photo.png", "one of .json"),
    ):
        with pytest.raises(DataError, match=said):
            read_given(text)


def test_too_much_is_refused_with_what_to_do_instead(in_folder, monkeypatch):
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 10)
    (in_folder / "rows.csv").write_text("1,2\n" * 10)
    for ask in (lambda: read_given("rows.csv"), lambda: read_given("-", read_stdin=lambda: b"[" + b" " * 10)):
        with pytest.raises(LimitError, match="headrace stream"):
            ask()


def test_standard_input_is_read_no_further_than_is_taken(monkeypatch):
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 10)
    stdin = io.TextIOWrapper(io.BytesIO(b"[1, 2]" + b" " * 100))
    monkeypatch.setattr(module.sys, "stdin", stdin)
    with pytest.raises(LimitError):
        read_given("-")
    assert stdin.buffer.tell() == 11
