import json

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from runs.support import make_settings


@for_each(
    ("invalid", "why"),
    [
        ({"data_type": "folder"}, r"data_type 'folder': choose one of auto, prefix, manifest"),
        ({"output": {"accept": "xml"}}, r"accept 'xml': choose one of auto, csv"),
        ({"output": {"assemble": "page"}}, r"assemble 'page': choose one of line, none"),
        ({"output": {"join": "left"}}, r"join 'left': choose one of none, input"),
        ({"output": {"output_filter": "$["}}, r"\$\["),
        ({"output": {"accept": "parquet", "output_filter": "$.y"}}, r"remove the filter"),
        ({"failures": {"on_error": "row"}}, r"on_error 'row': choose one of record, object, job"),
        ({"failures": {"failed_rows_max": -1}}, r"failed_rows_max must be at least 0, not -1"),
        ({"failures": {"failed_share_max": 1.5}}, r"failed_share_max must be from 0 to 1, not 1.5"),
        ({"tasks": {"task_bytes": 0}}, r"task_bytes must be at least 1, not 0"),
        ({"tasks": {"task_objects_max": 0}}, r"task_objects_max must be at least 1"),
        ({"tasks": {"checkpoint_s": -0.1}}, r"checkpoint_s must be at least 0"),
        ({"flow": {"batch_delay_ms": 5}}, r"batch_delay_ms has no meaning here"),
        ({"mapping": {"sequence": "@object"}}, r"it does not support sequences: use headrace stream"),
    ],
)
def test_invalid_settings_are_refused(invalid, why):
    with pytest.raises(ConfigError, match=why):
        make_settings(**invalid)


WRITTEN = [
    {"data_type": "prefix"},
    {"read": {"header": "names"}},
    {"mapping": {"columns": (1,)}},
    {"mapping": {"whole_records": True}},
    {"flow": {"batch_rows_max": 3}},
    {"flow": {"batch_bytes_max": 3}},
    {"output": {"accept": "csv"}},
    {"output": {"slice_end": "inclusive"}},
    {"failures": {"on_error": "object"}},
    {"tasks": {"task_bytes": 3}},
    {"tasks": {"task_objects_max": 3}},
]
UNWRITTEN = [
    {"flow": {"prefetch_threads": 9}},
    {"flow": {"window_bytes_max": 9}},
    {"failures": {"failed_rows_max": 9}},
    {"failures": {"failed_share_max": 0.5}},
    {"tasks": {"checkpoint_s": 9}},
]


@for_each("changed", WRITTEN)
def test_settings_of_the_output_change_the_identity(changed):
    assert make_settings(**changed).identity() != make_settings().identity()


@for_each("changed", UNWRITTEN)
def test_other_settings_keep_the_identity(changed):
    assert make_settings(**changed).identity() == make_settings().identity()


def test_identity_is_json():
    identity = make_settings(read={"members": ("a", "b")}, mapping={"columns": ("p", "q")}).identity()
    assert json.loads(json.dumps(identity))["read"]["members"] == ["a", "b"]
