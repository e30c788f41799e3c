"""`make bench-clusters`: `headrace transform` by worker processes, by Ray and by Beam, all on this machine, in one run, as ratios.

    python benchmarks/clusters [SECTION...] [--pairs 3] [--json]

Sections: process, ray, beam, million, kills; all when none is named. Figures (`clusters.json`) are in `bench-results/`. Exits with 1
when a promise is not kept, and with 2 when an output is wrong.
"""

import sys
from pathlib import Path

# What benchmarks share is next door; the command is run as the transform benchmark runs it.
HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent), str(HERE.parent / "transform")]


def main() -> int:
    from cluster_suite import run

    return run(__doc__)


if __name__ == "__main__":
    sys.exit(main())
