"""``headrace scale``: control pools of workers, and show them with the decisions about their numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import Any, Final, TextIO, cast

import click
import orjson
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from headrace.app.server_options import AutoscalerOptions, JobLocations, JobsOptions, TlsFiles
from headrace.cli.commands import (
    JOB_SERVER_OPTIONS,
    DefaultCommandGroup,
    examples,
    exit_on_error,
    run_job_command,
)
from headrace.cli.job_display import timestamp
from headrace.cli.logs import configure_server_logs
from headrace.cli.options import (
    SERVER_LOG_OPTIONS,
    given_values,
    option,
    parse_json,
    setting_options,
    settings_from,
)
from headrace.cli.responses import plain_table, print_documents, printable
from headrace.cli.serve import (
    DATA_OPTION,
    job_extras,
    print_addresses,
    require_extras,
    run_process,
    tls_files,
)
from headrace.cli.worker_pool import WORKER_RANGE
from headrace.core.errors import ConfigError
from headrace.core.settings_reader import read_settings
from headrace.reports.report import one_line
from headrace.scaling.actuator import Actuator
from headrace.scaling.settings import POOL_DEFAULT, PoolSettings

_EPILOG = """\b
Examples:
  Scale a Deployment of `headrace work` from zero, by its jobs in PostgreSQL:
    headrace scale --pool gpu --queue night --workers 0..20 \\
        --deployment default/headrace-worker --ledger postgresql://jobs@db/jobs
  Scale a group of machines by a command:
    headrace scale --workers 0..4 --command 'aws autoscaling set-desired-capacity \\
        --auto-scaling-group-name gpu --desired-capacity {workers}'
  Let KEDA scale the Deployment by these decisions, and idle pods go first:
    headrace scale --pool gpu --workers 0..20 --ledger postgresql://jobs@db/jobs \\
        --keda-port 9090 --host 0.0.0.0 --insecure \\
        --deployment default/headrace-worker --costs-only
  List the pools, and show why one was scaled:
    headrace scale list
    headrace scale history gpu
  Translate the settings of another autoscaler:
    kubectl get hpa worker -o json | headrace scale translate -
"""
_RUN_EPILOG = examples(
    "headrace scale --workers 0..4 --command './resize {workers}'",
    "headrace scale --pool gpu --config jobs.toml --deployment default/headrace-worker",
)
_LIMIT: Final = 50
_ONLY_IN_FILES: Final = frozenset({"steps", "schedules"})


class _ScaleGroup(DefaultCommandGroup):
    """The group of `headrace scale`, whose help is that of all its commands."""

    @override
    def is_for_default(self, args: list[str]) -> bool:
        return args[:1] not in (["-h"], ["--help"]) and super().is_for_default(args)


@click.group("scale", cls=_ScaleGroup, epilog=_EPILOG)
def scale_command() -> None:
    """Control the number of workers of a pool, or show pools and their history.

    Without a command, `headrace scale` is `headrace scale run`.
    """


@scale_command.command("run", epilog=_RUN_EPILOG, context_settings={"auto_envvar_prefix": "HEADRACE_SCALE"})
@option(
    "--pool",
    default=POOL_DEFAULT,
    show_default=True,
    metavar="NAME",
    help="Name of the pool. --config may set it up, in the table [pools.NAME].",
)
@click.option("--command", "command", metavar="COMMAND", help="Command that resizes the pool to {workers}.")
@click.option("--deployment", metavar="NAMESPACE/NAME", help="Deployment in Kubernetes to scale.")
@click.option(
    "--costs-only",
    is_flag=True,
    help="Let another autoscaler set the replicas of --deployment. Set deletion costs: idle pods go first.",
)
@DATA_OPTION
@setting_options(JobLocations, only={"ledger"})
@setting_options(JobsOptions, only={"config"})
@setting_options(PoolSettings, without=_ONLY_IN_FILES, types={"workers": WORKER_RANGE})
@setting_options(AutoscalerOptions, TlsFiles)
@SERVER_LOG_OPTIONS
def run_command(pool: str, costs_only: bool, **params: Any) -> None:
    """Scale a pool of workers by the jobs in its queues, until SIGTERM.

    Any number of controllers may run: one scales the pool, and the others stand by. Without --command
    and --deployment, decisions are published only, for people and other autoscalers.

    KEDA reads the decisions about all pools at --keda-port, and a HorizontalPodAutoscaler at
    --external-metrics-port; see docs/scaling.md.
    """
    configure_server_logs(params["log_format"], params["verbose"])
    with exit_on_error():
        extras = job_extras({**params, "dispatcher": None})
        extras += ["kubernetes"] if params["deployment"] else []
        extras += ["grpc"] if params["keda_port"] is not None else []
        require_extras("headrace scale", *extras)
        # Jobs are an optional dependency: the other commands work without it.
        from headrace.app.worker_pool import open_pool, pool_settings  # noqa: PLC0415

        settings = pool_settings(params["config"], pool, given_values(PoolSettings, params))
        actuator, how = _actuator(pool, params["command"], params["deployment"], costs_only=costs_only)
        url = params["ledger"] or JobLocations.folder(params["data"]).ledger_url
        options = settings_from(AutoscalerOptions, params, tls=tls_files(params))
        opened = open_pool(url, actuator, settings, options)
        ready = f"ready: pool {pool}, {settings.workers} workers, {how}"
        run_process(opened.run, lambda: print_addresses(opened.addresses, 16, ready=ready))


def _actuator(
    pool: str, command: str | None, deployment: str | None, *, costs_only: bool
) -> tuple[Actuator, str]:
    """Return the actuator that the options name, and its description."""
    if command is not None and deployment is not None:
        raise ConfigError("--command and --deployment exclude each other: a pool has one actuator")
    if costs_only and deployment is None:
        raise ConfigError("--costs-only needs --deployment: it sets the deletion costs of its pods")
    if deployment is not None:
        from headrace.scaling.actuators.kubernetes import DeploymentActuator  # noqa: PLC0415 - optional

        namespace, slash, name = deployment.partition("/")
        if not slash:
            raise ConfigError(f"--deployment must be NAMESPACE/NAME, not {deployment}")
        how = f"deletion costs of Deployment {deployment}" if costs_only else f"Deployment {deployment}"
        return DeploymentActuator(namespace, name, sets_replicas=not costs_only), how
    if command is not None:
        from headrace.scaling.actuators.command import CommandActuator  # noqa: PLC0415 - with its actuator

        return CommandActuator(command, pool=pool), "by a command"
    from headrace.scaling.actuators.publish import PublishOnly  # noqa: PLC0415 - with its actuator

    return PublishOnly(), "published only"


@scale_command.command(
    "translate",
    epilog=examples(
        "kubectl get hpa worker -o json | headrace scale translate -",
        "headrace scale translate target.json policies.json --pool gpu",
    ),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.File(encoding="utf-8"))
@click.option("--pool", default=POOL_DEFAULT, show_default=True, metavar="NAME", help="Name of the pool.")
def translate_command(files: tuple[TextIO, ...], pool: str) -> None:
    """Print the settings of a pool that scales as another autoscaler does, for the file of --config.

    FILE... is a HorizontalPodAutoscaler as JSON; or the scalable target, the scaling policies and the
    scheduled actions of AWS Application Auto Scaling, as requests or as the answers of describe commands.
    A setting without an equal is an error.
    """
    from headrace.scaling.translation import pool_table  # noqa: PLC0415 - needed here alone

    with exit_on_error():
        documents: list[Any] = [parse_json(file.read(), file.name) for file in files]
        if not all(isinstance(document, dict) for document in documents):
            raise ConfigError("each file must have one JSON object")
        table = pool_table(documents)
        replace(read_settings(PoolSettings, table, "the settings"), pool=pool)
        click.echo(_toml(pool, table))


def _toml(pool: str, table: Mapping[str, Any]) -> str:
    """Return the table of a pool as TOML."""
    lines = [f"[pools.{pool}]"]
    lines += [f"{name} = {_toml_value(value)}" for name, value in table.items() if name != "schedules"]
    for schedule in table.get("schedules", ()):
        lines += ["", f"[[pools.{pool}.schedules]]"]
        lines += [f"{name} = {_toml_value(value)}" for name, value in schedule.items()]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        members = cast("Mapping[str, Any]", value).items()
        return f"{{ {', '.join(f'{name} = {_toml_value(each)}' for name, each in members)} }}"
    return orjson.dumps(value).decode()


@scale_command.command("list", epilog=examples("headrace scale list", "headrace scale list --json"))
@JOB_SERVER_OPTIONS
def list_command(**params: Any) -> None:
    """List the pools of workers, each with its last decision.

    A pool is listed until it had no controller for 30 days.
    """
    none = "no pools: no controller has scaled workers in the last 30 days"
    run_job_command(params, lambda client: print_documents(client.pools(), params, _pool_table, none=none))


@scale_command.command(
    "history",
    epilog=examples(
        "headrace scale history",
        "headrace scale history gpu -n 10",
        "headrace scale history gpu --json | jq .observed",
    ),
)
@click.argument("pool", required=False)
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=_LIMIT, show_default=True, help="Limit of decisions."
)
@JOB_SERVER_OPTIONS
def history_command(pool: str | None, **params: Any) -> None:
    """List the decisions about POOL, or about all pools, newest first.

    Decisions are kept for 30 days.
    """

    def call(client: Any) -> None:
        found = client.decisions(pool) if pool else _all_decisions(client)
        limited = list(islice(found, params["limit"]))
        print_documents(limited, params, _decision_table, none="no decisions")

    run_job_command(params, call)


def _all_decisions(client: Any) -> Iterator[dict[str, Any]]:
    """Return the decisions about all pools, newest first."""
    logs = [client.decisions(pool["pool"]) for pool in client.pools()]
    return merge(*logs, key=lambda decision: decision["number"], reverse=True)


def _pool_table(pools: Sequence[dict[str, Any]]) -> Table:
    table = plain_table("pool", "wanted ", "controller", "state", "since", "reason")
    for pool in pools:
        decision = pool["decision"]
        table.add_row(
            _text(pool["pool"]),
            "-" if decision is None else f"{decision['wanted']:,}",
            _text(pool["controller"]),
            Text("controlled", "green") if pool["controlled"] else Text("uncontrolled", "yellow"),
            "-" if decision is None else timestamp(decision["at_ms"]),
            Text("-") if decision is None else _text(decision["reason"]),
        )
    return table


def _decision_table(decisions: Sequence[dict[str, Any]]) -> Table:
    table = plain_table("time", "pool", "workers", "reason")
    for decision in decisions:
        table.add_row(
            timestamp(decision["at_ms"]),
            _text(decision["pool"]),
            f"{decision['workers']:,} -> {decision['wanted']:,}",
            _text(decision["reason"]),
        )
    return table


def _text(value: str) -> Text:
    """Return one line of text that is no markup."""
    return Text(printable(one_line(value)) or "-")
