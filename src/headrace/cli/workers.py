"""``headrace workers``: show the workers of jobs, drain them and end a drain."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click
import orjson
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from headrace.cli.commands import JOB_SERVER_OPTIONS, DefaultListGroup, examples, print_each, run_job_command
from headrace.cli.job_display import age_text
from headrace.cli.responses import plain_table, print_documents, printable

_EPILOG = """\b
Examples:
  List the workers, or show one with its running jobs:
    headrace workers
    headrace workers show gpu-1
  Let a worker claim no more jobs, wait until none of its jobs runs, and end it:
    headrace workers drain gpu-1
    headrace workers show gpu-1 --json | jq -r .state
  Let it claim again:
    headrace workers undrain gpu-1
  Print the names of lost workers, for a script:
    headrace workers --json | jq -r 'select(.state == "lost") | .name'
"""
_COLOURS: Final = {
    "running": "green",
    "draining": "yellow",
    "drained": "yellow",
    "stopped": "bright_black",
    "lost": "red",
}
_MODELS_SHOWN: Final = 3


@click.group("workers", cls=DefaultListGroup, epilog=_EPILOG)
def workers_command() -> None:
    """List and drain workers. drain and undrain need a key with the scope operate."""


@workers_command.command("list", epilog=examples("headrace workers list --json"))
@JOB_SERVER_OPTIONS
def list_command(**params: Any) -> None:
    """List the workers, with those that ended in the last day. The default of `headrace workers`."""
    none = "no workers: start one with headrace work MODEL"
    run_job_command(
        params, lambda client: print_documents(client.workers(), params, _worker_table, none=none)
    )


@workers_command.command("show", epilog=examples("headrace workers show gpu-1"))
@click.argument("worker")
@JOB_SERVER_OPTIONS
def show_command(worker: str, **params: Any) -> None:
    """Show WORKER with its running jobs."""

    def call(client: Any) -> None:
        found = client.worker(worker)
        if params["json_lines"]:
            click.echo(orjson.dumps(found))
            return
        for name, value in _details(found).items():
            if value:
                click.echo(f"{click.style(f'{name:<10}', bold=True)}  {printable(value)}")

    run_job_command(params, call)


@workers_command.command("drain", epilog=examples("headrace workers drain gpu-1 gpu-2"))
@click.argument("workers", nargs=-1, required=True, metavar="WORKER...")
@JOB_SERVER_OPTIONS
def drain_command(workers: tuple[str, ...], **params: Any) -> None:
    """Let each WORKER claim no more jobs. Its running jobs continue."""
    run_job_command(params, lambda client: _change_each(client.drain_worker, workers, params))


@workers_command.command("undrain", epilog=examples("headrace workers undrain gpu-1 gpu-2"))
@click.argument("workers", nargs=-1, required=True, metavar="WORKER...")
@JOB_SERVER_OPTIONS
def undrain_command(workers: tuple[str, ...], **params: Any) -> None:
    """Let each WORKER claim jobs again."""
    run_job_command(params, lambda client: _change_each(client.undrain_worker, workers, params))


def _change_each(change: Callable[[str], Any], names: Iterable[str], params: dict[str, Any]) -> int:
    def apply(name: str) -> tuple[str, dict[str, Any]]:
        worker = change(name)
        return f"{worker['state']}, {worker['running']} running", worker

    return print_each(names, apply, params)


def _worker_table(workers: Sequence[dict[str, Any]]) -> Table:
    # Generated names begin with the host.
    hosts = not all(worker["name"].startswith(worker["host"]) for worker in workers)
    table = plain_table(
        "name",
        "state",
        *(["host"] if hosts else []),
        "version",
        "slots ",
        "queues",
        "models",
        "memory ",
        "gpu ",
        "seen ",
        "last crash",
    )
    for worker in workers:
        table.add_row(
            printable(worker["name"]),
            Text(worker["state"] + ("" if worker["ready"] else ", not ready"), _COLOURS[worker["state"]]),
            *([printable(worker["host"])] if hosts else []),
            worker["version"] or "-",
            f"{worker['running']}/{worker['slots']}",
            _shortened(worker["queues"]),
            _shortened(_models(worker)),
            _size(worker["memory_bytes"]),
            _gpu_text(worker["gpus"]),
            _ago(worker["seen_at_ms"]),
            Text(_crash_text(worker["last_crash"])),
        )
    return table


def _details(worker: dict[str, Any]) -> dict[str, str]:
    crash = worker["last_crash"]
    state = worker["state"] + ("" if worker["ready"] else ", not ready")
    return {
        "name": worker["name"],
        "state": state + (f", drained by {worker['draining_by']}" if worker["draining_by"] else ""),
        "host": f"{worker['host']}, process {worker['pid']}",
        "version": worker["version"],
        "region": worker["region"],
        "queues": ", ".join(worker["queues"]),
        "models": ", ".join(worker["models"]),
        "slots": f"{worker['running']} of {worker['slots']} in use",
        "jobs": ", ".join(worker["job_ids"]),
        "memory": _size(worker["memory_bytes"]),
        "gpus": "; ".join(
            f"{gpu['index']}: {gpu['name']}, {_size(gpu['used_bytes'])} of {_size(gpu['total_bytes'])}"
            for gpu in worker["gpus"]
        ),
        "last crash": _crash_text(crash) + (f": {crash['message']}" if crash and crash["message"] else ""),
        "started": _ago(worker["started_at_ms"]),
        "seen": _ago(worker["seen_at_ms"]),
        "stopped": _ago(worker["stopped_at_ms"]),
    }


def _models(worker: dict[str, Any]) -> list[str]:
    """Return the models of a worker, each without its versions."""
    return list(dict.fromkeys(model.partition("@")[0] for model in worker["models"]))


def _shortened(names: list[str]) -> str:
    more = f" +{len(names) - _MODELS_SHOWN}" if len(names) > _MODELS_SHOWN else ""
    return printable(", ".join(names[:_MODELS_SHOWN]) + more) or "-"


def _gpu_text(gpus: list[dict[str, Any]]) -> str:
    used, total = (sum(gpu[name] for gpu in gpus) for name in ("used_bytes", "total_bytes"))
    return f"{_size(used)} of {_size(total)}" if gpus else "-"


def _crash_text(crash: dict[str, Any] | None) -> str:
    if crash is None:
        return ""
    return printable(f"{crash['model']} {crash['cause'] or 'unknown cause'}, {_ago(crash['at_ms'])}")


def _size(nbytes: int | None) -> str:
    return "-" if nbytes is None else decimal(nbytes)


def _ago(at_ms: int | None) -> str:
    return "" if at_ms is None else f"{age_text(at_ms)} ago"
