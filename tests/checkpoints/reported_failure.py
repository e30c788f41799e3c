"""Failures of a checkpoint store, as clients and operators see them."""

import pytest

from headrace.core.errors import UnavailableError


def reported_failure(caplog, call):
    """Return the text of the UnavailableError of a call, and what its log record says of the store."""
    caplog.clear()
    with pytest.raises(UnavailableError) as caught:
        call()
    (record,) = (r for r in caplog.records if r.name == "headrace.checkpoints")
    return str(caught.value), f"{record.model} {record.store}: {record.why}"
