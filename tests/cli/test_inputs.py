"""Parsing of ``--input`` values, and the errors for text that is not an input."""

import io

import numpy as np
import pytest

from cases import for_each
from headrace.cli import request_builder as module
from headrace.cli.request_builder import CsvTable, InputValue, JsonValue, RequestDocument, read_input
from headrace.core.errors import DataError, LimitError

REQUEST = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@for_each(
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
def test_literals_are_parsed_as_json(text, name, value):
    if value is None and text != "null":
        with pytest.raises(DataError):
            read_input(text)
        return
    assert read_input(text) == InputValue(name, JsonValue(value))


@for_each("text", ["hello", "[1, 2", "", "x=", "a b=1"])
def test_text_that_is_no_input_is_refused_with_the_alternatives(text):
    with pytest.raises(DataError, match=r"--text"):
        read_input(text)


def test_whole_request_is_recognised(folder):
    assert read_input(REQUEST.decode()) == InputValue(None, RequestDocument(REQUEST))
    (folder / "request.json").write_bytes(REQUEST)
    assert (
        read_input("request.json")
        == read_input("@request.json")
        == InputValue(None, RequestDocument(REQUEST))
    )
    assert read_input("-", read_stdin=lambda: REQUEST) == InputValue(None, RequestDocument(REQUEST))
    assert read_input('{"inputs": [1, 2]}').value == JsonValue({"inputs": [1, 2]})


def test_array_files_are_read_without_pickle(folder):
    np.save("x.npy", np.arange(3))
    np.savez("several.npz", a=np.ones(2), b=np.zeros((1, 2)))
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    assert read_input("y=x.npy").value.tolist() == [0, 1, 2]
    assert {n: v.shape for n, v in read_input("several.npz").value.items()} == {"a": (2,), "b": (1, 2)}
    with pytest.raises(DataError, match=r"objects\.npy"):
        read_input("objects.npy")
    (folder / "broken.npz").write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match=r"broken\.npz is not a valid \.npz"):
        read_input("broken.npz")


def test_csv_is_read_as_cells(folder):
    (folder / "rows.csv").write_bytes('\ufeffa,b\r\n1,"x, y"\r\n\r\n2,z\r\n'.encode())
    assert read_input("rows.csv").value == CsvTable([["a", "b"], ["1", "x, y"], ["2", "z"]], "rows.csv")


@for_each(
    ("content", "message"),
    [
        (b"a,b\n1\n", "row 2: 1 cells, but the first row has 2"),
        (b"", "contains no rows"),
        (b"\xff", "not UTF-8"),
        (b'"a', "is not valid CSV"),
    ],
)
def test_invalid_csv_is_refused(folder, content, message):
    (folder / "rows.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_input("rows.csv")


def test_unusable_files_are_named(folder):
    (folder / "photo.png").write_bytes(b"x")
    for text, message in (
        ("missing.csv", "missing.csv: no such file"),
        ("@missing.csv", "cannot be read"),
        ("photo.png", "use one of .json"),
    ):
        with pytest.raises(DataError, match=message):
            read_input(text)


def test_large_input_is_refused_with_an_alternative(folder, monkeypatch):
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 10)
    (folder / "rows.csv").write_text("1,2\n" * 10)
    for read in (
        lambda: read_input("rows.csv"),
        lambda: read_input("-", read_stdin=lambda: b"[" + b" " * 10),
    ):
        with pytest.raises(LimitError, match="headrace stream"):
            read()


def test_standard_input_is_read_up_to_the_limit(monkeypatch):
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 10)
    stdin = io.TextIOWrapper(io.BytesIO(b"[1, 2]" + b" " * 100))
    monkeypatch.setattr(module.sys, "stdin", stdin)
    with pytest.raises(LimitError):
        read_input("-")
    assert stdin.buffer.tell() == 11
