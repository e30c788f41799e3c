"""Jobs on a terminal, in a few words."""

import pytest

from headrace.cli.job_shown import progress_text
from headrace.jobs.job import Progress


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (None, ""),
        (Progress(), "0"),
        (Progress(1234, None, "records"), "1,234 records"),
        (Progress(1, 3, "objects"), "33% of 3 objects"),
        (Progress(0, 0, "rows"), "100% of 0 rows"),
        (Progress(5, 5), "100% of 5"),
        (Progress(5, 5, "records", "2 records failed"), "100% of 5 records, 2 records failed"),
        (Progress(5, 5, "bytes", "", 2_000), "100% of 5 bytes, 2.0 kB across regions"),
        (Progress(5, None, "bytes", "odd\x1b[1m"), "5 bytes, odd�[1m"),
    ],
)
def test_progress_is_told_as_well_as_it_is_known(progress, text):
    assert progress_text(progress) == text
