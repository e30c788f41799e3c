"""Settings in documents: keys, types, messages, and the JSON Schema that describes them."""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

import jsonschema
import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.core.settings import Setting, check
from headrace.core.settings_reader import document_schema, read_settings


def _even(number: int) -> int:
    if number % 2:
        raise ConfigError(f"{number} is odd")
    return number


@dataclass(frozen=True, slots=True)
class Limits:
    name: Annotated[str, Setting("Name.")]
    rows_max: Annotated[int, Setting("Limit of rows.", least=1)] = 4
    wait_s: Annotated[float | None, Setting("Wait in seconds.", above=0, most=inf)] = None
    size_bytes: Annotated[int, Setting("Size.", name="part_bytes", least=1)] = 1 << 20
    mode: Annotated[Literal["a", "b"], Setting("Mode.")] = "a"
    ports: Annotated[frozenset[int], Setting("Ports.", least=1)] = frozenset({443})
    strict: Annotated[bool, Setting("Refuse.")] = False
    workers: Annotated[int, Setting("Even number.", parse=_even)] = 2
    inner: Annotated[int, Setting("Internal.", python_only=True)] = 1

    def __post_init__(self) -> None:
        check(self)
        if self.mode == "b" and self.strict:
            raise ConfigError("b is not strict")


def test_keys_are_names_and_absent_keys_have_defaults():
    table = {"name": "n", "part_bytes": "2k", "wait_s": inf, "ports": [1, 2], "workers": 4}
    assert read_settings(Limits, table, "limits") == Limits(
        "n", size_bytes=2048, wait_s=inf, ports=frozenset({1, 2}), workers=4
    )
    assert read_settings(Limits, {"name": "n"}, "limits") == Limits("n")


WRONG = [
    ({}, "limits: 'name' is missing: it must be text"),
    (
        {"name": "n", "rows": 1},
        "limits: unknown key 'rows'; did you mean 'rows_max'?",
    ),
    (
        {"name": "n", "inner": 1},
        "limits: unknown key 'inner'; the keys are name, rows_max, wait_s, part_bytes, mode, ports, strict",
    ),
    ({"name": 1}, "limits.name must be text, not 1"),
    ({"name": "n", "rows_max": 1.5}, "limits.rows_max must be a whole number of 1 or more, not 1.5"),
    ({"name": "n", "rows_max": "4"}, "limits.rows_max must be a whole number of 1 or more, not '4'"),
    ({"name": "n", "rows_max": None}, "limits.rows_max must be a whole number of 1 or more, not None"),
    ({"name": "n", "part_bytes": "big"}, "limits.part_bytes must be a size in bytes of 1 or more, such as"),
    ({"name": "n", "mode": "c"}, "limits.mode must be one of a, b, not 'c'"),
    ({"name": "n", "ports": [1, True]}, "limits.ports must be a list of whole numbers of 1 or more"),
    ({"name": "n", "workers": 3}, "limits.workers: 3 is odd"),
    ({"name": "n", "mode": "b", "strict": True}, "limits: b is not strict"),
]


@for_each(("table", "message"), WRONG)
def test_error_names_the_key_and_what_is_expected(table, message):
    with pytest.raises(ConfigError) as raised:
        read_settings(Limits, table, "limits")
    assert str(raised.value).startswith(message)


def test_whole_float_is_an_integer():
    table = {"name": "n", "rows_max": 7.0, "part_bytes": 5.0}
    limits = read_settings(Limits, table, "limits")
    assert (limits.rows_max, type(limits.rows_max), limits.size_bytes) == (7, int, 5)
    with pytest.raises(ConfigError, match="rows_max must be a whole number"):
        read_settings(Limits, {"name": "n", "rows_max": 7.5}, "limits")


@for_each(
    ("size", "accepted"),
    [
        *((each, True) for each in ("1", "64MiB", "2k", " 1.5 gb ", "0.5k", "0.001G", "10 b", 1, 1.0)),
        *(
            (each, False)
            for each in ("0", "0.0", "0k", "0.9", "0.0001k", "2ki", "-1", "1e3", "k", "", 0, 1.5)
        ),
    ],
)
def test_schema_accepts_the_sizes_that_the_reader_accepts(size, accepted):
    schema = document_schema("A file.", {"limits": Limits})
    limits = {"name": "n", "part_bytes": size}
    assert jsonschema.Draft202012Validator(schema).is_valid({"limits": limits}) == accepted
    if not accepted:
        with pytest.raises(ConfigError):
            read_settings(Limits, limits, "limits")
    else:
        assert read_settings(Limits, limits, "limits").size_bytes >= 1


def test_schema_accepts_and_refuses_what_the_reader_does():
    schema = document_schema("A file.", {"limits": Limits, "others": dict[str, Limits], "version": str | int})
    validator = jsonschema.Draft202012Validator(schema)
    right = {"name": "n", "part_bytes": "2k", "rows_max": 4, "ports": [1], "mode": "b"}
    assert validator.is_valid({"limits": right, "others": {"x": right}, "version": 2})
    assert validator.is_valid({})
    assert not validator.is_valid({"limit": right})
    # The schema knows no parser and no rule that joins two settings.
    for table, _ in [case for case in WRONG if case[0].get("workers") != 3 and "strict" not in case[0]]:
        assert not validator.is_valid({"limits": table}), table
        assert not validator.is_valid({"others": {"x": table}}), table
    described = schema["$defs"]["Limits"]["properties"]["rows_max"]
    assert (described["description"], described["default"], described["minimum"]) == ("Limit of rows.", 4, 1)
