"""``headrace keys new``: a key that opens the server whose file has its lines."""

import json

from click.testing import CliRunner

from headrace.cli import main
from headrace.jobs.access import JobAccess, Scope, parse_job_keys


def run(*args: str):
    return CliRunner().invoke(main, ["keys", *args])


def test_a_new_key_is_told_apart_from_its_lines_and_opens_what_they_say():
    done = run("new", "shop-web", "--tenant", "shop")
    assert done.exit_code == 0
    key, warning = done.stderr.splitlines()
    assert "not shown again" in warning
    assert key not in done.stdout
    found = JobAccess(parse_job_keys(done.stdout, "keys.toml")).check(f"Bearer {key}", Scope.SUBMIT)
    assert (found.name, found.tenant) == ("shop-web", "shop")
    assert found.scopes == {Scope.SUBMIT, Scope.READ}


def test_lines_of_several_keys_make_one_file():
    texts = [run("new", name, "--scope", "operate").stdout for name in ("a", "b.c")]
    keys = parse_job_keys("".join(texts), "keys.toml")
    assert sorted(key.name for key in keys.values()) == ["a", "b.c"]


def test_as_json_all_of_it_is_on_standard_output():
    done = run("new", "web", "--json")
    made = json.loads(done.stdout)
    assert done.stderr == ""
    assert made["name"] == "web"
    assert made["digest"] in made["toml"]
    assert JobAccess(parse_job_keys(made["toml"], "f")).check(f"Bearer {made['key']}", Scope.READ)


def test_no_two_are_alike():
    assert (
        json.loads(run("new", "a", "--json").stdout)["key"]
        != json.loads(run("new", "a", "--json").stdout)["key"]
    )


def test_what_no_key_can_be_called_is_told():
    done = run("new", "a b")
    assert done.exit_code == 1
    assert "error: key 'a b': a name has up to 64 letters" in done.stderr
    assert done.stdout == ""
    assert run("new", "a", "--scope", "root").exit_code == 2
