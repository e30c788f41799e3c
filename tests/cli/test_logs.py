import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator

import click

from cases import for_each
from headrace.cli.logs import JsonFormatter, TextFormatter, configure_logs, configure_server_logs
from headrace.cli.main import load_all


def json_line(message: str, *args, **more) -> dict:
    made = logging.getLogger("headrace.x").makeRecord(
        "headrace.x", logging.WARNING, "f", 1, message, args, more.pop("exc_info", None), extra=more
    )
    line = JsonFormatter().format(made)
    assert "\n" not in line
    return json.loads(line)


def test_json_line_has_time_level_logger_message_and_extras():
    logged = json_line("part %d", 3, part=3, uri={"s3"})
    assert logged.pop("time").endswith("+00:00")
    assert logged == {
        "level": "warning",
        "logger": "headrace.x",
        "message": "part 3",
        "part": 3,
        "uri": "{'s3'}",
    }


def test_private_attributes_of_libraries_are_omitted():
    """Ray adds one to every record of a process that has imported Ray."""
    assert "_of_a_library" not in json_line("part", _of_a_library=1, part=3)


def test_exception_stays_on_its_json_line():
    try:
        raise ValueError("no")
    except ValueError:
        logged = json_line("broke", exc_info=sys.exc_info())
    assert logged["exception"].endswith("ValueError: no")


@for_each(("verbosity", "levels"), [(1, ["info", "warning"]), (5, ["debug", "info", "warning"])])
def test_verbosity_selects_the_levels(verbosity, levels, capsys):
    configure_logs("json", verbosity)
    configure_logs("json", verbosity)  # A second call must not add a second handler.
    for level in ("debug", "info", "warning"):
        getattr(logging.getLogger("headrace.runs"), level)("hello")
    logged = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in logged] == levels


def test_default_logs_are_warnings_on_the_current_standard_error(monkeypatch):
    configure_logs("text")
    now = io.StringIO()
    monkeypatch.setattr(sys, "stderr", now)
    log = logging.getLogger("headrace.client")
    log.info("asking again")
    try:
        raise ValueError("no")
    except ValueError:
        log.warning("endpoint failed, %s", "retrying", exc_info=True)
    time, line = now.getvalue().split(" ", 1)
    assert line == "warning headrace.client: endpoint failed, retrying\n", "without a traceback"
    assert time.endswith("+00:00")


def text_line(message: str, *args, **more) -> str:
    made = logging.getLogger("headrace.x").makeRecord(
        "headrace.x", logging.WARNING, "f", 1, message, args, more.pop("exc_info", None), extra=more
    )
    return TextFormatter().format(made)


def test_extras_do_not_replace_standard_fields():
    logged = json_line("hello", time="never", level="none", logger="other")
    assert (logged["level"], logged["logger"]) == ("warning", "headrace.x")
    assert logged["time"] != "never"


def test_text_line_escapes_its_values():
    line = text_line("two\nlines", path="/a b\n", rows=3, why='say "no"', nothing="")
    assert "\n" not in line
    time, rest = line.split(" ", 1)
    assert time.endswith("+00:00")
    assert rest == ('warning headrace.x: two\\nlines path="/a b\\n" rows=3 why="say \\"no\\"" nothing=""')


def test_traceback_follows_its_text_line():
    try:
        raise ValueError("no")
    except ValueError:
        logged = text_line("broke", exc_info=sys.exc_info())
    assert logged.splitlines()[0].endswith("headrace.x: broke")
    assert logged.endswith("ValueError: no")


def test_traceback_of_a_model_follows_its_text_line():
    """It may come from another process, so it is text."""
    logged = text_line("broke", model="m", traceback="Traceback\n  File\nValueError")
    first, *more = logged.splitlines()
    assert first.endswith("headrace.x: broke model=m")
    assert more == ["Traceback", "  File", "ValueError"]
    assert json_line("broke", traceback="Traceback\n")["traceback"] == "Traceback\n"
    quiet = logging.makeLogRecord({"msg": "broke", "levelname": "WARNING", "traceback": "Traceback"})
    assert "Traceback" not in TextFormatter(tracebacks=False).format(quiet)


@for_each(
    ("log_format", "verbosity", "access", "logged"),
    [
        ("json", 0, False, ["library warning", "info", "python"]),
        ("json", 1, False, ["library warning", "debug", "info", "python"]),
        ("text", 0, True, ["library warning", "info", "access", "python"]),
    ],
)
def test_server_logs_all_loggers_of_its_process(capsys, log_format, verbosity, access, logged):
    configure_server_logs(log_format, verbosity, access=access)
    configure_server_logs(
        log_format, verbosity, access=access
    )  # A second call must not add a second handler.
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
        assert all(
            expected in json.loads(line)["message"] for expected, line in zip(logged, lines, strict=True)
        )
    else:
        assert all(expected in line for expected, line in zip(logged, lines, strict=True))


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield path + name, command


def test_commands_that_log_have_the_same_format_option():
    found = {
        path: {p.name: p for p in command.params if p.name in ("log_format", "verbose")}
        for path, command in commands(load_all())
    }
    logging_commands = {path: options for path, options in found.items() if options}
    assert set(logging_commands) == {
        *(f"{run} {command}" for run in ("stream", "transform") for command in ("run", "retry-failed")),
        *("serve", "up", "work", "scale run", "inspect"),
    }
    formats = [options["log_format"].to_info_dict() for options in logging_commands.values()]
    assert formats == formats[:1] * len(formats)
    assert (formats[0]["default"], list(formats[0]["type"]["choices"])) == ("text", ["text", "json"])
    assert all("verbose" in options for options in logging_commands.values())
