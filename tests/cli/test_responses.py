"""Printed responses are readable, complete on request, and harmless to a terminal."""

import json

import numpy as np
import pytest

from cases import for_each
from headrace.cli.responses import StreamPrinter, print_response, printable, save_response
from headrace.core.errors import ConfigError
from headrace.core.tensor import InferResponse, Tensor


def response(**outputs):
    arrays = {
        n: np.array(v, object) if np.ndim(v) and isinstance(v[0], str | bytes) else np.asarray(v)
        for n, v in outputs.items()
    }
    return InferResponse(tuple(Tensor(n, a) for n, a in arrays.items()), "m", "1")


def lines(capsys):
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_table_has_one_line_per_row(capsys):
    print_response(
        response(label=["yes", "no"], p=np.array([[0.25, 0.75], [1 / 3, 2]], np.float32)), json_lines=False
    )
    assert lines(capsys) == [
        ["row", "label", "p[0]", "p[1]"],
        ["0", "yes", "0.25", "0.75"],
        ["1", "no", "0.333333", "2"],
    ]


def test_value_without_axes_is_one_line(capsys):
    print_response(response(loss=np.array(0.5, np.float32), p=np.array([1, 2])), json_lines=False)
    assert lines(capsys) == [["row", "loss", "p"], ["0", "0.5", "1"], ["1", "2"]]


def test_wide_and_long_outputs_are_abridged(capsys):
    print_response(response(v=np.arange(25 * 384, dtype=np.float32).reshape(25, 384)), json_lines=False)
    out, err = capsys.readouterr()
    assert "[0, 1, 2, …, 381, 382, 383] (384 values)" in out
    assert len(out.splitlines()) == 21
    assert "5 more rows" in err


def test_single_text_is_printed_unchanged(capsys):
    print_response(response(text=[b"a\n[red]b[/red]"]), json_lines=False)
    assert capsys.readouterr().out == "a\n[red]b[/red]\n"


def test_markup_and_control_characters_are_inert(capsys):
    assert printable("a\x1b[31mb\r\nc\td\x07") == "a�[31mb\nc\td�"
    print_response(response(text=["[bold]x", "\x1b[2J"]), json_lines=False)
    out = capsys.readouterr().out
    assert "[bold]x" in out
    assert "\x1b" not in out


def test_json_is_the_protocol_document_with_infinity_as_text(capsys):
    print_response(response(y=np.array([1.5], np.float32)), json_lines=True)
    print_response(response(y=np.array([np.inf, -np.inf, 1])), json_lines=True)
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["outputs"] == [{"name": "y", "shape": [1], "datatype": "FP32", "data": [1.5]}]
    assert second["outputs"][0]["data"] == ["Infinity", "-Infinity", 1]


def test_streamed_texts_continue_the_line_and_other_items_have_lines(capsys):
    display = StreamPrinter(json_lines=False)
    for word in ("Once ", "upon\n", "a "):
        display.print_item(response(token=[word]))
    display.print_item(response(a=np.array([1]), b=np.array([0.5, 2])))
    display.print_item(response(token=["x"]))
    display.end()
    display.end()
    assert capsys.readouterr().out == "Once upon\na \na 1  b [0.5, 2]\nx\n"


def test_json_stream_has_one_line_per_item(capsys):
    display = StreamPrinter(json_lines=True)
    for word in ("a", "b"):
        display.print_item(response(token=[word]))
    display.end()
    items = [json.loads(line)["outputs"][0]["data"] for line in capsys.readouterr().out.splitlines()]
    assert items == [["a"], ["b"]]


def test_outputs_are_saved_in_each_file_type(tmp_path):
    both = response(label=["é", "b"], p=np.array([[0.5], [1.5]], np.float32))
    save_response(both, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as saved:
        assert saved["label"].tolist() == ["é", "b"]
        assert (saved["p"].dtype, saved["p"].tolist()) == (np.float32, [[0.5], [1.5]])
    save_response(response(p=np.arange(3)), tmp_path / "out.npy")
    assert np.load(tmp_path / "out.npy").tolist() == [0, 1, 2]
    save_response(both, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["model_name"] == "m"


@for_each(
    ("name", "message"),
    [
        ("out.txt", "use .npz, .npy or .json"),
        ("out.npy", "outputs are label, p"),
        ("missing/out.npz", "cannot be written"),
    ],
)
def test_unsupported_saves_are_refused(tmp_path, name, message):
    with pytest.raises(ConfigError, match=message):
        save_response(response(label=["a"], p=[1]), tmp_path / name)
