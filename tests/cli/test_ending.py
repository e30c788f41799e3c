import json

import pytest

from headrace.cli.ending import exit_status, say_error, say_report
from headrace.core.block import Failure, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.pipeline.progress import Progress
from headrace.pipeline.report import Report


def report_of(**changed) -> Report:
    plain = {
        "status": "complete", "source": "s", "output": "out/", "model": "m", "records_in": 1200, "rows_out": 1200,
        "rows_failed": 0, "objects_read": 1, "objects_broken": 0, "parts": 2, "bytes_read": 1, "elapsed_s": 2.0,
        "rows_per_s": 600.0, "cpu_s": 1.0, "peak_memory_mb": 50.0, "instance_busy_share": 0.5,
        "instance_starved_s": 0.0, "model_calls": 3, "retries": 0,
    }  # fmt: skip
    return Report(**(plain | changed))


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, 0),
        ({"rows_failed": 1, "rows_out": 1199}, 3),
        ({"objects_broken": 1}, 1),
        ({"status": "drained"}, 130),
    ],
)
def test_the_exit_status_and_what_is_said_agree(changed, code, capsys):
    report = report_of(**changed)
    assert exit_status(report) == code
    assert say_report(report, json_lines=True) == code
    (line,) = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    assert (said["event"], said["exit_code"], said["records_in"]) == ("report", code, 1200)


def test_people_are_told_what_matters_a_line_each(capsys):
    say_report(
        report_of(output="s3://a-[long]-bucket/" + "x" * 100 + "/", rows_out=1199, rows_failed=1),
        json_lines=False,
    )
    out, err = capsys.readouterr()
    assert err == ""
    lines = dict(line.split("  ", 1) for line in out.splitlines())
    said = {name.strip(): value.strip() for name, value in lines.items()}
    assert said["predictions"] == "s3://a-[long]-bucket/" + "x" * 100 + "/ (2 parts)"
    assert said["records in"] == "1,200 = 1,199 out + 1 failed"
    assert said["failures"].endswith("part-*.failed.jsonl")
    assert said["status"] == "complete"
    assert "broken objects" not in said


@pytest.mark.parametrize("why", ["it ends early", "b.csv: it ends early"])
def test_people_are_told_what_failed_first(why, capsys):
    progress = Progress(
        first_failure=Failure(
            Position("a.csv", record=1, line=2, byte=9), FailureKind.DECODE, '"n/a" is\nno number'
        ),
        first_broken=Failure(Position("a.tar", "b.csv"), FailureKind.OBJECT, why),
    )
    say_report(report_of(rows_failed=1, rows_out=1199, objects_broken=1), progress, json_lines=False)
    out = capsys.readouterr().out
    assert 'first failure   a.csv, record 1, line 2, byte 9: "n/a" is no number\n' in out
    assert "first broken    b.csv: it ends early\n" in out


def test_one_call_is_one_call(capsys):
    say_report(report_of(model_calls=1), json_lines=False)
    assert ", 1 call\n" in capsys.readouterr().out


def test_an_interrupted_run_says_how_to_go_on(capsys):
    say_report(report_of(status="drained"), json_lines=False)
    assert "stopped: go on with --resume" in capsys.readouterr().out


def test_an_error_is_one_line_as_it_was_written(capsys):
    assert say_error(ConfigError("takes [-1, 4]\n  and [bold]\tmore"), json_lines=False) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: takes [-1, 4] and [bold]\tmore\n")


def test_an_error_is_a_json_line_too_where_these_are_asked_for(capsys):
    say_error(ConfigError("no\nway"), json_lines=True)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"event": "error", "type": "ConfigError", "message": "no way", "exit_code": 1}
    assert err == "error: no way\n"
