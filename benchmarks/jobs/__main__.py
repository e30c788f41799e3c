"""`make bench-jobs`: compare jobs with the disk's limit and with peers, in one run, as ratios.

    python benchmarks/jobs [SECTION...] [--pairs 3] [--jobs 2000] [--json] [--peer NAME=PYTHON]...

Sections: starting, submits, short, merged, large, idle, scale. The default is all. `make peers` creates
the environments of the peers; peers without one are skipped. PostgreSQL and Valkey come with the
`dev` extra. Figures are in `bench-results/jobs.json`. The exit status is 1 if a target is missed, 2
if a job is lost or its result is wrong.
"""

import sys
from pathlib import Path

# Shared modules are in the parent folder, and the servers are those of the tests.
HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent), str(HERE.parent.parent / "tests")]


def main() -> int:
    from job_suite import run

    return run(__doc__)


if __name__ == "__main__":
    sys.exit(main())
