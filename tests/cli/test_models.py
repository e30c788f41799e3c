"""``headrace models`` as it is typed, against a real server."""

import pytest

from client.server_support import ADMIN_KEY, INFER_KEY, served_models, url_of
from integration.command import headrace

NAMES = ["free", "pairs", "sums", "wide", "words"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    keys = folder / "keys.txt"
    keys.write_text(f"infer web {INFER_KEY}\nadmin ops {ADMIN_KEY}\n")
    with served_models(folder, "--api-keys", keys) as served:
        yield served


@pytest.fixture(params=["rest", "grpc"])
def asked(models, request):
    url = url_of(models[0], request.param)

    def ask(*arguments, key=ADMIN_KEY):
        return headrace("models", *arguments, "--url", url, environ={"HEADRACE_API_KEY": key})

    return ask


@pytest.mark.parametrize("arguments", [(), ("list",)])
def test_what_is_there_is_a_table(asked, arguments):
    done = asked(*arguments)
    assert done.code == 0, done.err
    assert [line.split() for line in done.out.splitlines()] == [
        ["model", "version", "state"],
        *([name, "1", "READY"] for name in NAMES),
    ]


def test_unloading_and_loading_are_seen(asked):
    assert asked("unload", "free").out == "free unloaded\n"
    (entries,) = asked("--json").lines
    assert {e["name"] for e in entries if e["state"] == "READY"} == set(NAMES) - {"free"}
    assert asked("load", "free", "--json").lines == [{"name": "free", "loaded": True}]
    (entries,) = asked("list", "--json").lines
    assert {e["name"] for e in entries if e["state"] == "READY"} == set(NAMES)


def test_statistics_are_a_table_or_json(asked):
    before = asked("stats", "sums", "--json").lines[0][0]
    url = asked.__closure__[0].cell_contents
    headrace(
        "infer", "sums", "-i", "[[1,2,3],[4,5,6]]", "--url", url, environ={"HEADRACE_API_KEY": INFER_KEY}
    )
    (after,) = asked("stats", "sums", "--json").lines[0]
    assert (after["rows"] - before["rows"], after["requests"] - before["requests"]) == (2, 1)
    assert after["model_ms"] > 0
    table = [line.split() for line in asked("stats").out.splitlines()]
    assert table[0][:5] == ["model", "version", "requests", "failed", "rows"]
    assert [row[0] for row in table[1:]] == NAMES


def test_a_key_for_inference_changes_nothing(asked):
    for arguments in (("unload", "free"), ("load", "free"), ()):
        done = asked(*arguments, key=INFER_KEY)
        assert done.code == 1
        assert "needs admin" in done.error
    assert asked("stats", key=INFER_KEY).code == 0


def test_an_unknown_model_is_one_line(asked):
    done = asked("load", "nobody")
    assert done.code == 1
    assert "nobody" in done.error


def test_help_teaches_by_example():
    done = headrace("models", "--help")
    assert done.code == 0
    assert "headrace models stats churn" in done.out
    assert headrace("models", "nonsense").code == 2
