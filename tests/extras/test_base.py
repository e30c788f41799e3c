"""The wheel without any extra: help, files and Python models work; all else names its extra in one line."""

import re

import pytest

from integration.command import predictions

pytestmark = pytest.mark.slow

_IMPORT_ALL = """
import importlib, pkgutil, headrace
from headrace.core.errors import MissingExtraError

for module in pkgutil.walk_packages(headrace.__path__, "headrace.", onerror=lambda _: None):
    if not module.name.endswith(("__main__", "formats.media.container")):
        try:
            importlib.import_module(module.name)
        except MissingExtraError as error:
            print(module.name, error.extra)
"""
_PUBLIC = """
import headrace, headrace.jobs
from headrace.core.errors import MissingExtraError

for module in (headrace, headrace.jobs):
    for name in module.__all__:
        try:
            getattr(module, name)
        except MissingExtraError as error:
            print(name, error.extra)
"""
_HELP = """
import click
from click.testing import CliRunner
from headrace.cli.main import load_all, main

def show(command, path):
    done = CliRunner().invoke(main, [*path, "--help"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    print("headrace", *path)
    for name in sorted(getattr(command, "commands", {})):
        show(command.commands[name], [*path, name])

show(load_all(), [])
"""


@pytest.fixture
def base(environments):
    return environments()


def test_help_of_every_command(base, folder):
    shown = base.script(_HELP, folder).splitlines()
    assert {"headrace stream", "headrace up", "headrace jobs result", "headrace keys new"} <= set(shown)


def test_modules_import_or_name_their_extra(base, folder):
    """`formats.media.container` has no extra of its own: its two importers name theirs."""
    missing = dict(line.split() for line in base.script(_IMPORT_ALL, folder).splitlines())
    assert missing["headrace.jobs.client"] == "jobs"
    assert missing["headrace.runtimes.huggingface"] == "huggingface"
    assert missing["headrace.runtimes.mlflow"] == "mlflow"


def test_public_names_need_no_extra_but_clients_of_jobs(base, folder):
    missing = dict(line.split() for line in base.script(_PUBLIC, folder).splitlines())
    assert missing == dict.fromkeys(("AsyncClient", "Client", "ClientSettings"), "jobs")


def test_python_model_streams_and_transforms(base, folder):
    done = base.run("stream", "rows.csv", "--model", "model.py", "--output", "out/", folder=folder)
    assert done.returncode == 0, done.stderr
    assert predictions(folder / "out") == b"3.0\n7.0\n"
    done = base.run("transform", "rows.csv", "done/", "--model", "model.py", "--workers", "2", folder=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "done" / "rows.csv.out").read_bytes() == b"3.0\n7.0\n"


def test_project_keys_and_completion_are_made(base, folder):
    assert "headrace" in base.script("from headrace.cli import main; main(['completion', 'bash'])", folder)
    assert base.run("init", "churn", folder=folder).returncode == 0
    assert base.run("keys", "new", "shop", folder=folder).returncode == 0


_COMMANDS = {
    "serve model.py": "serve",
    "up model.py": "up",
    "up": "jobs",
    "up model.py --no-serve": "jobs",
    "work model.py": "jobs",
    "work model.py --ledger postgresql://h/d --store o/ --dispatcher redis://h": "postgres,redis",
    "submit rows.csv --model model": "jobs",
    "jobs list": "jobs",
    "queues": "jobs",
    "infer model --input [1,2]": "http",
    "infer model --input [1,2] --url grpc://127.0.0.1:1": "grpc",
    "models": "http",
    "sequences model": "http",
    "stream rows.csv --endpoint http://127.0.0.1:1/v2/models/m --output out/": "http",
    "transform rows.csv out/ --model model.py --runner ray": "ray",
    "transform rows.csv out/ --model model.py --runner beam": "beam",
    "stream a.csv.zst --model model.py --output out/": "zstd",
    "stream a.tfrecord --model model.py --output out/": "tfrecord",
    "stream a.png --model model.py --output out/": "image",
    "stream a.flac --window-ms 10 --model model.py --output out/": "audio",
    "stream a.mp4 --model model.py --output out/": "video",
    "transform a.parquet out/ --model model.py": "arrow",
    "stream a.arrow --model model.py --output out/": "arrow",
    "stream a.avro --model model.py --output out/": "avro",
    "stream rows.csv --model model.py --output-format parquet --output out/": "arrow",
    "stream rows.csv --model a.onnx --output out/": "onnx",
    "stream rows.csv --model a.skops --output out/": "sklearn",
    "stream rows.csv --model a.pt --output out/": "torch",
    "stream rows.csv --model huggingface/ --output out/": "huggingface",
    "stream rows.csv --model mlflow/ --output out/": "mlflow",
}


def test_command_names_its_extra_in_one_line(base, folder):
    for name in ("a.csv.zst", "a.tfrecord", "a.png", "a.mp4", "a.onnx", "a.skops", "a.pt"):
        (folder / name).touch()
    for name in ("a.parquet", "a.arrow", "a.avro"):
        (folder / name).touch()
    (folder / "a.flac").write_bytes(b"fLaC" + bytes(64))
    for name in ("huggingface/config.json", "mlflow/MLmodel"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("{}")
    done = base.run_all([*_COMMANDS], folder)
    line = re.compile(r"error: .+ needs an extra: pip install 'headrace\[(.+?)\]'( \(.*\))?\n")
    found = [(status, line.fullmatch(error)) for status, error in done]
    assert [error for (_, match), (_, error) in zip(found, done, strict=True) if match is None] == []
    named = [(status, match[1]) for status, match in found]
    assert dict(zip(_COMMANDS, named, strict=True)) == {name: (1, extra) for name, extra in _COMMANDS.items()}
