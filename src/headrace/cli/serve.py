"""``headrace serve``, ``headrace up`` and ``headrace work``: run servers and job workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

import click

from headrace.app.server_options import (
    DrainSettings,
    JobLocations,
    JobsOptions,
    RestLimits,
    ServerOptions,
    TlsFiles,
    WorkerListenerOptions,
)
from headrace.cli.commands import complete_files, exit_on_error
from headrace.cli.logs import configure_server_logs
from headrace.cli.options import (
    MODEL_OPTIONS_OPTION,
    SERVER_LOG_OPTIONS,
    combined_options,
    given_values,
    key_values,
    model_options,
    old_option_name,
    option,
    setting_options,
    settings_from,
)
from headrace.cli.worker_pool import (
    END_WITH_STDIN_OPTION,
    WORKERS_OPTION,
    drain_at_end_of_stdin,
    worker_processes,
)
from headrace.core.address import REDIS_SCHEMES
from headrace.core.errors import ConfigError, MissingExtraError
from headrace.engine.settings import ServeSettings
from headrace.jobs.maintenance import Retention
from headrace.jobs.worker import DAY_S, WorkerSettings
from headrace.server.exit_deadline import INTERPRETER_S, ExitDeadline

_SERVE_EPILOG = """\b
Examples:
  Serve an ONNX file and a class of a Python file on localhost:
    headrace serve churn.onnx words.py:Words
  Serve a model under another name, with two instances in processes:
    headrace serve spam=model.onnx --instances 2 --isolation process
  Serve a folder of models on all addresses, with API keys and TLS:
    headrace serve models/ --host 0.0.0.0 --api-keys keys.toml \\
        --tls-certificate server.pem --tls-key server.key
  Send requests to the server:
    headrace infer churn --input '[[42, 3.5, 0]]'
    curl localhost:8080/v2/models/churn
"""
KEEP_DAYS: Final = 30.0
_NOT_OF_WORKERS: Final = frozenset({"isolation", "queue_rows_max", "streams_max", "checkpoints"})
"""Settings of a model without a meaning for jobs: they have a bound of their own, no streams, no states."""
_NOT_OF_JOBS: Final = frozenset(
    {
        "host",
        "insecure",
        "allow_hosts",
        "grpc_port",
        "metrics_port",
        "api_keys",
        "grpc_carrier",
        "stream_dialect",
        "access_log",
    }
)
"""Options of `headrace serve` that the model server beside a job API does not have."""
_UP_EPILOG = """\b
Examples:
  Run jobs of a model: data in ./headrace-data, the job API on port 8090:
    headrace up churn.onnx
  Submit a job from another terminal:
    headrace submit rows.csv --model churn --wait
  Run the jobs in up to eight processes, and in none while there are no jobs:
    headrace up churn.onnx --workers 0..8
  Run the job API alone, for workers on other machines:
    headrace up --ledger postgresql://jobs@db/jobs --store s3://bucket/jobs/ \\
        --config jobs.toml --host 0.0.0.0
"""
_WORK_EPILOG = """\b
Examples:
  Work on the jobs of a model, with data in ./headrace-data:
    headrace work churn.onnx
  Run sixteen jobs at once, from two queues, with shared batches:
    headrace work churn.onnx --queue urgent --queue default --concurrency 16
  Work on the jobs of a region first, and on others when idle (or --other-regions never):
    headrace work churn.onnx --region eu-west-1 --config jobs.toml
  Use a ledger in PostgreSQL, and payloads and results in S3:
    headrace work models/ --ledger postgresql://jobs@db/jobs --store s3://bucket/jobs/
"""


@click.command("serve", epilog=_SERVE_EPILOG, context_settings={"auto_envvar_prefix": "HEADRACE_SERVE"})
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_files)
@setting_options(ServerOptions, ServeSettings, RestLimits, TlsFiles, DrainSettings)
@click.option("--no-rest", is_flag=True, help="Do not open the REST port.")
@click.option("--no-grpc", is_flag=True, help="Do not open the gRPC port.")
@click.option("--no-metrics", is_flag=True, help="Do not open the metrics port.")
@click.option(
    "--sequence-limit",
    "sequence_limits",
    multiple=True,
    metavar="LIMIT=VALUE",
    help="Sequence limit (live_max, idle_ms, …) of models with a step method. Repeatable.  "
    "[default: the model's own]",
)
@MODEL_OPTIONS_OPTION
@old_option_name("--body-mib-max", "--body-bytes-max", "body_bytes_max", "{}MiB".format)
@SERVER_LOG_OPTIONS
def serve_command(models: tuple[str, ...], **params: Any) -> None:
    """Serve MODEL... over REST, event streams and gRPC.

    A MODEL is a file (model.onnx, file.py:Class), a class (module:Class), a folder, an archive or a URI,
    or a folder with one model.toml for each model; see docs/models.md. NAME=MODEL gives it another
    name. SIGTERM drains the server: it
    reports "not ready", finishes running requests and exits with status 0.
    """
    configure_server_logs(params["log_format"], params["verbose"], access=params["access_log"])
    with exit_on_error():
        asgi = params["grpc_carrier"] == "asgi"
        require_extras("headrace serve", "serve", *(["http2"] if asgi else []))
        # Serving is an optional dependency: the other commands work without it.
        from headrace.app.serving import open_server  # noqa: PLC0415

        server = open_server(
            models,
            _server_options(params),
            settings=settings_from(
                ServeSettings,
                params,
                sequences=key_values(params["sequence_limits"], "--sequence-limit"),
            ),
            model_options=model_options(params),
        )
        run_process(server.run, lambda: print_addresses(server.addresses, 9))


def run_process(run: Callable[[Callable[[], None]], None], on_ready: Callable[[], None]) -> None:
    """Run a server or worker until it has stopped; the process ends soon afterwards."""
    run(on_ready)
    # The interpreter joins the threads that libraries left behind, and one of them may hang.
    ExitDeadline().begin(INTERPRETER_S)


def tls_files(params: dict[str, Any]) -> TlsFiles | None:
    """Return the TLS files of the options. Raise ConfigError for a certificate without a key."""
    given = given_values(TlsFiles, params)
    if given and not {"certificate", "key"} <= given.keys():
        raise ConfigError("TLS needs both --tls-certificate and --tls-key")
    return TlsFiles(**given) if given else None


def _server_options(params: dict[str, Any]) -> ServerOptions:
    ports = {f"{name}_port": None for name in ("rest", "grpc", "metrics") if params[f"no_{name}"]}
    options = settings_from(
        ServerOptions,
        params,
        limits=settings_from(RestLimits, params),
        tls=tls_files(params),
        drain=settings_from(DrainSettings, params),
    )
    return replace(options, **cast("Any", ports))


DATA_OPTION = option(
    "--data",
    default="headrace-data",
    show_default=True,
    metavar="FOLDER",
    shell_complete=complete_files,
    help="Folder of the jobs: an SQLite file and the stored objects.",
)
JOB_LOCATION_OPTIONS = combined_options(
    DATA_OPTION,
    setting_options(JobLocations),
    setting_options(JobsOptions, only={"config"}),
)

WORKER_OPTIONS = combined_options(
    setting_options(WorkerSettings),
    option(
        "--keep-days",
        type=float,
        default=KEEP_DAYS,
        show_default=True,
        help="Retention of ended jobs and their results in days.",
    ),
)

JOB_MODEL_OPTIONS = combined_options(
    option(
        "--isolation",
        type=click.Choice(["process", "thread"]),
        default="process",
        show_default=True,
        help="Isolation of model instances. Only a process can be killed, timed out or limited in memory.",
    ),
    setting_options(ServeSettings, without=_NOT_OF_WORKERS),
    old_option_name("--memory-mib-max", "--memory-bytes-max", "memory_bytes_max", "{}MiB".format),
    MODEL_OPTIONS_OPTION,
)


def job_locations(params: dict[str, Any]) -> JobLocations:
    """Return the locations that the options name. Raise ConfigError for --ledger without --store."""
    if (params["ledger"] is None) != (params["store"] is None):
        raise ConfigError("--ledger and --store must be given together, or use --data")
    given = given_values(JobLocations, params)
    if "ledger_url" in given:
        return JobLocations(**given)
    return replace(JobLocations.folder(params["data"]), **given)


def worker_settings(params: dict[str, Any]) -> WorkerSettings:
    """Return the worker settings of the options; the ``--config`` file supplies missing regions."""
    from headrace.config.jobs_file import read_worker_region  # noqa: PLC0415 - optional dependency

    place = read_worker_region(params["config"])
    return replace(
        WorkerSettings(region=place.region, other_regions=place.other_regions),
        **given_values(WorkerSettings, params),
    )


def retention(params: dict[str, Any]) -> Retention:
    """Return the retention settings of the options."""
    return Retention(jobs_s=params["keep_days"] * DAY_S)


def serve_settings(params: dict[str, Any]) -> ServeSettings:
    """Return the model settings of the options."""
    given = given_values(ServeSettings, params)
    return ServeSettings(**{name: value for name, value in given.items() if name not in _NOT_OF_WORKERS})


@click.command(
    "up",
    epilog=_UP_EPILOG,
    context_settings={"auto_envvar_prefix": "HEADRACE_UP"},
)
@click.argument("models", nargs=-1, metavar="[MODEL...]", shell_complete=complete_files)
@JOB_LOCATION_OPTIONS
@setting_options(JobsOptions, without={"config"})
@setting_options(ServerOptions, without=_NOT_OF_JOBS)
@click.option("--no-serve", is_flag=True, help="Do not serve the models over REST.")
@click.option("--no-metrics", is_flag=True, help="Do not open the metrics port.")
@setting_options(TlsFiles, without={"tls_client_ca"})
@WORKERS_OPTION
@WORKER_OPTIONS
@JOB_MODEL_OPTIONS
@SERVER_LOG_OPTIONS
@click.pass_context
def up_command(context: click.Context, models: tuple[str, ...], **params: Any) -> None:
    """Run the job API and a worker, with the ledger and the results in a folder.

    With MODEL... (see docs/models.md) a worker runs the jobs, and the models are served over REST.
    With --workers 0..8, up to eight worker processes run the jobs, and none while there are no jobs; the
    models are not served then. Without models, jobs wait for `headrace work` in other processes.
    SIGTERM drains: short jobs finish, long jobs return to their queues, and the exit status is 0.
    """
    configure_server_logs(params["log_format"], params["verbose"])
    with exit_on_error():
        # Worker processes load the models, which are not served then.
        params["no_serve"] = params["no_serve"] or params["workers"] is not None
        _require_up_extras(models, params)
        # Jobs are an optional dependency: the other commands work without it.
        from headrace.app.jobs import open_jobs  # noqa: PLC0415

        processes = None
        if params["workers"] is not None:
            processes = worker_processes(context, work_command, worker_settings(params))
        opened = open_jobs(
            () if processes else models,
            job_locations(params),
            _jobs_options(params),
            serving=serve_settings(params),
            model_options=model_options(params),
            isolation=params["isolation"],
            processes=processes,
        )
        setting = "--pending-max" if params["config"] is None else "pending_max of [anyone]"
        limit = opened.pending_max
        limits = [] if limit is None else [f"waiting jobs: at most {limit:,} ({setting})"]
        if processes is not None:
            limits.append(f"worker processes: {params['workers']}, as many as the jobs need")
        run_process(opened.run, lambda: print_addresses(opened.addresses, 7, limits))


def _require_up_extras(models: tuple[str, ...], params: dict[str, Any]) -> None:
    if models and not params["no_serve"]:
        hint = "with --no-serve, 'headrace[jobs]' is enough"
        require_extras("headrace up MODEL", *job_extras(params, "up"), hint=hint)
    else:
        require_extras("headrace up", *job_extras(params))


def _jobs_options(params: dict[str, Any]) -> JobsOptions:
    tls = tls_files(params)
    # One metrics port has the metrics of the models and of the jobs.
    model_server = replace(settings_from(ServerOptions, params, grpc_port=None, tls=tls), metrics_port=None)
    options = settings_from(
        JobsOptions,
        params,
        tls=tls,
        model_server=None if params["no_serve"] else model_server,
        worker=worker_settings(params),
        retention=retention(params),
    )
    return replace(
        options,
        metrics_port=None if params["no_metrics"] else options.metrics_port,
        allow_inputs=tuple(map(_absolute_prefix, options.allow_inputs)),
        allow_outputs=tuple(map(_absolute_prefix, options.allow_outputs)),
    )


def _absolute_prefix(prefix: str) -> str:
    """Return a local folder as an absolute path, and a URI unchanged."""
    return prefix if "://" in prefix else str(Path(prefix).absolute())


def print_addresses(
    addresses: Mapping[str, str], width: int, limits: Sequence[str] = (), *, ready: str = "ready"
) -> None:
    """Print the addresses of the listeners of a server that is ready, and the limits of its clients."""
    for listener, address in addresses.items():
        click.echo(f"{listener:<{width}} {address}", err=True)
    for limit in limits:
        click.echo(limit, err=True)
    click.echo(ready, err=True)


@click.command("work", epilog=_WORK_EPILOG, context_settings={"auto_envvar_prefix": "HEADRACE_WORK"})
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_files)
@JOB_LOCATION_OPTIONS
@setting_options(WorkerListenerOptions)
@WORKERS_OPTION
@WORKER_OPTIONS
@JOB_MODEL_OPTIONS
@SERVER_LOG_OPTIONS
@END_WITH_STDIN_OPTION
@click.pass_context
def work_command(context: click.Context, models: tuple[str, ...], **params: Any) -> None:
    """Run a worker for the jobs of MODEL..., or with --workers 0..8 as many as the jobs need.

    MODEL is named as for `headrace serve`; see docs/models.md. Any number of workers can run on any
    machine. One worker runs each job; if it dies, another worker retries the job. SIGTERM drains: short
    jobs finish, long jobs return to their queues, and the exit status is 0.
    """
    configure_server_logs(params["log_format"], params["verbose"])
    with exit_on_error():
        require_extras("headrace work", *job_extras(params))
        if params["workers"] is not None:
            _run_processes(context)
            return
        if params["end_with_stdin"]:
            drain_at_end_of_stdin()
        # Jobs are an optional dependency: the other commands work without it.
        from headrace.app.job_worker import open_worker  # noqa: PLC0415
        from headrace.config.jobs_file import read_jobs_file  # noqa: PLC0415

        at, config = job_locations(params), params["config"]
        worker = open_worker(
            models,
            at,
            settings=worker_settings(params),
            serving=serve_settings(params),
            model_options=model_options(params),
            isolation=params["isolation"],
            retention=retention(params),
            file=None
            if config is None
            else read_jobs_file(config, store_uri=at.store_uri, reserved=at.reserved_uris),
            listener=settings_from(WorkerListenerOptions, params),
        )

        def on_ready() -> None:
            if worker.listener is not None:
                click.echo(f"metrics {worker.listener.address}", err=True)
            click.echo(f"ready: {worker.worker.settings.name}", err=True)

        run_process(worker.run, on_ready)


def _run_processes(context: click.Context) -> None:
    """Run worker processes, as many as the jobs need."""
    from headrace.app.worker_pool import open_worker_processes  # noqa: PLC0415 - optional dependency

    params = context.params
    if params["metrics_port"] is not None:
        raise ConfigError("--metrics-port is the port of one worker: leave it out with --workers")
    locations, settings = job_locations(params), worker_settings(params)
    locations.make_folders()
    processes = worker_processes(context, work_command, settings)
    pool = open_worker_processes(locations.ledger_url, processes, settings)
    run_process(pool.run, lambda: click.echo(f"ready: {params['workers']} workers", err=True))


_JOBS: Final = (
    "sqlalchemy",
    "uvicorn",
    "httptools",
    "uvloop",
    "prometheus_client",
    "python_multipart",
    "httpx",
    "httpcore",
    "cryptography",
    "cronsim",
    "tzdata",
)
_SERVE: Final = (
    "grpc",
    "google.protobuf",
    "uvicorn",
    "httptools",
    "uvloop",
    "prometheus_client",
    "python_multipart",
    "aiohttp",
)
PACKAGES: Final = {
    "jobs": _JOBS,
    "serve": _SERVE,
    "up": tuple(dict.fromkeys((*_SERVE, *_JOBS))),
    "postgres": (*_JOBS, "psycopg"),
    "http2": ("zttp",),
    "redis": ("redis",),
    "rabbitmq": ("pika",),
    "aws": ("boto3",),
    "kubernetes": ("kubernetes",),
    "grpc": ("grpc", "google.protobuf"),
}
"""The packages that headrace imports by the extra that installs them.

Each adapter module of an optional dependency reports its own extra when it is imported. A command that
needs several of them would report one after the other, each after another installation.
"""
_BROKERS: Final = {
    **dict.fromkeys(REDIS_SCHEMES, "redis"),
    **dict.fromkeys(("amqp", "amqps"), "rabbitmq"),
    "sqs": "aws",
}


def require_extras(needed_for: str, *extras: str, hint: str = "") -> None:
    """Raise one MissingExtraError that names all of the extras whose packages are not installed."""
    missing = [extra for extra in extras if not all(map(_is_installed, PACKAGES[extra]))]
    if missing:
        raise MissingExtraError(",".join(missing), needed_for, hint=hint)


def job_extras(params: dict[str, Any], base: str = "jobs") -> list[str]:
    """Return the extras of a command with the ledger, wakeup broker and event queue of its options.

    `base` is left out if another extra includes it.
    """
    ledger: str = params["ledger"] or ""
    dispatcher: str = params["dispatcher"] or ""
    extras = [base]
    if ledger.startswith("postgres"):
        extras = ["postgres"] if base == "jobs" else [base, "postgres"]
    if (scheme := dispatcher.partition("://")[0]) in _BROKERS:
        extras.append(_BROKERS[scheme])
    if params.get("events_queue"):
        extras.append("aws")
    return list(dict.fromkeys(extras))


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
