"""Print the costs and waits of autoscalers as a table in Markdown: ``python tests/scaling/planner``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from scaling.planner import costs_table


def main() -> None:
    """Print the table."""
    sys.stdout.write(costs_table.markdown(costs_table.run_all()) + "\n")


if __name__ == "__main__":
    main()
