import pytest

from cases import for_each
from headrace.cli.key_values import key_values
from headrace.core.errors import ConfigError


def test_values_are_toml_or_text():
    pairs = (
        "n=5",
        "share=0.5",
        "on=true",
        "name=plain text",
        'quoted="5"',
        "list=[1, 2]",
        "url=a=b",
        "empty=",
    )
    assert key_values(pairs, "--option") == {
        "n": 5,
        "share": 0.5,
        "on": True,
        "name": "plain text",
        "quoted": "5",
        "list": [1, 2],
        "url": "a=b",
        "empty": "",
    }


@for_each("pair", ["factor", "=5", ""])
def test_malformed_pair_is_refused_with_its_option(pair):
    with pytest.raises(ConfigError, match=r"--parameter .* must be KEY=VALUE"):
        key_values((pair,), "--parameter")
