"""Old names of arguments of the public functions. They work for one release, with a warning."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from headrace.core.errors import ConfigError
from headrace.reports.report import Report
from headrace.runs.settings import OutputFormat, OutputSettings

P = ParamSpec("P")
R = TypeVar("R")


def accepts_old_names(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function accept ``if_exists`` for `resume` and `overwrite`, and ``page`` for `report`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "if_exists" in kwargs:
            _warn("if_exists", "resume=True or overwrite=True")
            kwargs |= _flags(kwargs.pop("if_exists"))
        if "page" in kwargs:
            _warn("page", 'report="html"')
            kwargs["report"] = "html" if kwargs.pop("page") else None
        return function(*args, **kwargs)

    return call


def _warn(old: str, new: str) -> None:
    # Attribute the warning to the caller of the public function.
    warnings.warn(f"the argument {old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)


def _flags(if_exists: Any) -> dict[str, bool]:
    if if_exists not in ("refuse", "resume", "overwrite"):
        raise ConfigError(f"if_exists must be refuse, resume or overwrite, not {if_exists!r}")
    return {"resume": if_exists == "resume", "overwrite": if_exists == "overwrite"}


TransformReport = Report
"""The old name of `Report`, for one release."""


class TransformOutput:
    """The old name of `OutputSettings`, with ``accept`` for `format`. A call returns OutputSettings."""

    def __new__(cls, accept: OutputFormat = "auto", **settings: Any) -> OutputSettings:
        """Return the settings, with a deprecation warning."""
        warnings.warn(
            "headrace.TransformOutput is deprecated: use headrace.OutputSettings, with format for accept",
            DeprecationWarning,
            stacklevel=2,
        )
        return OutputSettings(format=accept, **settings)
