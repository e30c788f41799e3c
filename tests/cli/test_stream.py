"""What this module adds to `headrace.app`; the whole command is tested in tests/integration."""

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli import stream as module
from headrace.core.errors import UnavailableError


@pytest.mark.parametrize(
    "shown",
    [
        "s3://bucket/day.tar.gz",
        "130 stopped by Ctrl-C",
        "--header [none|drop|names]",
        "--batch-delay-ms",
        "[default: 16MiB]",
    ],
)
def test_help_shows_examples_statuses_and_defaults(shown):
    help_text = CliRunner().invoke(main, ["stream", "--help"], terminal_width=120).output
    assert shown in help_text


def test_one_source_is_given_as_it_is_and_several_as_a_list(monkeypatch):
    """A ledger keeps the source as it was given: one must stay a string."""
    seen = []

    def open_run(source, **_):
        seen.append(source)
        raise UnavailableError("s3://b", "down")

    monkeypatch.setattr(module, "open_run", open_run)
    for sources in (["a"], ["a", "b"]):
        done = CliRunner().invoke(main, ["stream", *sources, "--model", "m.py", "--output", "o"])
        assert (done.exit_code, done.stderr) == (1, "error: s3://b: down\n")
    assert seen == ["a", ["a", "b"]]


def test_a_defect_is_not_dressed_up_as_an_error_of_the_users(monkeypatch):
    def open_run(source, **_):
        raise ZeroDivisionError

    monkeypatch.setattr(module, "open_run", open_run)
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(main, ["stream", "a", "--model", "m.py", "--output", "o"], catch_exceptions=False)
