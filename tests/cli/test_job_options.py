"""Options of ``headrace work`` and ``headrace up``."""

import click
from click.testing import CliRunner

from cases import for_each
from headrace.cli.serve import JOB_LOCATION_OPTIONS, WORKER_OPTIONS, worker_settings
from headrace.jobs.worker import WorkerSettings


def settings_of(*args, **environ):
    """Return the worker settings of a command line, and the command's standard error."""
    found = []

    @click.command(context_settings={"auto_envvar_prefix": "HEADRACE_WORK"})
    @JOB_LOCATION_OPTIONS
    @WORKER_OPTIONS
    def command(**params):
        found.append(worker_settings(params))

    done = CliRunner().invoke(command, args, env=environ, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return found[0], done.stderr


def test_default_options_give_the_default_settings():
    settings, warning = settings_of()
    defaults = WorkerSettings(name=settings.name)
    for name in (
        "queues",
        "region",
        "other_regions",
        "concurrency",
        "lease_s",
        "heartbeat_s",
        "drain_grace_s",
    ):
        assert getattr(settings, name) == getattr(defaults, name), name
    assert warning == ""


@for_each(
    ("args", "environ", "heartbeat_s"),
    [
        (("--beat-s", "5"), {}, 5.0),
        ((), {"HEADRACE_WORK_BEAT_S": "5"}, 5.0),
        (("--beat-s", "5", "--heartbeat-s", "7"), {}, 7.0),
        ((), {"HEADRACE_WORK_BEAT_S": "5", "HEADRACE_WORK_HEARTBEAT_S": "7"}, 7.0),
    ],
)
def test_deprecated_beat_s_is_a_heartbeat_interval_with_a_warning(args, environ, heartbeat_s):
    settings, warning = settings_of(*args, **environ)
    assert settings.heartbeat_s == heartbeat_s
    assert warning == "warning: --beat-s is deprecated: use --heartbeat-s\n"


def test_help_hides_the_deprecated_option():
    command = WORKER_OPTIONS(click.Command("work"))
    text = command.get_help(click.Context(command))
    assert "--heartbeat-s" in text
    assert "--beat-s" not in text
