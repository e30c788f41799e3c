"""The commands of worker processes, as ``--workers`` of `headrace up` and `headrace work` makes them."""

import click
import pytest
from click.testing import CliRunner

from cases import for_each
from headrace.cli.serve import up_command, work_command, worker_settings
from headrace.cli.worker_pool import worker_processes


def made(command, *arguments, environ=None):
    """Return the worker processes that a command line would start."""
    found = []

    @click.command("made", params=command.params, context_settings=command.context_settings)
    @click.pass_context
    def capture(context, models, **params):
        found.append(worker_processes(context, work_command, worker_settings(params)))

    result = CliRunner().invoke(capture, list(arguments), env=environ, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]


def parsed(processes):
    """Return the parameters that `headrace work` reads from the command line of a worker."""
    assert processes.arguments[:3] == ["-m", "headrace", "work"]
    with work_command.make_context("work", list(processes.arguments[3:])) as context:
        return context.params


@for_each("command", [up_command, work_command])
def test_worker_gets_the_options_of_the_command_line(command, tmp_path):
    config = tmp_path / "jobs.toml"
    config.write_text("")
    arguments = [
        *(
            "--workers",
            "0..3",
            "--config",
            str(config),
            "--queue",
            "a b",
            "--queue",
            "c",
            "--concurrency",
            "3",
        ),
        *("--memory-bytes-max", "64MiB", "--isolation", "thread", "-O", "method=predict", "-O", "n=1", "-vv"),
        *("--other-regions", "never", "--region", "eu", "churn=model.onnx", "b.py:B"),
    ]
    got = parsed(made(command, *arguments))
    assert got["models"] == ("churn=model.onnx", "b.py:B")
    assert (got["config"], got["queue"] if "queue" in got else got["queues"]) == (config, ("a b", "c"))
    assert (got["concurrency"], got["memory_bytes_max"], got["isolation"]) == (3, 64 << 20, "thread")
    assert (got["model_options"], got["verbose"]) == (("method=predict", "n=1"), 2)
    assert (got["region"], got["other_regions"]) == ("eu", "never")
    assert got["end_with_stdin"]
    assert got["workers"] is None, "a worker starts no processes of its own"


def test_worker_gets_no_option_that_was_not_given():
    assert made(up_command, "--workers", "2", "m.py:M").arguments == [
        *("-m", "headrace", "work", "--end-with-stdin", "--", "m.py:M")
    ]


def test_options_of_the_api_alone_are_not_passed():
    processes = made(
        up_command, "--workers", "2", "--port", "0", "--no-metrics", "--pending-max", "5", "m.py:M"
    )
    assert processes.arguments[3:] == ["--end-with-stdin", "--", "m.py:M"]


def test_variables_of_the_command_become_those_of_workers():
    processes = made(
        up_command,
        *("--workers", "2", "m.py:M"),
        environ={
            "HEADRACE_UP_LEDGER": "postgresql://u:secret@db/jobs",
            "HEADRACE_UP_PORT": "1",
            "HEADRACE_UP_STORE": "s",
        },
    )
    own = {name: value for name, value in processes.environ.items() if name.startswith("HEADRACE_WORK")}
    assert own == {
        "HEADRACE_WORK_LEDGER": "postgresql://u:secret@db/jobs",
        "HEADRACE_WORK_STORE": "s",
    }
    assert "secret" not in " ".join(processes.arguments)


def test_variables_of_the_pool_do_not_reach_its_workers():
    """A worker that saw HEADRACE_WORKERS would start workers, and all would open one metrics port."""
    environ = {
        "HEADRACE_WORKERS": "0..3",
        "HEADRACE_WORK_WORKERS": "0..3",
        "HEADRACE_METRICS_PORT": "8082",
        "HEADRACE_CONCURRENCY": "3",
    }
    processes = made(up_command, "m.py:M", environ=environ)
    assert str(processes.pool.workers) == "0..3"
    left = {name for name in processes.environ if name in environ}
    assert left == {"HEADRACE_CONCURRENCY"}


def test_every_option_of_a_worker_survives_its_way_through_a_command_line(tmp_path):
    """An option that is added to `headrace work` later is tried here, too."""
    values = {
        "path": str(tmp_path / "x"),
        "integer": "2",
        "float": "2.5",
        "integer range": "2",
        "float range": "2",
    }
    for option in work_command.params:
        if not isinstance(option, click.Option) or option.name in {
            "workers",
            "metrics_port",
            "host",
            "config",
        }:
            continue
        if option.expose_value is False or option.name in {"help", "end_with_stdin", "verbose"}:
            continue
        kind = option.type.name
        value = option.type.choices[-1] if kind == "choice" else values.get(kind, "20")
        value = "50" if option.name == "lease_s" else value
        given = [option.opts[0]] if option.is_flag else [option.opts[0], value]
        arguments = list(made(work_command, "--workers", "1", *given, "m.py:M").arguments)
        with work_command.make_context("work", [*given, "m.py:M"]) as context:
            expected = context.params[option.name]
        with work_command.make_context("work", arguments[3:]) as context:
            assert context.params[option.name] == expected, option.opts


def invoked(command, *arguments):
    return CliRunner().invoke(command, list(arguments))


@for_each(
    ("command", "arguments", "named"),
    [
        (up_command, ("--workers", "0..2"), "--workers needs MODEL"),
        (work_command, ("--workers", "2..1", "m.py:M"), "2..1: must be a smallest number"),
        (work_command, ("--workers", "many", "m.py:M"), "'many' is no range of workers: write 0..8"),
        (
            work_command,
            ("--workers", "0..2", "--metrics-port", "0", "m.py:M"),
            "--metrics-port is the port of one",
        ),
    ],
)
def test_workers_that_cannot_be_started_are_refused(command, arguments, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoked(command, *arguments)
    assert result.exit_code in (1, 2)
    assert named in result.output


@pytest.mark.parametrize("setting", ['workers = "0..2"', 'queues = ["a"]', "slots = 2"])
def test_settings_of_local_workers_have_one_place(setting, tmp_path):
    config = tmp_path / "jobs.toml"
    config.write_text(f"[pools.local]\n{setting}\n")
    result = invoked(
        work_command, "--workers", "0..2", "--config", str(config), "--data", str(tmp_path), "m.py:M"
    )
    assert result.exit_code == 1
    assert f"pools.local.{setting.split(' ', maxsplit=1)[0]}: use --workers" in result.output
