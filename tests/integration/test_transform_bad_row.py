"""One bad row of very many is reported with record, line and byte; the others keep their order."""

from pathlib import Path

import numpy as np
import pytest

import levels
from integration.command import headrace
from integration.transform_process import failed, leftovers

MANY = levels.by_level(100_000, 100_000, 200_000)
MOST = levels.by_level(300_000, 300_000, 1_000_000)

MODEL = """
from headrace import Model, TensorSpec

class First(Model):
    max_batch_rows = 16_384
    inputs = (TensorSpec("x", "FP64", (-1, 2)),)

    def predict(self, x):
        return x[:, 0]
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "first.py"
    path.write_text(MODEL)
    return str(path)


def numbers(count: int) -> list[bytes]:
    """Return rows of different lengths: the row's number, and a small one."""
    return [b"%d,%d" % (row, row * row % 1_000) for row in range(count)]


def quoted(count: int) -> list[bytes]:
    """Return the same rows with a name in front, quoted with newlines here and there."""
    names = [b"a", b'"b\nc"', b'"""d"",\r\n\n"', b"", b'5" disk', "日本".encode(), b'""']
    return [names[row % 7] + b"," + text for row, text in enumerate(numbers(count))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "end", "workers", "count"),
    [
        pytest.param("numbers", b"\n", "1", MANY, id="numbers"),
        pytest.param("numbers", b"\r\n", "2", MANY, id="numbers, processes"),
        pytest.param("quoted", b"\r\n", "1", MANY, id="quoted"),
        pytest.param("quoted", b"\n", "2", MOST, id="most, quoted, processes"),
    ],
)
def test_one_bad_row_of_very_many_is_reported_exactly(  # noqa: PLR0917
    tmp_path, model, workers, kind, end, count
):
    records = numbers(count) if kind == "numbers" else quoted(count)
    at = count * 7 // 9
    bad = records[at].replace(b"%d" % at, b"%done" % (at // 1_000))
    records[at] = bad
    source = tmp_path / "in"
    source.mkdir()
    (source / "rows.csv").write_bytes(end.join(records) + end)
    (source / "small.csv").write_bytes((b"a," if kind == "quoted" else b"") + b"5,6\n")

    done = headrace(
        "transform", f"{source}/", tmp_path / "out", "--model", model, "--task-bytes", str(count), "--json",
        "--workers", workers, *(["--input-filter", "$[1:]"] if kind == "quoted" else []),
    )  # fmt: skip
    assert done.code == 3, done.out[-1_000:] + done.err
    report = done.report
    assert (report["records_in"], report["rows_out"], report["rows_failed"]) == (count + 1, count, 1)
    assert report["tasks"] > 8
    (line,) = failed(tmp_path / "out/rows.csv.out.failed")
    before = end.join([*records[:at], b""])
    assert (line["object"], line["record"]) == (f"{source}/rows.csv", at)
    assert line["line"] == 1 + before.count(b"\n")
    assert line["byte"] == len(before)
    assert line["raw"].encode() == bad
    assert "one" in line["reason"]
    assert line["output_row"] == at

    found = (tmp_path / "out/rows.csv.out").read_bytes()
    # The place of the missing prediction: retrying the failed records needs it.
    assert found[: line["output_byte"]].count(b"\n") == at
    assert found[: line["output_byte"]].endswith(b"\n%d.0\n" % (at - 1))
    rows = np.array(found.split(), np.float64)
    assert np.array_equal(rows, np.delete(np.arange(count, dtype=np.float64), at))
    assert leftovers(tmp_path / "out") == []
