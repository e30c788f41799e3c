"""Logs on standard error: with ``-v`` one JSON object a line; warnings alone, and plain, without."""

import json
import logging
import sys
from datetime import UTC, datetime

_RESERVED = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, and whatever was passed as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in record.__dict__.items() if k not in _RESERVED})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


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
