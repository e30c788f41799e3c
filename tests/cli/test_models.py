"""``headrace models`` against a real server."""

import pytest

from cases import for_each
from cli.served_models import PROTOCOLS, models_in_process, run_command
from client.server_support import ADMIN_KEY, INFER_KEY, KEYS
from integration.command import headrace

NAMES = ["free", "pairs", "sums", "wide", "words"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    keys = folder / "keys.toml"
    keys.write_text(KEYS)
    with models_in_process(folder, api_keys=keys) as served:
        yield served


@pytest.fixture(params=PROTOCOLS)
def models_command(server, request):
    def call(*arguments, command="models", key=ADMIN_KEY):
        return run_command(server, request.param, command, *arguments, HEADRACE_API_KEY=key)

    return call


@for_each("arguments", [(), ("list",)])
def test_models_are_a_table(models_command, arguments):
    done = models_command(*arguments)
    assert done.code == 0, done.err
    assert [line.split() for line in done.out.splitlines()] == [
        ["model", "version", "state"],
        *([name, "1", "READY"] for name in NAMES),
    ]


def test_models_are_unloaded_and_loaded(models_command):
    assert models_command("unload", "free").out == "free unloaded\n"
    (entries,) = models_command("--json").lines
    assert {e["name"] for e in entries if e["state"] == "READY"} == set(NAMES) - {"free"}
    assert models_command("load", "free", "--json").lines == [{"name": "free", "loaded": True}]
    (entries,) = models_command("list", "--json").lines
    assert {e["name"] for e in entries if e["state"] == "READY"} == set(NAMES)


def test_statistics_are_a_table_or_json(models_command):
    before = models_command("stats", "sums", "--json").lines[0][0]
    models_command("sums", "-i", "[[1,2,3],[4,5,6]]", command="infer", key=INFER_KEY)
    (after,) = models_command("stats", "sums", "--json").lines[0]
    assert (after["rows"] - before["rows"], after["requests"] - before["requests"]) == (2, 1)
    assert after["model_ms"] > 0
    table = [line.split() for line in models_command("stats").out.splitlines()]
    assert table[0][:5] == ["model", "version", "requests", "failed", "rows"]
    assert [row[0] for row in table[1:]] == NAMES


def test_inference_key_cannot_change_models(models_command):
    for arguments in (("unload", "free"), ("load", "free"), ()):
        done = models_command(*arguments, key=INFER_KEY)
        assert done.code == 1
        assert "lacks the required scope models" in done.error
    done = models_command("stats", key=INFER_KEY)
    assert done.code == 1
    assert "lacks the required scope monitor or models" in done.error


def test_unknown_model_is_one_line(models_command):
    done = models_command("load", "nobody")
    assert done.code == 1
    assert "nobody" in done.error


def test_help_has_examples():
    done = headrace("models", "--help")
    assert done.code == 0
    assert "headrace models stats churn" in done.out
    assert headrace("models", "nonsense").code == 2
