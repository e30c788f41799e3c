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


@pytest.fixture
def scale_command(server):
    def call(*arguments, key=ADMIN_KEY):
        return run_command(server, "rest", "models", "scale", *arguments, HEADRACE_API_KEY=key)

    return call


@for_each(
    ("instances", "numbers", "limits"),
    [("3", ["3", "3"], "fixed"), ("2..4", ["3", "3"], "2..4"), ("1", ["1", "1"], "fixed")],
)
def test_number_of_instances_is_changed_and_shown(scale_command, instances, numbers, limits):
    changed, shown = scale_command("pairs", instances), scale_command("pairs", "--version", "1")
    assert changed.code == shown.code == 0, changed.err
    for done in (changed, shown):
        head, row = [line.split() for line in done.out.splitlines()]
        assert head == ["model", "version", "instances", "ready", "draining", "range"]
        assert [*row[:4], row[5]] == ["pairs", "1", *numbers, limits]


def test_numbers_of_instances_are_json(scale_command):
    (document,) = scale_command("sums", "1..2", "--json").lines
    assert document == {
        "name": "sums",
        "version": "1",
        "instances": 1,
        "ready": 1,
        "draining": document["draining"],
        "instances_min": 1,
        "instances_max": 2,
    }
    assert scale_command("sums", "--json").lines[0]["instances_max"] == 2


@for_each(
    ("arguments", "code", "reason"),
    [
        (("sums", "many"), 2, "'many' is no number of instances: write 3, or 1..4"),
        (("sums", "1.."), 2, "is no number of instances"),
        (("sums", "0"), 1, "HTTP 400: instances: Expected `int` >= 1"),
        (("sums", "4..1"), 1, "instances_max must be at least instances"),
        (("sums", "2", "--version", "9"), 1, "no version '9'"),
        (("nobody",), 1, "no model of this name"),
    ],
)
def test_impossible_scaling_is_one_line(scale_command, arguments, code, reason):
    done = scale_command(*arguments)
    assert (done.code, reason in done.err) == (code, True), done.err


def test_scaling_needs_rest_and_the_scope_models(server, scale_command):
    done = run_command(server, "grpc", "models", "scale", "sums", "2")
    assert (done.code, "only over REST: use the server's http:// URL" in done.error) == (1, True)
    assert "lacks the required scope models" in scale_command("sums", "2", key=INFER_KEY).error
    assert "lacks the required scope monitor or models" in scale_command("sums", key=INFER_KEY).error


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
    assert "headrace models scale churn 1..4" in done.out
    assert "headrace models scale churn 1..4 --version 2" in headrace("models", "scale", "--help").out
    assert headrace("models", "nonsense").code == 2
