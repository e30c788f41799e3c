"""Configure logs on standard error.

All commands log in the same form: text for people, or JSON lines. A run logs warnings, and more
with ``-v``. A server always logs, everything that its process logs.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from typing_extensions import override

LogFormat = Literal["json", "text"]

_ACCESS_LOGGER = "headrace.access"
_RESERVED = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """A formatter of JSON lines with time, level, logger, message and the ``extra`` fields."""

    @override
    def format(self, record: logging.LogRecord) -> str:
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
    """A formatter of lines for people: time, level, logger, message and ``key=value`` extras.

    A traceback, of the record or in its extra ``traceback``, follows in lines of its own, if
    `tracebacks` is true.
    """

    def __init__(self, *, tracebacks: bool = True) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    @override
    def format(self, record: logging.LogRecord) -> str:
        values = _extras(record)
        traceback = values.pop("traceback", None)
        extras = "".join(f" {k}={_quoted(v)}" for k, v in values.items())
        message = record.getMessage().replace("\n", "\\n")
        line = f"{_time(record)} {record.levelname.lower():<7} {record.name}: {message}{extras}"
        if record.exc_info and self._tracebacks:
            return f"{line}\n{self.formatException(record.exc_info)}"
        return f"{line}\n{traceback}" if traceback and self._tracebacks else line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    # Libraries such as Ray add private attributes to every record; they are not log fields.
    return {k: v for k, v in record.__dict__.items() if k not in _RESERVED and not k.startswith("_")}


def _quoted(value: Any) -> str:
    """Return the value as text, quoted unless it is a single word."""
    text = str(value)
    return text if text and text.isprintable() and not set(text) & {" ", '"', "="} else json.dumps(text)


def _formatter(log_format: LogFormat, *, tracebacks: bool = True) -> logging.Formatter:
    return JsonFormatter() if log_format == "json" else TextFormatter(tracebacks=tracebacks)


class _StandardError(logging.Handler):
    """A handler that writes to the current `sys.stderr`, which a progress bar may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


def configure_logs(log_format: LogFormat, verbosity: int = 0) -> None:
    """Configure headrace's own loggers for a run.

    Verbosity 0 logs warnings, as text without tracebacks, 1 info and 2 debug messages.
    """
    handler = _StandardError()
    handler.setFormatter(_formatter(log_format, tracebacks=verbosity > 0))
    logger = logging.getLogger("headrace")
    logger.handlers = [handler]
    logger.setLevel([logging.WARNING, logging.INFO, logging.DEBUG][min(verbosity, 2)])
    logger.propagate = False


class _RequestIdFilter(logging.Filter):
    """A filter that adds the request and trace ids of the current request. It keeps all records."""

    def filter(self, record: logging.LogRecord) -> bool:
        from headrace.server.observation import CURRENT  # noqa: PLC0415 - servers only

        observation = CURRENT.get()
        if observation is not None:
            fields: Mapping[str, str] = {
                "request_id": observation.body_id or observation.request_id,
                "trace_id": observation.trace_id,
            }
            record.__dict__.update({k: v for k, v in fields.items() if v and k not in record.__dict__})
        return True


def configure_server_logs(log_format: LogFormat, verbosity: int = 0, *, access: bool = False) -> None:
    """Configure the logs of a server process: headrace's from info on, other libraries' warnings.

    With a verbosity above 0, headrace's debug messages are included. Python warnings are logged,
    too. `access` enables the access log at any verbosity.
    """
    handler = _StandardError()
    handler.setFormatter(_formatter(log_format))
    handler.addFilter(_RequestIdFilter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logger = logging.getLogger("headrace")
    logger.handlers = []
    logger.propagate = True
    logger.setLevel(logging.DEBUG if verbosity else logging.INFO)
    logging.getLogger(_ACCESS_LOGGER).setLevel(logging.INFO if access else logging.CRITICAL + 1)
    logging.captureWarnings(capture=True)
