"""``headrace keys new``: a key and its entry for the server's file."""

import json

from click.testing import CliRunner

from headrace.cli import main
from headrace.jobs.access import Access, Scope
from headrace.jobs.access.keys_file import parse_keys


def run(*args: str):
    return CliRunner().invoke(main, ["keys", *args])


def test_new_key_has_the_access_of_its_entry():
    done = run("new", "shop-web", "--tenant", "shop")
    assert done.exit_code == 0
    key, warning = done.stderr.splitlines()
    assert "not shown again" in warning
    assert key not in done.stdout
    found = Access(parse_keys(done.stdout, "keys.toml")).check(f"Bearer {key}", Scope.SUBMIT)
    assert (found.name, found.tenant) == ("shop-web", "shop")
    assert found.scopes == {Scope.SUBMIT, Scope.READ}


def test_entries_of_several_keys_form_one_file():
    texts = [run("new", name, "--scope", "operate").stdout for name in ("a", "b.c")]
    keys = parse_keys("".join(texts), "keys.toml")
    assert sorted(key.name for key in keys.values()) == ["a", "b.c"]


def test_json_is_on_standard_output():
    done = run("new", "web", "--json")
    made = json.loads(done.stdout)
    assert done.stderr == ""
    assert made["name"] == "web"
    assert made["digest"] in made["toml"]
    assert Access(parse_keys(made["toml"], "f")).check(f"Bearer {made['key']}", Scope.READ)


def test_two_keys_differ():
    assert (
        json.loads(run("new", "a", "--json").stdout)["key"]
        != json.loads(run("new", "a", "--json").stdout)["key"]
    )


def test_invalid_key_name_is_refused():
    done = run("new", "a b")
    assert done.exit_code == 1
    assert "error: key 'a b': must have up to 64 letters" in done.stderr
    assert done.stdout == ""
    assert run("new", "a", "--scope", "root").exit_code == 2
