"""Texts of failures for the figures of a report."""

import re

from headrace.core.block import Failure
from headrace.runs.progress import RunProgress


def failure_figures(progress: RunProgress) -> dict[str, str]:
    """Return the first failure and the first broken object, which are often the cause of all."""
    failure, broken = progress.first_failure, progress.first_broken
    return {
        "first failure": one_line(f"{failure.position}: {failure.why}") if failure else "",
        "first broken": broken_line(broken) if broken else "",
    }


def broken_line(failure: Failure) -> str:
    """Return one line about a broken object; most reasons already name the object."""
    name = failure.position.member or failure.position.object
    return one_line(failure.why if name in failure.why else f"{name}: {failure.why}")


def one_line(text: str) -> str:
    """Return the text with its line breaks replaced by spaces."""
    return re.sub(r"\s*\n\s*", " ", text)
