"""``headrace scale``: pools and their history from a real job API, controllers, and translated settings."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from cases import for_each
from cli.job_commands import run_command
from headrace.app.worker_pool import pool_settings
from headrace.cli.job_display import timestamp
from headrace.cli.scale import scale_command
from headrace.jobs.pools import ScalingDecision
from headrace.scaling.settings import WorkerRange
from jobs.service_support import served_jobs


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


def decide(served, pool, workers, wanted, reason="12 jobs are due"):
    assert served.ledger.control_pool(pool, "c-1", 30_000)
    assert served.ledger.record_decision(ScalingDecision(pool, "c-1", workers, wanted, reason, {"due": 12}))
    served.ledger._clock.advance(1_000)


def rows(text):
    """Return the cells of the lines of a table, each separated from the next by two spaces or more."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_pools_are_listed(served):
    none = run_command(served, "scale", "list")
    assert (none.code, none.out) == (0, "")
    assert "no pools" in none.err
    decided = timestamp(served.ledger.now_ms())
    decide(served, "gpu", 1, 1_200)
    served.ledger.control_pool("cpu", "c-2", 30_000)
    served.ledger.release_pool("cpu", "c-2")
    assert rows(run_command(served, "scale", "list").out) == [
        ["pool", "wanted", "controller", "state", "since", "reason"],
        ["cpu", "-", "c-2", "uncontrolled", "-", "-"],
        ["gpu", "1,200", "c-1", "controlled", decided, "12 jobs are due"],
    ]
    lines = run_command(served, "scale", "list", "--json").lines
    assert [(line["pool"], line["controlled"]) for line in lines] == [("cpu", False), ("gpu", True)]


def test_history_has_the_decisions_about_a_pool_newest_first(served):
    none = run_command(served, "scale", "history", "gpu")
    assert (none.code, none.out, none.err) == (0, "", "no decisions\n")
    first, second = (timestamp(served.ledger.now_ms() + delay_ms) for delay_ms in (0, 2_000))
    decide(served, "gpu", 1, 3)
    decide(served, "cpu", 0, 1)
    decide(served, "gpu", 3, 0, "no job is due")
    assert rows(run_command(served, "scale", "history", "gpu").out) == [
        ["time", "pool", "workers", "reason"],
        [second, "gpu", "3 -> 0", "no job is due"],
        [first, "gpu", "1 -> 3", "12 jobs are due"],
    ]
    (newest,) = run_command(served, "scale", "history", "gpu", "--json", "-n", "1").lines
    assert (newest["wanted"], newest["observed"]) == (0, {"due": 12})


def test_history_without_a_pool_has_all_decisions(served):
    for number, pool in enumerate(("a", "b", "a", "c", "a")):
        decide(served, pool, number, number + 1)
    lines = run_command(served, "scale", "history", "--json").lines
    assert [(line["pool"], line["workers"]) for line in lines] == [
        ("a", 4),
        ("c", 3),
        ("a", 2),
        ("b", 1),
        ("a", 0),
    ]
    limited = run_command(served, "scale", "history", "--json", "--limit", "2").lines
    assert limited == lines[:2]


def test_history_has_50_decisions_by_default(served):
    for number in range(51):
        decide(served, "gpu", number, number + 1)
    assert len(run_command(served, "scale", "history", "gpu", "--json").lines) == 50
    assert len(run_command(served, "scale", "history", "--json", "-n", "51").lines) == 51


def test_texts_of_controllers_are_printed_in_one_line_and_as_they_are(served):
    decide(served, "[red]gpu", 1, 2, "[bold]due:\n\x1b[31m12")
    for command in ("list", "history"):
        _, row = rows(run_command(served, "scale", command).out)
        assert "[red]gpu" in row
        assert row[-1] == "[bold]due: �[31m12"


def test_translated_settings_are_read_from_the_jobs_file(tmp_path):
    hpa = Path(__file__).parents[2] / "examples" / "scaling" / "hpa.json"
    result = CliRunner().invoke(scale_command, ["translate", str(hpa), "--pool", "gpu"])
    assert result.exit_code == 0, result.output
    config = tmp_path / "jobs.toml"
    config.write_text(result.output)
    settings = pool_settings(config, "gpu", {})
    assert (str(settings.workers), settings.backlog_per_worker) == ("1..20", 8)
    assert (settings.scale_in_step, settings.scale_in_window_s, settings.tolerance) == (2, 600, 0.1)


def test_schedules_and_steps_are_translated(tmp_path):
    action = {
        "Schedule": "cron(0 8 ? * MON-FRI *)",
        "ScalableTargetAction": {"MinCapacity": 2, "MaxCapacity": 9},
    }
    steps = {"AdjustmentType": "ChangeInCapacity", "StepAdjustments": [{"ScalingAdjustment": 1}]}
    documents = [action, {"PolicyType": "StepScaling", "StepScalingPolicyConfiguration": steps}]
    files = [tmp_path / f"{number}.json" for number in range(2)]
    for file, document in zip(files, documents, strict=True):
        file.write_text(json.dumps(document))
    result = CliRunner().invoke(scale_command, ["translate", *map(str, files)])
    assert tomllib.loads(result.output) == {
        "pools": {
            "default": {
                "steps": {"1": 1},
                "schedules": [{"cron": "0 8 * * MON-FRI", "time_zone": "UTC", "workers": "2..9"}],
            }
        }
    }


@for_each(
    ("text", "named"),
    [
        ("{", "not valid JSON"),
        ("[1]", "one JSON object"),
        ('{"MaxCapacity": "many"}', "settings.workers"),
    ],
)
def test_untranslatable_file_is_refused(text, named):
    result = CliRunner().invoke(scale_command, ["translate", "-"], input=text)
    assert result.exit_code in (1, 2)
    assert named in result.output


@for_each(
    ("arguments", "named"),
    [
        (("--command", "true", "--deployment", "a/b"), "exclude each other"),
        (("--deployment", "worker"), "must be NAMESPACE/NAME, not worker"),
        (("--command", ""), "command is empty"),
        (("--pool", "a/b"), "'a/b' is no name of a pool"),
        (("--workers", "5..2"), "5..2: must be a smallest number"),
        (("--config", "missing.toml"), "missing.toml: the jobs file cannot be read"),
        (("--costs-only",), "--costs-only needs --deployment"),
        (("--external-metrics-port", "0"), "the external metrics API needs TLS"),
        (("--keda-port", "0", "--tls-key", "server.key"), "TLS needs both"),
        (
            ("--keda-port", "0", "--host", "0.0.0.0"),
            "no access control: pass --tls-client-ca FILE, or --insecure",
        ),
    ],
)
def test_pool_that_cannot_be_controlled_is_refused(arguments, named, tmp_path):
    if "--deployment" in arguments:
        pytest.importorskip("kubernetes")
    result = CliRunner().invoke(scale_command, ["run", "--data", str(tmp_path), *arguments])
    assert result.exit_code in (1, 2)
    assert named in result.output


def test_options_take_precedence_over_the_file(tmp_path):
    config = tmp_path / "jobs.toml"
    config.write_text('[pools.gpu]\nworkers = "1..2"\nidle_s = 9\n[pools.cpu]\nidle_s = 1\n')
    settings = pool_settings(config, "gpu", {"workers": WorkerRange(0, 5)})
    assert (settings.workers, settings.idle_s, settings.pool) == (WorkerRange(0, 5), 9, "gpu")


def test_help_of_the_group_names_its_commands():
    result = CliRunner().invoke(scale_command, ["--help"])
    assert all(name in result.output for name in ("run", "list", "history", "translate"))
