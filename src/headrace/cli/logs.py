"""Logs on standard error.

Of a stream: with ``-v`` one JSON object a line; warnings alone, and plain, without. Of a server: always, JSON or text, and of
everything that logs in its process.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["json", "text"]

_ACCESS_LOGGER = "headrace.access"
_RESERVED = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, and whatever was passed as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in _extras(record).items() if k not in line})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """For people who watch a server: time, level, logger, message, extras as ``key=value``; a trace in lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and those of a trace."""
        extras = "".join(f" {k}={_word(v)}" for k, v in _extras(record).items())
        message = record.getMessage().replace("\n", "\\n")
        line = f"{_time(record)} {record.levelname.lower():<7} {record.name}: {message}{extras}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    # Libraries put marks of their own on every record of the process, as Ray does: private, and nothing that was logged.
    return {k: v for k, v in record.__dict__.items() if k not in _RESERVED and not k.startswith("_")}


def _word(value: Any) -> str:
    """As it is, or quoted where it would not be one word of one line."""
    text = str(value)
    return text if text and text.isprintable() and not set(text) & {" ", '"', "="} else json.dumps(text)


class PlainFormatter(logging.Formatter):
    """For people who asked for no logs: what went wrong, in one line, without the trace."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return f"{record.levelname.lower()}: {record.getMessage()}"


class _StandardError(logging.Handler):
    """Writes to whatever standard error is at that moment: a progress bar puts itself in its place, and makes room."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


def configure_logs(verbosity: int) -> None:
    """0: warnings, as plain text; 1: info; 2 and more: debug, as JSON. Only headrace's own loggers."""
    handler = _StandardError()
    handler.setFormatter(JsonFormatter() if verbosity else PlainFormatter())
    logger = logging.getLogger("headrace")
    logger.handlers = [handler]
    logger.setLevel([logging.WARNING, logging.INFO, logging.DEBUG][min(verbosity, 2)])
    logger.propagate = False


class _OfRequest(logging.Filter):
    """Adds the ids of the request that a record is about, where requests are observed; never leaves a record out."""

    def filter(self, record: logging.LogRecord) -> bool:
        from headrace.server.observation import CURRENT  # noqa: PLC0415 - for those who serve

        seen = CURRENT.get()
        if seen is not None:
            fields: Mapping[str, str] = {
                "request_id": seen.body_id or seen.request_id,
                "trace_id": seen.trace_id,
            }
            record.__dict__.update({k: v for k, v in fields.items() if v and k not in record.__dict__})
        return True


def configure_server_logs(log_format: LogFormat, verbosity: int = 0, *, access: bool = False) -> None:
    """Logs of everything in the process, one line each: headrace's from info on, or debug; of others warnings.

    Warnings of Python come as records, too. With `access` the access log is among them, whatever the verbosity.
    """
    handler = _StandardError()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(_OfRequest())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    ours = logging.getLogger("headrace")
    ours.handlers = []
    ours.propagate = True
    ours.setLevel(logging.DEBUG if verbosity else logging.INFO)
    logging.getLogger(_ACCESS_LOGGER).setLevel(logging.INFO if access else logging.CRITICAL + 1)
    logging.captureWarnings(capture=True)
