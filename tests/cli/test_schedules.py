"""``headrace schedules`` against a real job API."""

import json

import pytest

from cases import for_each
from cli.job_commands import run_command
from jobs.service_support import served_jobs

NIGHTLY = (
    "nightly",
    *("--cron", "0 2 * * *", "--time-zone", "Europe/Berlin"),
    *("-m", "m", "s3://in/{time:%Y-%m-%d}.csv"),
)


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


def schedules(served, *args):
    return run_command(served, "schedules", *args)


def set_nightly(served, *more):
    return schedules(served, "set", *NIGHTLY, *more)


def test_schedule_has_the_options_of_submit(served):
    none = schedules(served)
    assert (none.code, none.out, "no schedules" in none.err) == (0, "", True)
    rows = set_nightly(
        served, "--overlap", "skip", "-O", "header=names", "--tag", "a=b", "--priority", "3"
    ).out
    cells = rows.splitlines()[1].split()
    assert cells[:6] == ["nightly", "0", "2", "*", "*", "*"]
    assert (cells[6], cells[7][10:19], cells[8:]) == ("Europe/Berlin", "T02:00:00", ["-", "-"])
    shown = schedules(served, "show", "nightly", "--json").lines[0]["settings"]
    assert shown == {
        "cron": "0 2 * * *",
        "time_zone": "Europe/Berlin",
        "overlap": "skip",
        "job": {
            "model": "m",
            "input_uri": "s3://in/{time:%Y-%m-%d}.csv",
            "options": {"header": "names"},
            "tags": {"a": "b"},
            "priority": 3,
        },
    }


def test_schedule_is_shown_with_its_next_times_and_copied(served, tmp_path):
    set_nightly(served)
    lines = schedules(served, "show", "nightly").out.splitlines()
    times = [line.split()[-1] for line in lines if "T02:00:00" in line]
    assert (len(times), times == sorted(times)) == (5, True)
    file = tmp_path / "nightly.json"
    file.write_text(json.dumps(schedules(served, "show", "nightly", "--json").lines[0]["settings"]))
    assert schedules(served, "set", "copy", "--file", str(file)).code == 0
    assert [each["name"] for each in schedules(served, "list", "--json").lines] == ["copy", "nightly"]
    toml = tmp_path / "s.toml"
    toml.write_text('cron = "5 * * * *"\n[job]\nmodel = "m"\ninput = [1]\n')
    assert schedules(served, "set", "copy", "--file", str(toml)).code == 0
    assert schedules(served, "show", "copy", "--json").lines[0]["settings"]["job"]["input"] == [1]


def test_schedule_is_paused_resumed_run_and_deleted(served):
    set_nightly(served)
    assert schedules(served, "pause", "nightly").out == "nightly  paused\n"
    assert "paused" in schedules(served).out
    assert schedules(served, "resume", "nightly").out == "nightly  resumed\n"
    job_id = schedules(served, "run", "nightly").out.strip()
    listed = run_command(served, "jobs", "list", "--tag", "schedule=nightly", "--json").lines
    assert [job["id"] for job in listed] == [job_id]
    assert schedules(served, "run", "nightly", "--json").lines[0]["id"] != job_id
    mixed = schedules(served, "delete", "nightly", "none")
    assert (mixed.code, mixed.out) == (1, "nightly  deleted\n")
    assert "no schedule 'none'" in mixed.err


@for_each(
    ("args", "code", "message"),
    [
        (("--cron", "* * * *", "-m", "m", "s3://in/x"), 1, "cron: must be five fields"),
        (("--cron", "* * * * *", "-m", "m", "rows.csv"), 2, "PAYLOAD must be a URI"),
        (("--cron", "* * * * *", "-m", "m", "-i", "["), 2, "--input is not valid JSON"),
        (("-m", "m", "s3://in/x"), 2, "give --cron"),
        (("--file", __file__, "--cron", "* * * * *"), 2, "leave out the other options"),
        (("--file", __file__, "-m", "m"), 2, "leave out the other options"),
        (("--file", __file__), 1, "the settings cannot be read"),
        (("--cron", "* * * * *", "-m", "m", "s3://in/x", "--wait"), 2, "No such option"),
    ],
)
def test_invalid_schedule_is_refused(served, args, code, message):
    refused = schedules(served, "set", "s", *args)
    assert (refused.code, message in refused.err) == (code, True), refused.err
