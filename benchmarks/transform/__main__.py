"""`make bench-transform`: compare batch transform with the hand-written limit and peers, as ratios.

    python benchmarks/transform [SECTION...] [--pairs 5] [--rows 1000000] [--peer NAME=PYTHON]...

Sections: rows, objects, split, memory, many. The default is all. `make peers` creates the environments of
the peers; peers without one are skipped. Input, output and figures (`transform.json`) are in
`bench-results/`: up to 5 GB. The exit status is 1 if a target is missed.
"""

import sys
from pathlib import Path

# Shared modules are in the parent folder, and those that measure servers in `serving`.
HERE = Path(__file__).parent
sys.path[1:1] = [str(HERE.parent), str(HERE.parent / "serving")]


def main() -> int:
    from suite import run

    return run(__doc__)


if __name__ == "__main__":
    sys.exit(main())
