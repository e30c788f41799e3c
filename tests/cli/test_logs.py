import io
import json
import logging
import sys

import pytest

from headrace.cli.logs import JsonFormatter, configure_logs


@pytest.fixture(autouse=True)
def logs_as_they_were():
    logger = logging.getLogger("headrace")
    before = (logger.handlers, logger.level, logger.propagate)
    yield
    logger.handlers, logger.level, logger.propagate = before


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
