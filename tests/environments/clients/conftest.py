"""Where the server listens, and the page that tells people how to ask it."""

import json
import os
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"


@pytest.fixture(scope="session")
def doors():
    """Addresses without scheme: rest, grpc, and grpc_triton, whose streams speak Triton's dialect."""
    told = os.environ.get("HEADRACE_CLIENTS")
    assert told, "these tests ask a running server: make test-clients"
    return {door: address.partition("://")[2] or address for door, address in json.loads(told).items()}


@pytest.fixture
def run_page(doors):
    """Run the Python blocks of one section of docs/clients.md, against this server; gives their names."""

    def run(section):
        text = PAGE.read_text(encoding="utf-8")
        (part,) = re.findall(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        blocks = re.findall(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        assert blocks, f"{section} has no block"
        names = {}
        for block in blocks:
            source = block.replace("localhost:8080", doors["rest"]).replace("localhost:8081", doors["grpc"])
            exec(compile(source, f"{PAGE.name}: {section}", "exec"), names)
        return names

    return run
