"""Bad input: one clear line names the place, the error and the remedy, and no other record is lost."""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from base64 import b64decode
from pathlib import Path

import pytest

from cases import for_each
from integration.command import DOUBLE, CommandResult, failures, headrace, leftovers, predictions

OUT = Path("out")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for each test, with a model in it."""
    monkeypatch.chdir(tmp_path)
    Path("double.py").write_text(DOUBLE)
    return tmp_path


def rows(count: int, start: int = 0) -> bytes:
    return b"".join(b"%d,1\n" % i for i in range(start, start + count))


def doubled(values: range) -> bytes:
    return b"".join(b"%.1f\n" % (2.0 * i) for i in values)


def put(name: str, data: bytes) -> str:
    Path(name).write_bytes(data)
    return name


def make_tar(name: str, members: dict[str, bytes]) -> str:
    with tarfile.open(name, "w") as archive:
        for member, data in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return name


def score(*args: str, model: str = "double.py", output: str | Path = OUT, environ=None) -> CommandResult:
    return headrace("stream", *args, "--model", model, "--output", output, environ=environ)


def broken(done: CommandResult) -> str:
    """Check that a run ended before its first prediction and left no file. Return its error."""
    assert done.code == 1
    assert [p for p in OUT.rglob("*") if p.is_file()] == []
    return done.error


# Errors of the source


def test_missing_object_is_named():
    assert broken(score("no/such.csv")) == "no/such.csv: no such file"


def test_prefix_without_objects_is_named():
    assert broken(score("nothing/")) == (
        "nothing/: no object has this prefix; check the spelling and the bucket"
    )


def test_unknown_scheme_lists_the_known_ones():
    assert broken(score("ftp://host/x.csv")).startswith("ftp://host/x.csv: unknown scheme ftp://: use s3://")


@pytest.mark.s3
def test_missing_object_and_missing_bucket_are_different_errors(s3_server):
    bucket = s3_server.bucket()
    missing = broken(score(f"s3://{bucket}/x.csv", environ=s3_server.environ))
    assert missing == f"s3://{bucket}/x.csv: no such object"
    no_bucket = broken(score("s3://no-such-bucket/x.csv", environ=s3_server.environ))
    assert no_bucket.startswith("s3://no-such-bucket: no such bucket")
    no_output = broken(
        score(put("a.csv", rows(1)), output="s3://no-such-bucket/o/", environ=s3_server.environ)
    )
    assert no_output.startswith("s3://no-such-bucket: no such bucket")


@pytest.mark.s3
@pytest.mark.parametrize("denied", ["source", "output"])
def test_denied_credentials_name_the_uri(s3_server, denied):
    put("a.csv", rows(1))
    paths = {"source": "a.csv", "output": str(OUT)} | {denied: "s3://ready/x.csv"}
    done = score(paths["source"], output=paths["output"], environ=s3_server.denied_environ)
    message = broken(done)
    assert "s3://ready" in message
    assert "the credentials are wrong or do not allow this" in message


def test_empty_tar_is_an_error():
    assert broken(score(make_tar("a.tar", {}))) == "a.tar: the archive holds no files"


def test_glob_without_a_match_lists_the_members():
    message = broken(score(make_tar("a.tar", {"x.csv": rows(1)}), "--members", "*.tsv"))
    assert message == "a.tar: no member matches *.tsv; the members are x.csv"


def test_name_without_a_format_asks_for_one():
    assert broken(score(put("data.bin", rows(1)))).startswith(
        "data.bin: the name does not determine the format; choose it with --format"
    )


# Errors of bytes: good records are predicted, and the others are reported


def test_gzip_that_ends_early_gives_all_complete_records():
    compressed = gzip.compress(rows(5000))
    put("a.csv.gz", compressed[: len(compressed) // 2])
    done = score("a.csv.gz", "--json")
    assert done.code == 1
    whole = done.report["rows_out"]
    assert 1000 < whole < 5000
    assert predictions(OUT) == doubled(range(whole))
    (failure,) = failures(OUT)
    assert (failure["object"], failure["kind"], failure["record"]) == ("a.csv.gz", "object", whole)
    # The position of the first missing record.
    assert (failure["line"], failure["byte"]) == (whole + 1, len(rows(whole)))
    assert "the gzip stream ends early" in failure["reason"]
    assert done.report["objects_broken"] == 1
    assert leftovers(OUT) == []


def test_member_that_is_not_csv_fails_alone():
    make_tar("a.tar", {"a.csv": rows(5), "b.csv": b"\x89PNG\r\n\x1a\n" + bytes(3000), "c.csv": rows(4, 5)})
    done = score("a.tar", "--json")
    assert done.code == 1
    assert predictions(OUT) == doubled(range(9))
    (failure,) = failures(OUT)
    assert (failure["object"], failure["member"], failure["kind"]) == ("a.tar", "b.csv", "object")
    assert (failure["record"], failure["line"], failure["byte"], failure["member_byte"]) == (0, 1, 0, 1024)
    assert failure["reason"].startswith("not CSV text: NUL byte at offset 8; use --members")
    assert failure["raw_base64"].startswith("iVBORw0KGgo")
    assert (done.report["records_in"], done.report["objects_broken"]) == (9, 1)


def test_broken_member_reports_its_position(folder):
    bad = gzip.compress(rows(3000))
    make_tar("a.tar", {"a.csv.gz": bad[: len(bad) // 2], "b.csv": rows(2)})
    done = score("a.tar", "--json")
    assert done.code == 1
    whole = done.report["rows_out"] - 2
    (failure,) = failures(OUT)
    assert (failure["member"], failure["record"]) == ("a.csv.gz", whole)
    assert (failure["line"], failure["byte"]) == (whole + 1, len(rows(whole)))


def test_ragged_or_textual_rows_fail_alone():
    make_tar("a.tar", {"in/a.csv": b"0,1\n1\n2,oops\n3,1\n4,1,5\n\xff,1\n"})
    done = score("a.tar", "--json")
    assert done.code == 3
    assert predictions(OUT) == b"0.0\n6.0\n"
    found = failures(OUT)
    assert [(f["record"], f["line"], f["byte"], f["kind"]) for f in found] == [
        (1, 2, 4, "decode"),
        (2, 3, 6, "decode"),
        (4, 5, 17, "decode"),
        (5, 6, 23, "decode"),
    ]
    assert [f["reason"] for f in found] == [
        "has 1 column, 2 expected",
        'column 1: "oops" is not a number',
        "has 3 columns, 2 expected",
        "column 0: not UTF-8",
    ]
    assert [f.get("raw") for f in found] == ["1", "2,oops", "4,1,5", None]
    assert b64decode(found[3]["raw_base64"]) == b"\xff,1"
    assert {f["object"] for f in found} == {"a.tar"}
    assert {f["member"] for f in found} == {"in/a.csv"}
    assert (done.report["records_in"], done.report["rows_failed"]) == (6, 4)


def test_giant_line_is_cut_and_fails_alone():
    put("a.csv", b"0,1\n" + b"7" * 300_000 + b",1\n2,1\n")
    done = score("a.csv", "--record-bytes-max", "100k", "--json")
    assert done.code == 3
    assert predictions(OUT) == b"0.0\n4.0\n"
    (failure,) = failures(OUT)
    assert failure["reason"] == "longer than record_bytes_max=102400"
    assert (failure["record"], failure["line"], failure["byte"]) == (1, 2, 4)
    assert failure["raw"] == "7" * 65536
    assert failure["raw_truncated"] is True


def test_giant_line_needs_no_memory():
    """A file of 256 MiB without a line end, in a process that reports its own peak."""
    with Path("a.csv").open("wb") as file:
        file.writelines(b"7" * (1 << 20) for _ in range(256))
        file.write(b"\n1,1\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "headrace",
            "stream",
            "a.csv",
            "--model",
            "double.py",
            "--output",
            "out",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    Path("a.csv").unlink()
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["rows_out"], report["rows_failed"]) == (1, 1)
    assert report["peak_memory_mb"] < 200
    (failure,) = failures(OUT)
    assert failure["reason"] == "longer than record_bytes_max=16777216"


# Errors of the model


def test_model_of_another_width_names_both_widths():
    message = broken(score(put("a.csv", b"0,1,2\n3,4,5\n")))
    assert message == (
        "model double: input 'x' takes 2 numbers per record, but the records from a.csv, record 0, line 1, "
        "byte 0 on have 3 columns: choose 2 of them with --columns, or another --delimiter"
    )


def test_another_number_of_columns_names_both():
    message = broken(score(put("a.csv", b"0,1,2\n"), "--columns", "0,1,2"))
    assert message == "model double: input 'x' takes 2 numbers per record, but --columns names 3"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--header", "names", "--columns", "a,zz"], 'there is no column "zz"; the columns are: a, b, c'),
        (["--columns", "0,7"], "there is no column 7: records have 3 columns, counted from 0"),
        (["--header", "none", "--columns", "a,b"], 'column "a" is selected by name, but no header was read'),
    ],
)
def test_unknown_columns_are_named_with_the_known_ones(more, why):
    assert broken(score(put("a.csv", b"a,b,c\n0,1,2\n"), *more)).startswith(why)


def test_model_that_loses_a_row_ends_the_run_and_keeps_the_rows_before():
    put("a.csv", rows(20))
    Path("loses.py").write_text(
        DOUBLE.replace("x[:, 0] * 2", "x[:, 0] * 2 if 8 not in x[:, 0] else x[1:, 0]")
    )
    done = score("a.csv", model="loses.py")
    assert done.code == 1
    assert done.error.startswith("model loses: request batch-2: output 'output' has 3 rows for 4 rows")
    assert predictions(OUT) == b""  # no part was full yet
    Path("loses.py").write_text(DOUBLE)
    assert "another run" in score("a.csv", "--resume", model="loses.py").error


def test_model_that_raises_fails_only_the_bad_rows():
    put("a.csv", rows(9))
    Path("picky.py").write_text(
        DOUBLE.replace("return", "assert 5 not in x[:, 0], 'five [is] bad'\n        return")
    )
    done = score("a.csv", "--json", model="picky.py")
    assert done.code == 3
    (failure,) = failures(OUT)
    assert (failure["record"], failure["line"], failure["byte"], failure["raw"]) == (5, 6, 20, "5,1")
    assert (failure["kind"], failure["reason"]) == (
        "model",
        "AssertionError: five [is] bad (picky.py:9 in predict)",
    )
    assert predictions(OUT) == doubled(range(5)) + doubled(range(6, 9))


@pytest.mark.parametrize("name", ["gone.py", "gone.onnx"])
def test_missing_model_file_is_named(name):
    assert broken(score(put("a.csv", rows(1)), model=name)) == (
        f"model {name}: its file cannot be read: No such file or directory"
    )


def test_model_that_cannot_be_imported_names_its_line():
    put("bad.py", b"import headrace\nx = 1 / 0\n")
    assert broken(score(put("a.csv", rows(1)), model="bad.py")) == (
        "model bad.py: it cannot be imported: bad.py:2: ZeroDivisionError: division by zero"
    )


def test_error_of_several_lines_is_printed_in_one():
    put("bad.py", b"raise ValueError('first [-1, 4]\\n  second [bold]')\n")
    assert broken(score(put("a.csv", rows(1)), model="bad.py")) == (
        "model bad.py: it cannot be imported: bad.py:1: ValueError: first [-1, 4] second [bold]"
    )


# Errors of the output


def test_existing_output_is_refused_and_unchanged():
    put("a.csv", rows(5))
    assert score("a.csv").code == 0
    before = {p: p.read_bytes() for p in OUT.rglob("*") if p.is_file()}
    again = score("a.csv")
    assert again.code == 1
    assert again.error.startswith("out/ already holds the output of a run: pass --resume")
    assert {p: p.read_bytes() for p in OUT.rglob("*") if p.is_file()} == before
    assert score("a.csv", "--resume").code == 0
    put("a.csv", rows(2))
    assert score("a.csv", "--overwrite").code == 0
    assert predictions(OUT) == doubled(range(2))


def test_output_that_cannot_be_written_is_named():
    put("file", b"")
    done = score(put("a.csv", rows(1)), output="file/out")
    assert done.code == 1
    assert done.error.startswith("file/out")


# Usage errors: no work is begun, and the exit status is 2


@for_each(
    ("args", "why"),
    [
        (["a.csv", "--output", "out"], "give either --model or --endpoint"),
        (
            ["a.csv", "--output", "out", "--model", "double.py", "--endpoint", "http://h"],
            "give either --model or --endpoint",
        ),
        (["a.csv", "--model", "double.py"], "Missing option '--output'"),
        (["--output", "out", "--model", "double.py"], "Missing argument 'SOURCE...'"),
        (["a.csv", "--output", "out", "--model", "double.py", "--columns", "5-3"], "5-3 is not a range"),
        (["a.csv", "--output", "out", "--model", "double.py", "--columns", "a,1"], "name all columns"),
        (["a.csv", "--output", "out", "--model", "double.py", "--columns", "a,,b"], "an empty column name"),
        (
            ["a.csv", "--output", "out", "--model", "double.py", "--part-bytes-max", "inf"],
            "'inf' is not a size",
        ),
        (
            ["a.csv", "--output", "out", "--model", "double.py", "--part-bytes-max", "-5"],
            "'-5' is not a size",
        ),
        (["a.csv", "--output", "out", "--model", "double.py", "--poll-s", "0"], "--poll-s"),
        (["a.csv", "--output", "out", "--model", "double.py", "--instances", "0"], "--instances"),
        (
            ["a.csv", "--output", "out", "--model", "double.py", "--resume", "--overwrite"],
            "cannot be combined",
        ),
        (["", "--output", "out", "--model", "double.py"], "SOURCE is empty"),
        (
            ["a.csv", "--output", "out", "--model", "double.py", "--in-flight-max", "9"],
            "--in-flight-max requires --endpoint",
        ),
        (["a.csv", "--output", "out", "--model", "double.py", "--poll-s", "9"], "--poll-s requires --watch"),
        (
            ["a.csv", "--output", "out", "--endpoint", "http://h/v2/models/m", "--instances", "2"],
            "--instances requires --model",
        ),
        (["a.csv", "manifest:", "--output", "out", "--model", "double.py"], "SOURCE is empty"),
        (["a.csv", "--output", "", "--model", "double.py"], "--output is empty"),
        (
            ["a.mp4", "--output", "out", "--model", "double.py", "--every-ms", "2", "--every-frames", "2"],
            "cannot be combined",
        ),
    ],
)
def test_wrong_usage_exits_with_2_and_writes_nothing(args, why):
    put("a.csv", rows(1))
    done = headrace("stream", *args)
    assert done.code == 2
    assert why in done.err
    assert not OUT.exists()


def test_errors_are_json_lines_with_json():
    done = score("gone.csv", "--json")
    assert done.code == 1
    assert done.lines[-1] == {
        "event": "error",
        "type": "NotFoundError",
        "message": "gone.csv: no such file",
        "exit_code": 1,
    }
