"""Completion in a real bash, and completions of commands whose group has a default."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from cases import for_each
from headrace.cli import main

CODE = "from headrace.cli import main; main(prog_name='headrace')"
PROGRAM = f"""#!/bin/sh
exec {sys.executable} -c "{CODE}" "$@"
"""
COMPLETE = """
source {script}
complete -p headrace
COMP_WORDS=({words}) COMP_CWORD={at}
compopt() {{ echo compopt "$@"; }}  # it works only while a user completes
_headrace_completion headrace
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def script_of(shell: str) -> str:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def in_bash(folder: Path, *words: str) -> tuple[str, list[str]]:
    """Return the registration and the completions of the last word, by a real bash."""
    (folder / "completions").write_text(script_of("bash"))
    program = folder / "headrace"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    script = COMPLETE.format(
        script=folder / "completions", words=" ".join(f"'{w}'" for w in words), at=len(words) - 1
    )
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, env=environ, timeout=60
    )
    registration, *found = done.stdout.splitlines()
    return registration, found


def completions(*words: str) -> list[str]:
    """Return the completions of the last word; * stands for file names."""
    complete = ShellComplete(main, {}, "headrace", "_HEADRACE_COMPLETE")
    found = complete.get_completions(list(words[:-1]), words[-1])
    return ["*" if item.type == "file" else item.value for item in found]


@pytest.mark.slow
def test_bash_completes_commands_options_and_files(tmp_path):
    registration, found = in_bash(tmp_path, "headrace", "str")
    assert registration.startswith("complete ")
    assert registration.endswith("_headrace_completion headrace")
    assert found == ["stream"]
    assert in_bash(tmp_path, "headrace", "stream", "in.csv", "--out")[1][:2] == [
        "--output",
        "--output-format",
    ]
    assert in_bash(tmp_path, "headrace", "stream", "in.csv", "--model", "ch")[1] == ["compopt -o default", ""]


@for_each("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell):
    script = script_of(shell)
    assert f"_HEADRACE_COMPLETE={shell}_complete" in script
    assert "headrace" in script.splitlines()[-1] or "_headrace" in script


def test_another_shell_is_wrong_usage():
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2


@for_each(
    ("words", "expected"),
    [
        (["str"], ["stream"]),
        (
            ["stream", "a.csv", "--output-format", ""],
            ["auto", "csv", "jsonl", "v2", "text", "parquet", "arrow"],
        ),
        (["stream", "a"], ["*"]),
        (["serve", "m"], ["*"]),
        (["transform", "ret"], ["*", "retry-failed"]),
        (["transform", "a/", "--inp"], ["--input-filter"]),
        (["transform", "--inp"], ["--input-filter"]),
        (["transform", "--join", ""], ["none", "input", "key", "position"]),
        (["transform", "retry-failed", "--oth"], ["--other-model"]),
        (["models", "lo"], ["load"]),
        (["models", "--ur"], ["--url"]),
        (["jobs", "--sta"], ["--state"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["work", "m", "--be"], []),  # the old name of an option
    ],
)
def test_completions(words, expected):
    assert completions(*words) == expected


def test_completions_do_not_repeat_help():
    assert completions("transform", "--he") == ["--header", "--help"]


def test_groups_still_run_their_default_command():
    done = CliRunner().invoke(main, ["transform"])
    assert (done.exit_code, "give SOURCE and DEST" in done.stderr) == (2, True)
