import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

import headrace
from cases import for_each
from headrace.cli import main
from headrace.cli.main import COMMANDS, load_all


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


def test_each_listed_command_is_in_its_module():
    assert list(load_all().commands) == list(COMMANDS)


def test_help_lists_all_commands_with_their_short_help():
    shown = run("--help").output.partition("Commands:")[2].splitlines()[1:]
    expected = [[name, short_help] for name, (_, short_help) in sorted(COMMANDS.items())]
    assert [line.split(maxsplit=1) for line in shown[: len(expected)]] == expected


def test_help_and_completion_of_names_import_no_command():
    modules = {f"headrace.cli.{module}" for module, _ in COMMANDS.values()} - {"headrace.cli.main"}
    code = f"""
import sys
from click.testing import CliRunner
from headrace.cli import main
assert CliRunner().invoke(main, ["--help"]).exit_code == 0
environ = {{"_HEADRACE_COMPLETE": "fish_complete", "COMP_WORDS": "headrace str", "COMP_CWORD": "str"}}
shown = CliRunner().invoke(main, [], prog_name="headrace", env=environ).output
assert shown.endswith("stream\\tScore objects as a stream.\\n"), shown
print(*({modules} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.slow
def test_module_runs_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith(f"version {headrace.__version__}\n"), done.stderr
