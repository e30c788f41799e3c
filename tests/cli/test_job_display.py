"""The text of a job's progress."""

from cases import for_each
from headrace.cli.job_display import progress_text
from headrace.jobs.job import JobProgress


@for_each(
    ("progress", "text"),
    [
        (None, ""),
        (JobProgress(), "0"),
        (JobProgress(1234, None, "records"), "1,234 records"),
        (JobProgress(1, 3, "objects"), "33% of 3 objects"),
        (JobProgress(0, 0, "rows"), "100% of 0 rows"),
        (JobProgress(5, 5), "100% of 5"),
        (JobProgress(5, 5, "records", "2 records failed"), "100% of 5 records, 2 records failed"),
        (JobProgress(5, 5, "bytes", "", 2_000), "100% of 5 bytes, 2.0 kB across regions"),
        (JobProgress(5, None, "bytes", "odd\x1b[1m"), "5 bytes, odd�[1m"),
    ],
)
def test_progress_text_shows_the_known_figures(progress, text):
    assert progress_text(progress) == text
