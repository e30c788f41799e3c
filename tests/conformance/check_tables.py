"""Conformance checks that run one after another within a test."""

from collections.abc import Callable, Iterable
from typing import Any

Check = Callable[..., None]


def run_each(checks: Iterable[Check], run: Callable[[Check], Any]) -> None:
    """Call `run` with each check. The exception of a failing check gets a note with its name."""
    for check in checks:
        try:
            run(check)
        except BaseException as error:
            error.add_note(f"check: {check.__name__}")
            raise
