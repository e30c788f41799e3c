"""`make bench-jobs`: jobs that outlive a request, beside the disk's own limit and beside peers, in one run, as ratios.

    python benchmarks/jobs [SECTION...] [--pairs 3] [--jobs 2000] [--json] [--peer NAME=PYTHON]...

Sections: starting, submits, short, merged, large, idle; all when none is named. `make peers` makes the peers' environments;
one that is not there is skipped. PostgreSQL and Valkey come with the `dev` extra. Figures (`jobs.json`) are in
`bench-results/`. Exits with 1 when a promise is not kept, and with 2 when a job was lost or its result is wrong.
"""

import sys
from pathlib import Path

# What benchmarks share is next door, and so are the servers that tests run.
HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent), str(HERE.parent.parent / "tests")]


def main() -> int:
    from job_suite import run

    return run(__doc__)


if __name__ == "__main__":
    sys.exit(main())
