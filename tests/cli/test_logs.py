import io
import json
import logging
import sys
import warnings

import pytest

from headrace.cli.logs import JsonFormatter, TextFormatter, configure_logs, configure_server_logs


def record(message: str, *args, **more) -> dict:
    made = logging.getLogger("headrace.x").makeRecord(
        "headrace.x", logging.WARNING, "f", 1, message, args, more.pop("exc_info", None), extra=more
    )
    line = JsonFormatter().format(made)
    assert "\n" not in line
    return json.loads(line)


def test_a_line_has_time_level_logger_message_and_extras():
    said = record("part %d", 3, part=3, uri={"s3"})
    assert said.pop("time").endswith("+00:00")
    assert said == {
        "level": "warning",
        "logger": "headrace.x",
        "message": "part 3",
        "part": 3,
        "uri": "{'s3'}",
    }


def test_private_marks_of_libraries_are_left_out():
    """Ray puts one on every record of a process that has imported it."""
    assert "_of_a_library" not in record("part", _of_a_library=1, part=3)


def test_an_exception_stays_in_its_line():
    try:
        raise ValueError("no")
    except ValueError:
        said = record("broke", exc_info=sys.exc_info())
    assert said["exception"].endswith("ValueError: no")


@pytest.mark.parametrize(
    ("verbosity", "levels"), [(1, ["info", "warning"]), (5, ["debug", "info", "warning"])]
)
def test_more_is_said_the_more_it_is_asked_for(verbosity, levels, capsys):
    configure_logs(verbosity)
    configure_logs(verbosity)  # once more must not say everything twice
    for level in ("debug", "info", "warning"):
        getattr(logging.getLogger("headrace.pipeline"), level)("hello")
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in said] == levels


def test_warnings_alone_are_plain_and_go_where_standard_error_is_now(monkeypatch):
    configure_logs(0)
    now = io.StringIO()
    monkeypatch.setattr(sys, "stderr", now)
    log = logging.getLogger("headrace.client")
    log.info("asking again")
    log.warning("endpoint failed, %s", "retrying")
    assert now.getvalue() == "warning: endpoint failed, retrying\n"


def text_line(message: str, *args, **more) -> str:
    made = logging.getLogger("headrace.x").makeRecord(
        "headrace.x", logging.WARNING, "f", 1, message, args, more.pop("exc_info", None), extra=more
    )
    return TextFormatter().format(made)


def test_extras_cannot_take_the_place_of_what_every_line_has():
    said = record("hello", time="never", level="none", logger="other")
    assert (said["level"], said["logger"]) == ("warning", "headrace.x")
    assert said["time"] != "never"


def test_text_is_one_line_whatever_is_in_it():
    line = text_line("two\nlines", path="/a b\n", rows=3, why='say "no"', nothing="")
    assert "\n" not in line
    time, rest = line.split(" ", 1)
    assert time.endswith("+00:00")
    assert rest == ('warning headrace.x: two\\nlines path="/a b\\n" rows=3 why="say \\"no\\"" nothing=""')


def test_a_trace_follows_its_line_of_text():
    try:
        raise ValueError("no")
    except ValueError:
        said = text_line("broke", exc_info=sys.exc_info())
    assert said.splitlines()[0].endswith("headrace.x: broke")
    assert said.endswith("ValueError: no")


@pytest.mark.parametrize(
    ("log_format", "verbosity", "access", "said"),
    [
        ("json", 0, False, ["library warning", "info", "python"]),
        ("json", 1, False, ["library warning", "debug", "info", "python"]),
        ("text", 0, True, ["library warning", "info", "access", "python"]),
    ],
)
def test_a_server_logs_everything_of_its_process(capsys, log_format, verbosity, access, said):
    configure_server_logs(log_format, verbosity, access=access)
    configure_server_logs(log_format, verbosity, access=access)  # once more must not say everything twice
    logging.getLogger("uvicorn.error").info("library info")
    logging.getLogger("uvicorn.error").warning("library warning")
    logging.getLogger("headrace.server").debug("debug")
    logging.getLogger("headrace.server").info("info")
    logging.getLogger("headrace.access").info("access")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("python", stacklevel=1)
    lines = capsys.readouterr().err.splitlines()
    if log_format == "json":
        assert all(wanted in json.loads(line)["message"] for wanted, line in zip(said, lines, strict=True))
    else:
        assert all(wanted in line for wanted, line in zip(said, lines, strict=True))
