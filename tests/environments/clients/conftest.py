"""The server's addresses, and the examples of the documentation."""

import json
import os
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"


@pytest.fixture(scope="session")
def addresses():
    """Addresses without scheme by listener: rest, grpc, and grpc_triton, whose streams use Triton's
    dialect.
    """
    text = os.environ.get("HEADRACE_CLIENTS")
    assert text, "these tests need a running server: use make test-clients"
    return {name: address.partition("://")[2] or address for name, address in json.loads(text).items()}


@pytest.fixture
def run_page(addresses):
    """A function that runs the Python blocks of a section of docs/clients.md and returns their
    names.
    """

    def run(section):
        text = PAGE.read_text(encoding="utf-8")
        (part,) = re.findall(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        blocks = re.findall(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        assert blocks, f"{section} has no block"
        names = {}
        for block in blocks:
            source = block.replace("localhost:8080", addresses["rest"]).replace(
                "localhost:8081", addresses["grpc"]
            )
            exec(compile(source, f"{PAGE.name}: {section}", "exec"), names)
        return names

    return run
