"""The option ``--workers`` of `headrace up` and `headrace work`, and the commands of worker processes."""

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from headrace.cli.options import ParsedType, option
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.app.worker_pool import WorkerProcesses
    from headrace.jobs.worker import WorkerSettings

_WITH_PARENT: Final = "--end-with-stdin"
_STDIN: Final = 0
_WORK_PREFIX: Final = "HEADRACE_WORK"
_NOT_PASSED: Final = frozenset({"workers", "end_with_stdin", "metrics_port", "host"})
"""Options of `headrace work` that one worker of several does not get: they have no port."""


def _parse_range(text: str) -> Any:
    from headrace.scaling.settings import WorkerRange  # noqa: PLC0415 - slow to import

    return WorkerRange.parse(text)


WORKER_RANGE: Final = ParsedType("range", _parse_range)
WORKERS_OPTION = option(
    "--workers",
    type=WORKER_RANGE,
    metavar="MIN..MAX",
    help="Run worker processes, as many as the jobs need in this range, such as 0..8; see docs/scaling.md.",
)
END_WITH_STDIN_OPTION = click.option(
    _WITH_PARENT, is_flag=True, help="Drain when standard input ends, as a pipe does with its other process."
)


def worker_processes(
    context: click.Context, work_command: click.Command, settings: "WorkerSettings"
) -> "WorkerProcesses":
    """Return the worker processes of a command with ``--workers``, which get its other options.

    Raises:
        ConfigError: No model is given, or the settings file has settings that do not fit.
    """
    from headrace.app.worker_pool import WorkerProcesses, local_pool  # noqa: PLC0415 - optional dependency

    params = context.params
    if not params["models"]:
        raise ConfigError("--workers needs MODEL...: the models of the workers")
    pool = local_pool(params["config"], params["workers"], settings)
    arguments = ["-m", "headrace", "work", _WITH_PARENT, *_given_options(context, work_command)]
    return WorkerProcesses([*arguments, "--", *params["models"]], pool, _environment(context, work_command))


def _given_options(context: click.Context, work_command: click.Command) -> list[str]:
    """Return the options of the context's command line that `work_command` has, too."""
    arguments: list[str] = []
    given = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
    for parameter in _passed(context, work_command):
        if context.get_parameter_source(str(parameter.name)) in given:
            arguments += _arguments(parameter, context.params[str(parameter.name)])
    return arguments


def _environment(context: click.Context, work_command: click.Command) -> Mapping[str, str]:
    """Return the environment of a worker.

    It has the variables of the context's own command under the names of `headrace work`, and none for
    options that a worker must not get: with ``HEADRACE_WORKERS`` it would start workers of its own.
    """
    environ = dict(os.environ)
    for name in _NOT_PASSED:
        for prefix in ("HEADRACE", _WORK_PREFIX):
            environ.pop(f"{prefix}_{name.upper()}", None)
    for parameter in _passed(context, work_command):
        name = str(parameter.name).upper()
        if (value := os.environ.get(f"{context.auto_envvar_prefix}_{name}")) is not None:
            environ[f"{_WORK_PREFIX}_{name}"] = value
    return environ


def _passed(context: click.Context, work_command: click.Command) -> list[click.Option]:
    return [
        parameter
        for parameter in work_command.params
        if isinstance(parameter, click.Option)
        and parameter.name in context.params
        and parameter.name not in _NOT_PASSED
    ]


def _arguments(parameter: click.Option, value: Any) -> list[str]:
    name = parameter.opts[-1] if parameter.opts[-1].startswith("--") else parameter.opts[0]
    if parameter.is_flag:
        return [name if value else parameter.secondary_opts[0]]
    if parameter.count:
        return [name] * value
    values: Sequence[Any] = value if parameter.multiple else [value]
    return [argument for each in values for argument in (name, str(each))]


def drain_at_end_of_stdin() -> None:
    """Send this process SIGTERM when its standard input ends, which it does with the parent process."""

    def wait() -> None:
        # Not sys.stdin: a thread in it stops the interpreter from ending.
        while os.read(_STDIN, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="headrace-parent", daemon=True).start()
