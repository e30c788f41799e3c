"""Whole runs over the record formats: predictions in order, joined with their input, and failures."""

import io
import json
import tarfile

import numpy as np
import pytest

import headrace
from formats.framed_files import recordio, tfrecord
from formats.proto_messages import example, record


class Total(headrace.Model):
    inputs = (headrace.TensorSpec("x", "FP32", (-1, 2)),)

    def predict(self, x):
        return {"y": x.sum(axis=1)}


class Length(headrace.Model):
    inputs = (headrace.TensorSpec("t", "BYTES", (-1,)),)

    def predict(self, t):
        return {"y": np.array([len(value) for value in t])}


def run(folder, name, data, model, **read):
    (folder / name).write_bytes(data)
    settings = headrace.StreamSettings(
        read=headrace.ReadOptions(**read), output=headrace.OutputSettings(format="jsonl", join="input")
    )
    output = folder / "out"
    report = headrace.run_sync(str(folder / name), model=model, output=str(output), settings=settings)
    lines = [
        json.loads(line)
        for path in sorted(output.glob("part-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    rows = [line for line in lines if "reason" not in line]
    failed = [line for line in lines if "reason" in line]
    assert report.rows_out == len(rows)
    return rows, failed


def json_tar():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as out:
        for i in range(3):
            text = json.dumps({"x": [1, i]}, indent=1).encode()
            info = tarfile.TarInfo(f"{i}.json")
            info.size = len(text)
            out.addfile(info, io.BytesIO(text))
    return file.getvalue()


def test_json_member_is_one_record(tmp_path):
    rows, failed = run(tmp_path, "a.tar", json_tar(), Total)
    assert rows == [{"input": {"x": [1, i]}, "y": 1.0 + i} for i in range(3)]
    assert failed == []


def test_lines_reach_the_model_unchanged(tmp_path):
    rows, failed = run(tmp_path, "a.log", b'one, "two\n\nthr\xffee\r\nfour', Length, format="line")
    assert rows == [{"input": 'one, "two', "y": 9}, {"input": "four", "y": 4}]
    assert [(f["record"], f["line"], f["byte"], f["kind"]) for f in failed] == [(1, 3, 11, "decode")]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.rec", recordio([*(record(values=("float32_tensor", [i, 1])) for i in range(5)), b"junk"])),
        ("a.tfrecord", tfrecord([*(example(x=("float_list", [i, 1])) for i in range(5)), b"junk"])),
    ],
)
def test_protobuf_messages_become_numbers(tmp_path, name, data):
    rows, failed = run(tmp_path, name, data, Total)
    assert [row["y"] for row in rows] == [1, 2, 3, 4, 5]
    assert [(f["record"], f["kind"], f["raw"]) for f in failed] == [(5, "decode", "junk")]


def test_complete_records_are_predicted_before_an_early_end_is_reported(tmp_path):
    data = tfrecord([b"ab", b"\xff\n"])
    rows, failed = run(tmp_path, "a.tfrecord", data + b"xx", Length)
    assert rows == [{"input": "ab", "y": 2}, {"input_base64": "/wo=", "y": 2}]
    ((byte, kind, reason),) = [(f["byte"], f["kind"], f["reason"]) for f in failed]
    assert (byte, kind) == (len(data), "object")
    assert f"ends early, at byte {len(data) + 2}" in reason
