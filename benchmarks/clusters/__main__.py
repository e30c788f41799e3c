"""`make bench-clusters`: compare `headrace transform` with processes, Ray and Beam, on this
machine.

    python benchmarks/clusters [SECTION...] [--pairs 3] [--json]

Sections: process, ray, beam, million, kills. The default is all. Figures are in
`bench-results/clusters.json`. The exit status is 1 if a target is missed, 2 if an output is wrong.
"""

import sys
from pathlib import Path

# Shared modules are in the parent folder; the command is that of the transform benchmark.
HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent), str(HERE.parent / "transform")]


def main() -> int:
    from cluster_suite import run

    return run(__doc__)


if __name__ == "__main__":
    sys.exit(main())
