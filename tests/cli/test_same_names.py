"""An option of a command and the Python parameter or setting that it sets have the same name."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import click
import pytest

import headrace
from cases import for_each
from headrace.app.job_components import JobLocations
from headrace.app.job_worker import open_worker
from headrace.app.jobs import JobsOptions, open_jobs
from headrace.app.runners import DataRegions, Workers
from headrace.app.runs import dry_run, open_watch
from headrace.app.server_options import WorkerListenerOptions
from headrace.app.serving import ServerOptions, open_server
from headrace.app.worker_pool import WorkerProcesses, open_pool
from headrace.cli.main import load_all
from headrace.engine.settings import ServeSettings
from headrace.jobs.maintenance import Retention
from headrace.jobs.worker import WorkerSettings
from headrace.runners.engines import BeamWorkers, RayWorkers
from headrace.scaling.actuators.command import CommandActuator
from headrace.scaling.planner.arrivals import LoadOptions
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.modes import compare
from headrace.scaling.planner.recommendation import recommend
from headrace.scaling.settings import PoolSettings

LOGS = {
    "verbose": "logs of the process; Python programs configure logging themselves",
    "log_format": "logs of the process; Python programs configure logging themselves",
}
TERMINAL = {
    "json": "prints on the terminal",
    "quiet": "prints on the terminal",
    **LOGS,
}
MEDIA = {"image_size": "ReadOptions.size_px; ledgers of finished runs record the field under this name"}
WORK_PLAN = {
    "max_failed": "failures.failed_rows_max or failures.failed_share_max: a count, or a share with %",
    "runner": "the class of workers: Workers, RayWorkers or BeamWorkers",
    "data_region": "DataRegions.rules, parsed by RegionRules.parse",
    "dry_run": "headrace.app.runs.dry_run, a function of its own",
    "watch": "headrace.app.runs.open_watch, a function of its own",
}
OPTION = {"option": "one entry of the mapping model_options"}
RUN = {**TERMINAL, **MEDIA, **WORK_PLAN, **OPTION}
SAGEMAKER = {
    "content_type": "read.format; SageMaker's name of it in a CreateTransformJob request",
    "split": "read.format; SageMaker's SplitType",
    "accept": "output.format; SageMaker's name of it",
    "strategy": "flow.batch_rows_max = 1; SageMaker's BatchStrategy",
    "strict": "failures.on_error = object; SageMaker's behaviour",
    "spec": "a file of settings",
}
TRANSFORM = {**TERMINAL, **MEDIA, **SAGEMAKER, **WORK_PLAN, **OPTION}
SERVE = {
    **LOGS,
    "no_rest": "rest_port = None, which a shell cannot write",
    "no_grpc": "grpc_port = None, which a shell cannot write",
    "no_metrics": "metrics_port = None, which a shell cannot write",
    "sequence_limit": "one entry of the mapping ServeSettings.sequences",
    **OPTION,
}
WORKERS = {
    **LOGS,
    "data": "JobLocations.folder",
    "keep_days": "Retention.jobs_s, in seconds; nobody writes a month in seconds",
    **OPTION,
}
WORK = {
    **WORKERS,
    "config": "open_worker(file=...), which takes the file's contents from read_jobs_file",
    "end_with_stdin": "the end of the process",
}
SCALE = {
    **LOGS,
    "data": "JobLocations.folder",
    "config": "read_pool, which returns fields of PoolSettings",
    "deployment": "namespace and name of DeploymentActuator",
    "costs_only": "sets_replicas of DeploymentActuator, negated",
}
PLAN = {
    "json": "prints on the terminal",
    "output": "files of plan_page and plan_picture",
    "trace": "the file of traced_load",
    "history": "load_of_jobs",
    "limit": "the number of jobs of load_of_jobs",
    "server": "the URL of Client",
    "api_key": "Client",
    "config": "read_pool, which returns fields of PoolSettings",
}
UP = {
    **WORKERS,
    "no_serve": "model_server = None, which a shell cannot write",
    "no_metrics": "metrics_port = None, which a shell cannot write",
}

RUN_SOURCES = (open_watch, dry_run, Workers, RayWorkers, BeamWorkers, DataRegions)
COMMANDS: Mapping[str, tuple[tuple[Callable[..., Any], ...], dict[str, str]]] = {
    "stream run": ((headrace.run, *RUN_SOURCES), RUN),
    "stream retry-failed": ((headrace.retry_failed,), {**TERMINAL, **OPTION}),
    "transform run": ((headrace.transform, *RUN_SOURCES), TRANSFORM),
    "transform retry-failed": ((headrace.retry_failed,), {**TERMINAL, **OPTION}),
    "serve": ((open_server, ServerOptions, ServeSettings), SERVE),
    "work": (
        (
            open_worker,
            WorkerProcesses,
            JobLocations,
            WorkerListenerOptions,
            WorkerSettings,
            ServeSettings,
            Retention,
        ),
        WORK,
    ),
    "scale run": ((open_pool, PoolSettings, JobLocations, CommandActuator), SCALE),
    "plan": ((LoadOptions, Machine, PoolSettings, compare, recommend), PLAN),
    "up": (
        (open_jobs, JobLocations, JobsOptions, ServerOptions, WorkerSettings, ServeSettings, Retention),
        UP,
    ),
}
PREFIXES = {RayWorkers: ("worker_", "ray_"), BeamWorkers: ("beam_",)}
"""Prefixes of options of a class. The fields of a settings group may have the group's name: output_format."""


def names_of(source: Callable[..., Any]) -> set[str]:
    """Return the names of the parameters or fields, of the groups of settings below them included."""
    prefixes = PREFIXES.get(source, ())
    found = set[str]()
    hints = get_type_hints(source.__init__ if inspect.isclass(source) else inspect.unwrap(source))
    names = (
        [f.name for f in fields(source)] if is_dataclass(source) else [*inspect.signature(source).parameters]
    )
    for name in names:
        found |= {prefix + name for prefix in prefixes}
        if name not in {"options", "settings"}:  # groups without a meaning in their names
            found.add(name)
        if name == "file":  # its contents are settings, not options
            continue
        for group in classes_in(hints.get(name)):
            below = names_of(group)
            found |= below | {f"{name}_{each}" for each in below}
    return found


def classes_in(hint: Any) -> Iterator[type]:
    """Yield the dataclasses of settings in a type."""
    options = getattr(hint, "__args__", (hint,)) if hint is not None else ()
    for option in options:
        if is_dataclass(option) and option.__module__.startswith("headrace."):
            yield option


def command_of(path: str) -> click.Command:
    command: click.Command = load_all()
    for name in path.split():
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


def option_names(path: str) -> list[str]:
    """Return the long names of the shown options and the names of the arguments, with underscores."""
    found: list[str] = []
    for parameter in command_of(path).params:
        if isinstance(parameter, click.Option) and parameter.hidden:
            continue
        names = [name for name in parameter.opts if name.startswith("--")] or parameter.opts
        found.append(names[0].removeprefix("--").replace("-", "_"))
    return found


def is_named(option: str, known: set[str]) -> bool:
    """Return True for the same name, a repeatable option's plural, and a name that ends in its unit."""
    return any(option + ending in known for ending in ("", "s", "_url", "_uri"))


@for_each("path", list(COMMANDS))
def test_options_have_the_names_of_parameters(path):
    sources, exceptions = COMMANDS[path]
    known = set[str]().union(*map(names_of, sources))
    options = option_names(path)
    differ = [name for name in options if not is_named(name, known) and name not in exceptions]
    assert differ == [], "name the option and the parameter alike, or give a reason above"
    unneeded = [name for name in exceptions if name not in options or is_named(name, known)]
    assert unneeded == [], "remove these exceptions"


def test_every_settings_class_is_searched():
    known = names_of(headrace.run)
    assert {
        "resume",
        "overwrite",
        "batch_rows_max",
        "record_bytes_max",
        "output_format",
        "in_flight_max",
    } <= known
    assert "if_exists" not in known
    assert "worker_cpus" in names_of(RayWorkers)


# Old names, for one release

OLD_OPTIONS = {
    "stream run": {
        "--batch-rows": ("--batch-rows-max", "7", 7),
        "--batch-bytes": ("--batch-bytes-max", "2k", 2048),
        "--prefetch-bytes": ("--prefetch-bytes-max", "2k", 2048),
        "--part-bytes": ("--part-bytes-max", "2k", 2048),
        "--in-flight": ("--in-flight-max", "7", 7),
        "--max-concurrent": ("--in-flight-max", "7", 7),
        "--sample-rate": ("--sample-rate-hz", "8000", 8000),
        "--worker-memory": ("--worker-memory-bytes", "2k", 2048),
    },
    "transform run": {
        "--batch-rows": ("--batch-rows-max", "7", 7),
        "--batch-bytes": ("--batch-bytes-max", "2k", 2048),
        "--prefetch-bytes": ("--prefetch-bytes-max", "2k", 2048),
        "--in-flight": ("--in-flight-max", "7", 7),
        "--max-concurrent": ("--in-flight-max", "7", 7),
        "--sample-rate": ("--sample-rate-hz", "8000", 8000),
        "--worker-memory": ("--worker-memory-bytes", "2k", 2048),
    },
    "serve": {"--body-mib-max": ("--body-bytes-max", "3", 3 << 20)},
    "work": {
        "--memory-mib-max": ("--memory-bytes-max", "3", 3 << 20),
        "--beat-s": ("--heartbeat-s", "3", 3.0),
    },
    "up": {
        "--memory-mib-max": ("--memory-bytes-max", "3", 3 << 20),
        "--beat-s": ("--heartbeat-s", "3", 3.0),
    },
}
REQUIRED = {
    "stream run": ["in", "--output", "out"],
    "transform run": [],
    "serve": ["m"],
    "work": ["m"],
    "up": [],
}


@for_each("path", list(OLD_OPTIONS))
def test_old_options_set_the_new_ones_with_a_warning(path, capsys):
    command = command_of(path)
    for old, (new, text, value) in OLD_OPTIONS[path].items():
        name = new.removeprefix("--").replace("-", "_")
        context = command.make_context("test", [*REQUIRED[path], old, text])
        assert context.params[name] == value
        assert capsys.readouterr().err == f"warning: {old} is deprecated: use {new}\n"
        both = command.make_context("test", [*REQUIRED[path], new, str(value), old, "1"])
        assert both.params[name] == value, "the new name takes precedence"
        capsys.readouterr()
    assert not any(f"{old} " in command.get_help(context) for old in OLD_OPTIONS[path])


def test_hidden_options_are_the_old_names():
    hidden = {
        path: {p.opts[0] for p in command_of(path).params if isinstance(p, click.Option) and p.hidden}
        for path in COMMANDS
    }
    assert {path: names for path, names in hidden.items() if names} == {
        path: set(names) for path, names in OLD_OPTIONS.items()
    }


@for_each("value", ["refuse", "resume", "overwrite"])
def test_if_exists_is_deprecated(tmp_path_factory, value):
    folder = tmp_path_factory.mktemp("old")
    with pytest.warns(DeprecationWarning, match="use resume=True or overwrite=True") as warned:
        opened = headrace.open_run("in/", model=headrace.Model, output=f"{folder}/", if_exists=value)
    assert opened.run._if_exists == value
    assert warned[0].filename == __file__, "the warning names the caller's file"


def test_page_is_deprecated(tmp_path):
    (tmp_path / "double.py").write_text(
        "import headrace\nclass D(headrace.Model):\n def predict(self, x):\n  return x\n"
    )
    (tmp_path / "a.csv").write_text("1,2\n")
    with pytest.warns(DeprecationWarning, match='use report="html"') as warned:
        headrace.transform_sync(
            f"{tmp_path}/a.csv", f"{tmp_path}/out/", model=f"{tmp_path}/double.py", page=True
        )
    assert (tmp_path / "out" / "_report.html").exists()
    assert warned[0].filename == __file__


def test_resume_and_overwrite_exclude_each_other(tmp_path):
    with pytest.raises(headrace.HeadraceError, match="cannot be combined"):
        headrace.open_run("in/", model=headrace.Model, output=f"{tmp_path}/", resume=True, overwrite=True)
