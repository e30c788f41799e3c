"""Tracebacks of a model's unexpected exceptions: the place in its code, the text, and the log of a server."""

import inspect
import linecache
import logging
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, Final, cast

from headrace.core.errors import HeadraceError
from headrace.core.model import RowError
from headrace.core.model_traceback import TRACEBACK_CHARS_MAX, TRACEBACKS_MAX, ModelTraceback
from headrace.engine.model_methods import WHY_CHARS_MAX, RemoteError, error_text

_log = logging.getLogger("headrace.engine")

_OWN_FOLDER: Final = str(Path(__file__).resolve().parents[1]) + "/"
_SOURCE_CHARS_MAX: Final = 200
_TEXT_BEGIN_CHARS: Final = 2 * 1024
"""Characters kept of the begin of a traceback that is too long; the others are of its end."""

Explain = Callable[[BaseException], ModelTraceback | None]
"""Returns the traceback of an unexpected exception of a model, None for an expected error."""


def is_unexpected(error: BaseException) -> bool:
    """Return True for an exception of the model's code: any but RowError and headrace's own errors."""
    return not isinstance(error, (RowError, HeadraceError))


def remote_traceback(error: BaseException) -> ModelTraceback | None:
    """Return the traceback of an exception that a model raised in another process."""
    return error.traceback if isinstance(error, RemoteError) else None


def model_files(model: object) -> frozenset[str]:
    """Return the files with the methods of a model's class; empty for a ready-made model of headrace."""
    files: set[str] = set()
    for kind in type(model).__mro__:
        if kind is object or kind.__module__.startswith("headrace."):
            continue
        for member in vars(kind).values():
            function = _unwrapped(member)
            if isinstance(function, FunctionType):
                files.add(function.__code__.co_filename)
    return frozenset(files)


def _unwrapped(member: Any) -> Any:
    try:
        return inspect.unwrap(getattr(member, "__func__", member))
    except ValueError:  # a circle of wrappers
        return None


class TracebackMaker:
    """A maker of the tracebacks of one model's exceptions.

    Exceptions of the same type at the same line have one traceback, that of the first: formatting
    the same text for each of many rows would take too long.
    """

    def __init__(self, files: frozenset[str] = frozenset()) -> None:
        self._files = files
        self._made: dict[tuple[str, str, int], ModelTraceback] = {}

    def __call__(self, error: BaseException) -> ModelTraceback | None:
        """Return the traceback of an unexpected exception that was caught, else None."""
        if isinstance(error, RemoteError):
            return error.traceback
        if not is_unexpected(error):
            return None
        begin, place = self._find_place(error.__traceback__)
        kind, message = type(error).__name__, _plain(error_text(error))[:WHY_CHARS_MAX]
        if place is None:
            return ModelTraceback(kind, message)
        code, line = place.tb_frame.f_code, place.tb_lineno
        file = _plain(code.co_filename)
        made = self._made.get((kind, file, line))
        if made is None:
            source = _source(code.co_filename, line)
            made = ModelTraceback(kind, message, file, line, code.co_name, source, _format(error, begin))
            if len(self._made) < TRACEBACKS_MAX:
                self._made[made.key] = made
        return made

    def _find_place(self, first: TracebackType | None) -> tuple[TracebackType | None, TracebackType | None]:
        """Return the first frame of the model's code, and the last frame in its files, else the last."""
        begin: TracebackType | None = None
        place: TracebackType | None = None
        last, outside = first, None
        at = first
        while at is not None:
            file = at.tb_frame.f_code.co_filename
            if file in self._files:
                begin, place = begin or at, at
            if outside is None and not file.startswith(_OWN_FOLDER):
                outside = at
            last, at = at, at.tb_next
        return begin or outside or first, place or last


def _source(file: str, line: int) -> str:
    linecache.checkcache(file)  # the file may have changed since another model was loaded from it
    return _plain(linecache.getline(file, line).strip()[:_SOURCE_CHARS_MAX])


def _plain(text: str) -> str:
    """Return text that UTF-8 can encode: names and messages may have lone surrogates."""
    return text.encode(errors="replace").decode()


def _format(error: BaseException, begin: TracebackType | None) -> str:
    try:
        lines = traceback.TracebackException(type(error), error, cast("Any", begin)).format()
        text = "".join(lines).rstrip("\n")
    except Exception:  # noqa: BLE001 - a broken exception must not hide that there is one
        text = f"{type(error).__name__}: the traceback cannot be formatted"
    text = _plain(text)
    if len(text) <= TRACEBACK_CHARS_MAX:
        return text
    end = TRACEBACK_CHARS_MAX - _TEXT_BEGIN_CHARS
    return f"{text[:_TEXT_BEGIN_CHARS]}\n  […]\n{text[-end:]}"


class TracebackLog:
    """A log of the tracebacks of a served model: one warning for each type and line, not one per request.

    Any thread.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._logged: set[tuple[str, str, int]] = set()

    def add(self, made: ModelTraceback | None) -> None:
        """Log a traceback unless it was logged before, or TRACEBACKS_MAX others were."""
        if made is None:
            return
        with self._lock:
            if made.key in self._logged or len(self._logged) >= TRACEBACKS_MAX:
                return
            self._logged.add(made.key)
        _log.warning(
            "the model raised an unexpected exception: %s",
            made.with_place(made.kind),
            extra={"model": self._model, "traceback": made.text},
        )
