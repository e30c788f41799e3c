import json

from cases import for_each
from headrace.cli.commands import print_error
from headrace.cli.run_display import exit_status, print_report
from headrace.core.block import Failure, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.reports.report import Report
from headrace.runs.work import RunProgress


def report_of(**changed) -> Report:
    plain = {
        "status": "complete",
        "source": "s",
        "output": "out/",
        "model": "m",
        "records_in": 1200,
        "rows_out": 1200,
        "rows_failed": 0,
        "kind": "stream",
        "objects": 1,
        "objects_done": 1,
        "objects_with_failures": 0,
        "objects_suppressed": 0,
        "rows_suppressed": 0,
        "out_bytes": 9,
        "tasks": 0,
        "objects_broken": 0,
        "parts": 2,
        "bytes_read": 1,
        "elapsed_s": 2.0,
        "rows_per_s": 600.0,
        "cpu_s": 1.0,
        "peak_memory_mb": 50.0,
        "instance_busy_share": 0.5,
        "instance_starved_s": 0.0,
        "model_calls": 3,
        "retries": 0,
    }
    return Report(**(plain | changed))


@for_each(
    ("changed", "status"),
    [
        ({}, 0),
        ({"rows_failed": 1, "rows_out": 1199}, 3),
        ({"objects_broken": 1}, 1),
        ({"status": "drained"}, 130),
    ],
)
def test_exit_status_agrees_with_the_report(changed, status, capsys):
    report = report_of(**changed)
    assert exit_status(report) == status
    assert print_report(report, json_lines=True) == status
    (line,) = capsys.readouterr().out.splitlines()
    figures = json.loads(line)
    assert (figures["event"], figures["exit_code"], figures["records_in"]) == ("report", status, 1200)


def test_report_has_one_line_per_figure(capsys):
    print_report(
        report_of(
            output="s3://a-[long]-bucket/" + "x" * 100 + "/",
            rows_out=1199,
            rows_failed=1,
            failures={"decode: x": 1},
        ),
        json_lines=False,
    )
    out, err = capsys.readouterr()
    assert err == ""
    lines = dict(line.split("  ", 1) for line in out.splitlines())
    figures = {name.strip(): value.strip() for name, value in lines.items()}
    assert figures["predictions"] == "s3://a-[long]-bucket/" + "x" * 100 + "/ (2 parts)"
    assert figures["records in"] == "1,200 = 1,199 out + 1 failed"
    assert figures["failures"].endswith("part-*.failed.jsonl; by reason:")
    assert figures["status"] == "complete"
    assert "broken objects" not in figures


@for_each("reason", ["it ends early", "b.csv: it ends early"])
def test_report_shows_the_first_failures(reason, capsys):
    progress = RunProgress(
        first_failure=Failure(
            Position("a.csv", record=1, line=2, byte=9), FailureKind.DECODE, '"n/a" is\nno number'
        ),
        first_broken=Failure(Position("a.tar", "b.csv"), FailureKind.OBJECT, reason),
    )
    print_report(report_of(rows_failed=1, rows_out=1199, objects_broken=1), progress, json_lines=False)
    out = capsys.readouterr().out
    assert 'first failure   a.csv, record 1, line 2, byte 9: "n/a" is no number\n' in out
    assert "first broken    b.csv: it ends early\n" in out


def test_single_call_is_singular(capsys):
    print_report(report_of(model_calls=1), json_lines=False)
    assert ", 1 call\n" in capsys.readouterr().out


def test_interrupted_run_shows_how_to_continue(capsys):
    print_report(report_of(status="drained"), json_lines=False)
    assert "stopped: continue with --resume" in capsys.readouterr().out


def test_error_is_one_line_with_its_text_unchanged(capsys):
    assert print_error(ConfigError("takes [-1, 4]\n  and [bold]\tmore"), json_lines=False) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: takes [-1, 4] and [bold]\tmore\n")


def test_error_is_also_a_json_line_on_request(capsys):
    print_error(ConfigError("no\nway"), json_lines=True)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"event": "error", "type": "ConfigError", "message": "no way", "exit_code": 1}
    assert err == "error: no way\n"
