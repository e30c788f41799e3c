"""``headrace plan``: simulate a pool in several modes, and recommend one by its cost and waiting times."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, Final, TextIO

import click
import orjson
from rich.table import Table
from rich.text import Text

from headrace.cli.commands import JOB_SERVER_OPTIONS, exit_on_error, run_job_command
from headrace.cli.options import given_values, keep_explicit, option_name, setting_options, settings_from
from headrace.cli.responses import plain_table, print_table
from headrace.cli.worker_pool import WORKER_RANGE
from headrace.core.errors import ConfigError
from headrace.scaling.planner.arrivals import LoadOptions, generated_load, load_of_jobs, traced_load
from headrace.scaling.planner.load import Load
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.modes import compare
from headrace.scaling.planner.plan import COLUMNS, PoolPlan
from headrace.scaling.planner.recommendation import WAIT_S_MAX_DEFAULT, recommend
from headrace.scaling.settings import POOL_DEFAULT, WORKERS_MAX, PoolSettings

_EPILOG = """\b
Examples:
  Compare the modes for 100 jobs a day of 5 minutes, on machines at $0.736 an hour. A machine that is
  always on costs $17.66 a day; the busy time alone costs $6.13, which would save 65.3 %:
    headrace plan --jobs-per-day 100 --run-s 300 --price-per-h 0.736 --currency '$'
  The same jobs in office hours, if a user waits for each, and for machines that start in 5 minutes:
    headrace plan --run-s 300 --arrivals office --wait-s-max 5
    headrace plan --run-s 300 --arrivals office --start-s 300 --no-start-billed
  The policy of a settings file, on spot machines that run 4 jobs at once:
    headrace plan --run-s 300 --config jobs.toml --pool gpu --concurrency 4 --interruptions-per-h 0.05
  The jobs of a file with one line for each, its time and seconds; or of a job server:
    headrace plan --trace jobs.csv --workers 0..20
    headrace plan --history --server http://jobs:8090 --queue night
  A page, a picture, and all figures for a script:
    headrace plan --run-s 300 --output plan.html --output plan.png
    headrace plan --run-s 300 --json | jq .recommendation
"""
_HISTORY_LIMIT: Final = 10_000
_GENERATED: Final = ("jobs_per_day", "arrivals", "days")
"""Options of generated loads alone."""
_NOT_SIMULATED: Final = frozenset({"steps", "schedules", "queues", "slots"})
"""Settings of a pool that are only in files (the first two), or that simulated jobs do not have."""
_HTML: Final = ".html"
_PNG: Final = ".png"


@click.command("plan", epilog=_EPILOG)
@setting_options(LoadOptions)
@click.option(
    "--trace",
    type=click.File(encoding="utf-8"),
    help="CSV file of jobs, one line for each: its time and its seconds; - is standard input.",
)
@click.option("--history", is_flag=True, help="Take the jobs of the job server at --server.")
@click.option("--queue", "-q", "queues", multiple=True, help="Queue of the jobs of --history. Repeatable.")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(min=1),
    default=_HISTORY_LIMIT,
    show_default=True,
    help="Limit of jobs of --history, the newest first.",
)
@setting_options(Machine)
@click.option("--currency", default="", help="Currency of costs, such as $ or EUR.")
@click.option(
    "--wait-s-max",
    type=click.FloatRange(min=0),
    default=WAIT_S_MAX_DEFAULT,
    help="Longest acceptable wait in seconds, which 95 % of the jobs must keep."
    f"  [default: {WAIT_S_MAX_DEFAULT:g}]",
)
@click.option(
    "--always-on",
    type=click.IntRange(1, WORKERS_MAX),
    help="Number of machines that are always on.  [default: busy for at most 80 % of the time]",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with the policy of the pool, in the table [pools.NAME].",
)
@click.option("--pool", metavar="NAME", help=f"Name of the pool in --config.  [default: {POOL_DEFAULT}]")
@setting_options(PoolSettings, without=_NOT_SIMULATED, types={"workers": WORKER_RANGE})
@click.option(
    "--output",
    "-o",
    "outputs",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the plan: a page (.html) or a picture (.png). Repeatable.",
)
@JOB_SERVER_OPTIONS
def plan_command(trace: TextIO | None, history: bool, **params: Any) -> None:
    """Simulate a pool of workers, and recommend a mode by its cost and its waiting times.

    The modes are: machines that are always on; the default policy from zero machines to the largest number
    of --workers; the same for jobs that wait until 02:00 UTC; and your policy, if options or --config set
    one. The policy decides with the code of `headrace scale`. Jobs are generated, unless --trace or
    --history gives them.

    A wait is the time from the arrival of a job to its start. Costs have the currency of --price-per-h.
    """
    _check_source(trace, params, history=history)
    with exit_on_error(json_lines=params["json_lines"]):
        writers = [_writer(path) for path in params["outputs"]]
        settings = _pool_settings(params)
        machine = settings_from(Machine, params)
        options = settings_from(LoadOptions, params)

    def show(load: Load) -> None:
        plan = _plan(load, machine, settings, params, seed=options.seed)
        for path, write in zip(params["outputs"], writers, strict=True):
            _save(path, write(plan))
        if params["json_lines"]:
            click.echo(orjson.dumps(plan.document()))
        else:
            _print(plan)

    if history:
        queues = params["queues"] or settings.queues if params["config"] else params["queues"]
        run_job_command(
            params, lambda client: show(load_of_jobs(_jobs(client, queues, params["limit"]), options))
        )
        return
    with exit_on_error(json_lines=params["json_lines"]):
        show(generated_load(options) if trace is None else traced_load(trace, trace.name, options))


def _check_source(trace: TextIO | None, params: dict[str, Any], *, history: bool) -> None:
    """Raise UsageError for options that do not go together."""
    if trace is not None and history:
        raise click.UsageError("--trace and --history exclude each other: a plan has one source of jobs")
    source = "--history" if history else "--trace"
    if (trace is not None or history) and (unfit := keep_explicit(params, _GENERATED)):
        raise click.UsageError(f"{option_name(unfit[0])} generates jobs: leave it out with {source}")
    if trace is None and not history and params["run_s"] is None:
        raise click.UsageError("give the seconds of a job with --run-s, or jobs with --trace or --history")
    if params["queues"] and not history:
        raise click.UsageError("--queue selects jobs of --history")
    if params["pool"] is not None and params["config"] is None:
        raise click.UsageError("--pool names a table of --config")


def _pool_settings(params: Mapping[str, Any]) -> PoolSettings:
    """Return the settings of the pool: those of the options, then of the file, then the defaults."""
    config, pool = params["config"], params["pool"] or POOL_DEFAULT
    values: dict[str, Any] = {}
    if config is not None:
        # The packages of the settings file are optional: other plans work without them.
        from headrace.cli.serve import require_extras  # noqa: PLC0415

        require_extras("headrace plan --config", "jobs")
        from headrace.config.jobs_file import read_pool  # noqa: PLC0415

        values.update(read_pool(config, pool))
        if not values:
            raise ConfigError(f"{config}: has no settings in a table [pools.{pool}]")
    values.update(given_values(PoolSettings, params))
    values["pool"] = pool
    return PoolSettings(**values)


def _jobs(client: Any, queues: Sequence[str], limit: int) -> Iterator[Any]:
    """Yield the jobs of queues, or of all without any, the newest first. Report older ones."""
    listed: list[Iterator[Any]] = [client.list(queue=queue) for queue in queues] or [client.list()]
    newest_first = merge(*listed, key=_created_at_ms, reverse=True)
    yield from islice(newest_first, limit)
    if next(newest_first, None) is not None:
        click.echo(f"older jobs are left out: the first day may be incomplete (--limit {limit})", err=True)


def _created_at_ms(job: Any) -> int:
    return job.created_at_ms


def _plan(
    load: Load, machine: Machine, settings: PoolSettings, params: Mapping[str, Any], *, seed: int
) -> PoolPlan:
    """Return the plan. On a terminal, show which mode is simulated."""

    def show_progress(mode: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"simulating {len(load.run_s):,} jobs: {mode}", err=True)

    modes = compare(
        load,
        machine,
        settings,
        always_on=params["always_on"],
        interval_s=settings.interval_s,
        seed=seed,
        on_mode=show_progress,
    )
    currency = params["currency"]
    chosen = recommend(load, machine, modes, wait_s_max=params["wait_s_max"], currency=currency)
    return PoolPlan(load, machine, modes, chosen, currency)


def _writer(path: Path) -> Callable[[PoolPlan], bytes]:
    """Return the function that writes a plan in the format of a file. Raise ConfigError without one."""
    if path.suffix == _HTML:
        from headrace.scaling.planner.page import plan_page  # noqa: PLC0415 - needed for files alone

        return plan_page
    if path.suffix == _PNG:
        from headrace.scaling.planner.picture import plan_picture  # noqa: PLC0415 - optional dependency

        return plan_picture
    raise ConfigError(f"--output {path}: unknown file type: use {_HTML} or {_PNG}")


def _save(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def _print(plan: PoolPlan) -> None:
    click.echo(f"{plan.load_text}\n")
    print_table(_table(plan))
    recommended = click.style("recommended:", bold=True)
    click.echo(f"\n{recommended} {plan.recommendation_text}")
    for reason in plan.recommendation.reasons:
        click.echo(f"- {reason}")


def _table(plan: PoolPlan) -> Table:
    mode, workers, *figures = COLUMNS
    table = plain_table(mode, workers, *(f"{name} " for name in figures))
    for row in plan.rows():
        table.add_row(*map(Text, row), style="bold" if row[0] == plan.recommendation.mode else None)
    return table
