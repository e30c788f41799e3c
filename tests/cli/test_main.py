import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

import headrace
from cases import for_each
from headrace.cli import main


def run(*args: str):
    return CliRunner().invoke(main, args)


def test_version_is_that_of_the_package():
    assert run("--version").output == f"headrace, version {headrace.__version__}\n"


@for_each("option", ["--help", "-h"])
def test_help_lists_commands_and_examples(option):
    shown = run(option)
    assert shown.exit_code == 0
    assert re.search(r"stream +Score objects as a stream", shown.output)
    assert "headrace stream s3://bucket/day.tar.gz --model churn.onnx" in shown.output


def test_unknown_command_is_wrong_usage():
    assert run("flow").exit_code == 2


@pytest.mark.slow
def test_module_runs_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith(f"version {headrace.__version__}\n"), done.stderr
