"""``headrace plan``: the known example, sources of jobs, policies, files, JSON and errors."""

import json
import shlex
import sys

import pytest
from click.testing import CliRunner

from cases import for_each
from cli.job_commands import run_command
from headrace.cli import plan as plan_module
from headrace.cli.plan import plan_command
from headrace.jobs.job import NewJob
from integration.command import headrace
from jobs.service_support import served_jobs
from reports.page_reader import read_page

FAST = ("--run-s", "300", "--arrivals", "even", "--days", "1", "--interval-s", "60")
PNG = b"\x89PNG\r\n\x1a\n"


def plan(*arguments, environ=None):
    return headrace("plan", *arguments, environ=environ)


def document(*arguments):
    found = plan(*arguments, "--json")
    assert (found.code, found.err) == (0, ""), found.err
    (line,) = found.lines
    return line


def rows(text):
    """Return the cells of the lines of a text, each separated from the next by two spaces or more."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def modes(found):
    return {mode["mode"]: mode for mode in found["modes"]}


# The known example


def test_example_of_the_help_has_the_known_costs():
    """The first example of the help, as it stands there."""
    shown = CliRunner().invoke(plan_command, ["--help"]).output
    (line,) = [line for line in shown.splitlines() if "--price-per-h 0.736" in line]
    assert "costs $17.66 a day; the busy time alone costs $6.13, which would save 65.3 %:" in shown
    found = headrace(*shlex.split(line)[1:])
    assert (found.code, found.err) == (0, "")
    load, _, head, always_on, zero, night, _, recommended, *reasons = rows(found.out)
    assert load == [
        (
            "700 jobs in 7 days (100 a day), 5 min on average: the busy time of 8 h 20 min a day alone "
            "costs $6.13 "
            "a day and $184.00 a month, 65.3 % less than always-on"
        )
    ]
    assert head == [
        *("mode", "workers", "cost a day", "a month", "wait p50", "p95", "p99", "to result p95"),
        *("utilisation", "cold starts"),
    ]
    assert always_on == [
        *("always-on", "1", "$17.66", "$529.92"),
        *("0 s", "7 min 5 s", "12 min 31 s", "12 min 5 s", "34.7 %", "0"),
    ]
    assert zero[:6] == ["scale-to-zero", "0..8", "$12.31", "$369.22", "1 min", "1 min"]
    assert night[:2] == ["nightly batch", "0..8"]
    assert recommended == ["recommended: scale-to-zero (asynchronous)"]
    assert all(reason[0].startswith("- ") for reason in reasons)
    assert 3 <= len(reasons) <= 6


def test_json_is_one_document_with_the_known_costs():
    found = document(*FAST, "--price-per-h", "0.736")
    assert found["load"]["jobs"] == 100
    alone = found["busy_time_alone"]
    assert (round(alone["cost_per_day"], 2), round(alone["cost_per_month"], 2)) == (6.13, 184)
    assert round(alone["saving"], 3) == 0.653
    always_on = modes(found)["always-on"]
    assert (round(always_on["cost_per_day"], 2), round(always_on["cost_per_month"], 2)) == (17.66, 529.92)
    assert found["recommendation"]["mode"] == "scale-to-zero"
    assert found["currency"] == ""


def test_costs_have_the_currency_of_the_option():
    assert "costs 8.33 a day and 250.00 a month," in plan(*FAST).out
    assert "costs EUR 8.33 a day and EUR 250.00 a month," in plan(*FAST, "--currency", "EUR").out


# Options


@for_each(
    ("options", "mode", "figure", "value"),
    [
        (("--always-on", "3"), "always-on", "workers", "3..3"),
        (("--workers", "0..3"), "scale-to-zero", "workers", "0..3"),
        (("--workers", "2..3"), "your policy", "workers", "2..3"),
        (("--concurrency", "4"), "always-on", "utilisation", 0.086806),
        (("--start-s", "30"), "scale-to-zero", "wait_seconds", {"p50": 30, "p95": 30, "p99": 30}),
        (("--interruptions-per-h", "0.5", "--seed", "4"), "always-on", "interruptions", 16),
        (("--interruptions-per-h", "0.5", "--seed", "5"), "always-on", "interruptions", 8),
    ],
)
def test_options_reach_the_simulation(options, mode, figure, value):
    assert modes(document(*FAST, *options))[mode][figure] == value


def test_starts_cost_nothing_if_they_are_not_billed():
    starts = (*FAST, "--start-s", "240", "--workers", "0..100", "--arrivals", "burst")
    billed, free = (
        modes(document(*starts, *options))["scale-to-zero"]["cost_per_day"]
        for options in ((), ("--no-start-billed",))
    )
    assert billed - free == pytest.approx(100 * 240 / 3600)


def test_batch_gain_changes_the_time_to_a_result():
    busy = (*FAST, "--arrivals", "burst", "--concurrency", "2", "--always-on", "50")
    for gain, result_s in (("1", 300), ("0", 600)):
        found = modes(document(*busy, "--batch-gain", gain))["always-on"]
        assert found["result_seconds"]["p95"] == result_s


def test_interval_of_decisions_is_that_of_the_option():
    found = {
        modes(document(*FAST[:-1], interval_s, "--scale-in-window-s", "1"))["your policy"]["cost_per_day"]
        for interval_s in ("7", "60")
    }
    assert len(found) == 2


def test_acceptable_wait_decides():
    for wait_s, mode in (("5", "always-on"), ("600", "scale-to-zero"), ("90000", "nightly batch")):
        assert document(*FAST, "--wait-s-max", wait_s)["recommendation"]["mode"] == mode


def test_policy_is_that_of_the_settings_file_unless_options_are_given(tmp_path):
    config = tmp_path / "jobs.toml"
    config.write_text(
        '[pools.gpu]\nworkers = "1..4"\nslots = 2\nschedules = [{ cron = "0 9 * * *", workers = "2..6" }]\n'
        "[pools.default]\nscale_in_window_s = 10.0\n"
    )
    gpu = modes(document(*FAST, "--config", config, "--pool", "gpu"))
    assert (gpu["your policy"]["workers"], gpu["scale-to-zero"]["workers"]) == ("1..4", "0..6")
    assert gpu["your policy"]["workers_max"] == 2
    given = modes(document(*FAST, "--config", config, "--pool", "gpu", "--workers", "0..9"))
    assert given["your policy"]["workers"] == "0..9"
    assert "your policy" in modes(document(*FAST, "--config", config))


# Sources of jobs


def test_trace_is_a_file_or_standard_input(tmp_path):
    lines = "arrived,run_s\n2026-01-31T09:00:00Z,60\n2026-01-31T10:00:00Z,120\n"
    trace = tmp_path / "jobs.csv"
    trace.write_text(lines)
    found = document("--trace", trace)
    assert found["load"] == {
        "jobs": 2,
        "days": 1,
        "jobs_per_day": 2,
        "busy_seconds_per_day": 180,
        "mean_run_seconds": 90,
    }
    piped = CliRunner().invoke(plan_command, ["--trace", "-", "--json"], input=lines)
    assert json.loads(piped.output) == found
    without_times = CliRunner().invoke(
        plan_command, ["--trace", "-", "--json", "--run-s", "45"], input="1769850000\n"
    )
    assert json.loads(without_times.output)["load"]["mean_run_seconds"] == 45


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


def submit(served, queue, run_s):
    """Submit a job and complete it after its run time, and some seconds."""
    clock = served.ledger._clock
    served.ledger.submit([NewJob("m", queue=queue)])
    job = served.claim(queue)
    clock.advance(round(run_s * 1000))
    served.complete(job)
    clock.advance(10_000)


def test_history_is_that_of_a_job_server(served):
    for queue, run_s in (("a", 10), ("b", 20), ("c", 30), ("a", 40)):
        submit(served, queue, run_s)

    def load(*options, left_out=False):
        done = run_command(served, "plan", "--history", "--json", *options)
        assert ("the first day may be incomplete" in done.err) is left_out
        (found,) = done.lines
        return found["load"]["jobs"], found["load"]["mean_run_seconds"]

    assert load() == (4, 25)
    assert load("--limit", "4") == (4, 25)
    assert load("--limit", "3", left_out=True) == (3, 30)
    assert load("--queue", "a") == (2, 25)
    assert load("-q", "a", "-q", "b", "-n", "2", left_out=True) == (2, 30), "the newest of both queues"
    assert load("-q", "a", "-q", "b", "-n", "1", left_out=True) == (1, 40)
    assert load("-q", "c", "-n", "1") == (1, 30)


def test_history_has_the_queues_of_the_pool(served, tmp_path):
    for queue, run_s in (("a", 10), ("b", 20), ("c", 30)):
        submit(served, queue, run_s)
    config = tmp_path / "jobs.toml"
    config.write_text('[pools.gpu]\nqueues = ["b", "c"]\n')
    options = ("plan", "--history", "--json", "--config", config, "--pool", "gpu")
    (found,) = run_command(served, *options).lines
    assert found["load"]["mean_run_seconds"] == 25
    (found,) = run_command(served, *options, "--queue", "a").lines
    assert found["load"]["mean_run_seconds"] == 10


def test_history_without_jobs_is_an_error(served):
    found = run_command(served, "plan", "--history")
    assert (found.code, found.out) == (1, "")
    assert found.error.startswith("the job server has no such jobs")


# Files


def test_plan_is_saved_as_a_page_and_a_picture(tmp_path):
    page, picture = tmp_path / "plan.html", tmp_path / "plan.png"
    pytest.importorskip("matplotlib", reason="needs the extra plots")
    found = plan(*FAST, "--output", page, "-o", picture)
    assert (found.code, found.err) == (0, "")
    assert "recommended: scale-to-zero" in found.out
    titles = [heading.text for heading in read_page(page.read_bytes()).all("h1")]
    assert titles == ["Plan: scale-to-zero (asynchronous)"]
    assert picture.read_bytes().startswith(PNG)


def test_picture_needs_an_extra_and_a_page_does_not(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "headrace.scaling.planner.picture", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(plan_module, "compare", None)  # the error comes before the simulation
    found = plan(*FAST, "--output", tmp_path / "plan.html", "--output", tmp_path / "plan.png")
    assert (found.code, found.out) == (1, "")
    assert found.error == "the picture of a plan needs an extra: pip install 'headrace[plots]'"
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert plan(*FAST, "--output", tmp_path / "plan.html").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]


def test_plan_needs_no_extra_and_its_settings_file_one(tmp_path, monkeypatch):
    for package in ("httpx", "httpcore", "sqlalchemy", "aiohttp", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)
    assert plan(*FAST).code == 0
    config = tmp_path / "jobs.toml"
    config.write_text("[pools.default]\ntolerance = 0.1\n")
    found = plan(*FAST, "--config", config)
    assert found.code == 1
    assert found.error == "headrace plan --config needs an extra: pip install 'headrace[jobs]'"


# Errors and progress


@for_each(
    ("arguments", "words"),
    [
        ((), "give the seconds of a job with --run-s, or jobs with --trace or --history"),
        (("--history", "--trace", "-"), "--trace and --history exclude each other"),
        (("--trace", "-", "--days", "3"), "--days generates jobs: leave it out with --trace"),
        (("--history", "--arrivals", "even"), "--arrivals generates jobs: leave it out with --history"),
        (("--run-s", "1", "--queue", "a"), "--queue selects jobs of --history"),
        (("--run-s", "1", "--pool", "a"), "--pool names a table of --config"),
        (("--run-s", "0"), "--run-s"),
        (("--run-s", "1", "--workers", "8..0"), "--workers"),
        (("--run-s", "1", "--wait-s-max", "-1"), "--wait-s-max"),
        (("--run-s", "1", "--always-on", "0"), "--always-on"),
        (("--run-s", "1", "--slots", "4"), "--slots"),
    ],
)
def test_wrong_usage_exits_with_status_2(arguments, words):
    found = plan(*arguments)
    assert (found.code, found.out) == (2, "")
    assert words in found.err.splitlines()[-1]


@for_each(
    ("arguments", "words"),
    [
        (("--run-s", "300", "--run-p95-s", "200"), "run_p95_s must be from 300 to"),
        (("--run-s", "1", "--jobs-per-day", "1e9"), "are more than 10,000,000"),
        (("--run-s", "1", "--output", "plan.pdf"), "--output plan.pdf: unknown file type: use .html or .png"),
        (
            (*FAST, "--output", "none/plan.html"),
            "none/plan.html cannot be written: No such file or directory",
        ),
        (("--run-s", "1", "--config", "none.toml"), "none.toml: the jobs file cannot be read"),
        ((*FAST, "--workers", "0"), "scale-to-zero, 0..0 workers: 100 jobs have not ended 30 days after"),
        (("--history", "--server", "ftp://127.0.0.1"), "ftp://127.0.0.1"),
    ],
)
def test_errors_are_one_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = plan(*arguments)
    assert (found.code, found.out) == (1, "")
    assert words in found.error
    with_json = plan(*arguments, "--json")
    (line,) = with_json.lines
    assert (with_json.code, line["event"], line["exit_code"]) == (1, "error", 1)
    assert words in line["message"]
    assert list(tmp_path.iterdir()) == []


def test_unknown_pool_is_an_error(tmp_path):
    config = tmp_path / "jobs.toml"
    config.write_text('[pools.gpu]\nworkers = "0..4"\n')
    found = plan(*FAST, "--config", config, "--pool", "cpu")
    assert (found.code, found.error) == (1, f"{config}: has no settings in a table [pools.cpu]")


def test_invalid_trace_is_an_error_with_its_line(tmp_path):
    trace = tmp_path / "jobs.csv"
    trace.write_text("1769850000,5\nnever,5\n")
    found = plan("--trace", trace)
    assert found.code == 1
    assert found.error.startswith(f"{trace}, line 2: column 1 must be a time")


def test_variables_of_generated_jobs_do_not_count_for_a_trace(tmp_path):
    trace = tmp_path / "jobs.csv"
    trace.write_text("1769850000,5\n")
    found = plan("--trace", trace, "--json", environ={"HEADRACE_DAYS": "3", "HEADRACE_START_S": "7"})
    assert found.code == 0
    assert (found.lines[0]["load"]["days"], found.lines[0]["machine"]["start_s"]) == (1, 7)


def test_progress_is_shown_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    plan_command.main([*FAST, "--json"], standalone_mode=False)
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        f"simulating 100 jobs: {mode}" for mode in ("always-on", "scale-to-zero", "nightly batch")
    ]
    assert len(shown.out.splitlines()) == 1


def test_recommended_mode_is_bold(monkeypatch):
    styles = []
    monkeypatch.setattr(plan_module, "print_table", lambda table: styles.extend(r.style for r in table.rows))
    plan(*FAST)
    assert styles == [None, "bold", None]
