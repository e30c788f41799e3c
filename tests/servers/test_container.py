"""The replaced texts of container commands."""

import pytest

from servers.container import replace_texts


@pytest.mark.parametrize(
    ("text", "replaced", "expected"),
    [
        ("--port=8090", {"8090": "1"}, "--port=1"),
        ("18090 80901", {"8090": "1"}, "18090 80901"),
        ("http://s3:8333/a", {"s3:8333": "host:1"}, "http://host:1/a"),
        ("aws-s3:8333", {"8333": "s3", "s3:8333": "8333"}, "aws-8333"),
        ("-dir=/data", {"/data": "/data/data"}, "-dir=/data/data"),
        ("/database", {"/data": "x"}, "/database"),
        ("a", {}, "a"),
    ],
)
def test_texts_are_replaced_once_and_as_whole_words(text, replaced, expected):
    assert replace_texts(text, replaced) == expected
