"""Commands without the packages of their extra: one line that names it."""

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cases import for_each
from headrace.cli.serve import PACKAGES
from integration.command import headrace

OPTIONAL = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
_PACKAGES = {package for packages in PACKAGES.values() for package in packages}
UP = (
    "headrace up MODEL needs an extra: pip install 'headrace[up{}]' "
    "(with --no-serve, 'headrace[jobs]' is enough)"
)


@pytest.fixture
def without(monkeypatch):
    """Return a function that hides packages, and forgets the modules of headrace that may hold them."""

    def hide(*packages):
        for name in [n for n in sys.modules if n.startswith(("headrace.jobs.client", "headrace.app."))]:
            monkeypatch.delitem(sys.modules, name)
        for package in packages:
            monkeypatch.setitem(sys.modules, package, None)

    return hide


@for_each(
    "command",
    ["submit a.csv --model m", "submit a.csv --model m --wait", "jobs list", "jobs cancel x", "queues list"],
)
def test_client_of_jobs_needs_one_extra(without, command):
    without("httpx")
    done = headrace(*command.split())
    assert done.code == 1
    assert done.error == "the client of the job API needs an extra: pip install 'headrace[jobs]'"


@for_each(
    ("command", "hidden", "message"),
    [
        (
            "serve m.py",
            "grpc prometheus_client uvicorn",
            "headrace serve needs an extra: pip install 'headrace[serve]'",
        ),
        ("serve m.py", "aiohttp", "headrace serve needs an extra: pip install 'headrace[serve]'"),
        (
            "serve m.py --grpc-carrier asgi",
            "grpc zttp",
            "headrace serve needs an extra: pip install 'headrace[serve,http2]'",
        ),
        ("up m.py", "grpc", UP.format("")),
        ("up m.py --events-queue http://q --dispatcher sqs://", "grpc boto3", UP.format(",aws")),
        ("up m.py", "sqlalchemy grpc", UP.format("")),
        ("up m.py --ledger postgresql://h/d --store s3://b/", "psycopg grpc", UP.format(",postgres")),
        ("up m.py --no-serve", "httpx grpc", "headrace up needs an extra: pip install 'headrace[jobs]'"),
        ("up", "sqlalchemy grpc", "headrace up needs an extra: pip install 'headrace[jobs]'"),
        ("work m.py", "sqlalchemy grpc", "headrace work needs an extra: pip install 'headrace[jobs]'"),
        (
            "work m.py --ledger postgresql://h/d --store s3://b/ --dispatcher rediss://h",
            "sqlalchemy redis",
            "headrace work needs an extra: pip install 'headrace[postgres,redis]'",
        ),
        (
            "work m.py --dispatcher amqp://h/",
            "pika",
            "headrace work needs an extra: pip install 'headrace[rabbitmq]'",
        ),
    ],
)
def test_command_names_everything_that_it_needs_at_once(tmp_path, command, hidden, message):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for package in hidden.split():
            patch.setitem(sys.modules, package, None)
        done = headrace(*command.split())
    assert done.code == 1
    assert done.error == message
    assert list(tmp_path.iterdir()) == []


def test_checked_packages_are_those_of_the_extras():
    for package in _PACKAGES:
        pytest.importorskip(package)
    provided = importlib.metadata.packages_distributions()
    # Several distributions share the package `google`.
    owners = {
        package: "protobuf" if package == "google.protobuf" else provided[package][0] for package in _PACKAGES
    }
    checked = {
        extra: {canonicalize_name(owners[p]) for p in packages} for extra, packages in PACKAGES.items()
    }
    assert checked == {extra: _distributions(extra) for extra in PACKAGES}


def _distributions(extra):
    found = set()
    for requirement in map(Requirement, OPTIONAL[extra]):
        if requirement.name == "headrace":
            found.update(*map(_distributions, requirement.extras))
        else:
            found.add(canonicalize_name(requirement.name))
    return found
