"""`make bench-sequences`: compare models with a `step` with their own full calls, as ratios.

    python benchmarks/sequences [SECTION...] [--pairs 3] [--seconds 2] [--json]

Sections: full, neighbours, overhead, lone. The default is all. Figures are in
`bench-results/sequences.json`. The exit status is 1 if a target is missed, 2 if a response is
wrong.
"""

import sys
from pathlib import Path

# Shared modules are in the parent folder; servers run as in the serving benchmark.
HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent), str(HERE.parent / "serving")]


def main() -> int:
    from sequence_suite import run

    return run(__doc__)


if __name__ == "__main__":
    sys.exit(main())
