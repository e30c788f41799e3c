"""`make bench-transform`: batch transform beside the hand-written limit and beside peers, in one run, as ratios.

    python benchmarks/transform [SECTION...] [--pairs 5] [--rows 1000000] [--peer NAME=PYTHON]...

Sections: rows, objects, split, memory; all when none is named. `make peers` makes the peers' environments; one that is
not there is skipped. Input, output and figures (`transform.json`) are in `bench-results/`: up to 5 GB. Exits with 1
when a promise is not kept.
"""

import sys
from pathlib import Path

# What benchmarks share is next door, and so is what measures servers.
HERE = Path(__file__).parent
sys.path[1:1] = [str(HERE.parent), str(HERE.parent / "serving")]


def main() -> int:
    from suite import run

    return run(__doc__)


if __name__ == "__main__":
    sys.exit(main())
