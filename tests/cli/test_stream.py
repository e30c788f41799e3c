"""Arguments and errors of ``headrace stream``; tests/integration tests the whole command."""

import pytest
from click.testing import CliRunner

from cases import for_each
from headrace.cli import main
from headrace.cli import stream as module
from headrace.core.errors import UnavailableError


@for_each(
    "shown",
    [
        "s3://bucket/day.tar.gz",
        "130 stopped by Ctrl-C",
        "--header [auto|none|drop|names]",
        "--batch-delay-ms",
        "[default: 16MiB]",
    ],
)
def test_help_shows_examples_statuses_and_defaults(shown):
    help_text = CliRunner().invoke(main, ["stream", "--help"], terminal_width=120).output
    assert shown in help_text


def test_single_source_is_a_string_and_several_are_a_list(monkeypatch):
    """A ledger records the source in the form of the argument."""
    sources_seen = []

    def open_run(source, **_):
        sources_seen.append(source)
        raise UnavailableError("s3://b", "down")

    monkeypatch.setattr(module, "open_run", open_run)
    for sources in (["a"], ["a", "b"]):
        done = CliRunner().invoke(main, ["stream", *sources, "--model", "m.py", "--output", "o"])
        assert (done.exit_code, done.stderr) == (1, "error: s3://b: down\n")
    assert sources_seen == ["a", ["a", "b"]]


def test_defect_is_not_reported_as_a_user_error(monkeypatch):
    def open_run(source, **_):
        raise ZeroDivisionError

    monkeypatch.setattr(module, "open_run", open_run)
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(main, ["stream", "a", "--model", "m.py", "--output", "o"], catch_exceptions=False)
