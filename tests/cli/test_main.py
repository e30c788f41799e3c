import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

import headrace
from headrace.cli import main


def run(*args: str):
    return CliRunner().invoke(main, args)


def test_the_version_is_the_packages():
    assert run("--version").output == f"headrace, version {headrace.__version__}\n"


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_lists_the_commands_and_shows_examples(option):
    shown = run(option)
    assert shown.exit_code == 0
    assert re.search(r"stream +Score objects as streams", shown.output)
    assert "headrace stream s3://bucket/day.tar.gz --model churn.onnx" in shown.output


def test_an_unknown_command_is_wrong_usage():
    assert run("flow").exit_code == 2


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith(f"version {headrace.__version__}\n"), done.stderr
