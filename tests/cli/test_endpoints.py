"""``headrace endpoints`` against a real job API."""

import json

import pytest

from cases import for_each
from cli.job_commands import run_command
from jobs.service_support import served_jobs


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


def test_endpoint_is_set_from_a_file_and_used(served, tmp_path):
    none = run_command(served, "endpoints")
    assert (none.code, none.out) == (0, "")
    assert "no endpoints" in none.err
    file = tmp_path / "churn.toml"
    file.write_text('model = "churn"\nqueue = "night"\ntime_limit_s = 60\n')
    rows = run_command(served, "endpoints", "set", "churn", str(file)).out.splitlines()
    assert rows[1].split() == ["churn", "1", "churn", "infer", "night", "-", "-"]
    submitted = run_command(served, "submit", "--endpoint", "churn", "--input", "1", "--json").lines[0]
    assert (submitted["endpoint"], submitted["queue"], submitted["time_limit_s"]) == ("churn", "night", 60)
    (listed,) = run_command(served, "endpoints", "list", "--json").lines
    assert listed["settings"]["model"] == "churn"


def test_endpoint_is_shown_copied_and_deleted(served, tmp_path):
    file = tmp_path / "churn.json"
    file.write_text('{"model": "churn"}')
    run_command(served, "endpoints", "set", "churn", str(file))
    shown = run_command(served, "endpoints", "show", "churn", "--json").lines[0]
    file.write_text(json.dumps(shown["settings"] | {"priority": 7}))
    run_command(served, "endpoints", "set", "churn", str(file))
    lines = dict(
        line.split(maxsplit=1)
        for line in run_command(served, "endpoints", "show", "churn").out.splitlines()
        if len(line.split()) > 1
    )
    assert (lines["version"], lines["priority"], lines["deleted"]) == ("2", "7", "false")
    assert run_command(served, "endpoints", "show", "churn", "--version", "1", "--json").lines == [shown]
    assert run_command(served, "endpoints", "delete", "churn").out == "churn  deleted\n"
    rows = [line.split() for line in run_command(served, "endpoints", "versions", "churn").out.splitlines()]
    assert [row[1:3] for row in rows[1:]] == [["3", "deleted"], ["2", "churn"], ["1", "churn"]]
    gone = run_command(served, "endpoints", "show", "churn")
    assert (gone.code, "no endpoint 'churn'" in gone.err) == (1, True)


@for_each(
    ("name", "text", "message"),
    [
        ("a.toml", "model", "the settings cannot be read"),
        ("a.json", "[1]", "must be an object"),
        ("a.json", "{", "the settings cannot be read"),
        ("a.toml", "", "'model' is missing"),
    ],
)
def test_invalid_file_is_refused(served, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    refused = run_command(served, "endpoints", "set", "e", str(tmp_path / name))
    assert (refused.code, message in refused.err) == (1, True), refused.err
