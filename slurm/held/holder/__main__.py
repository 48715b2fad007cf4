"""`python -P -m slurm.held.holder FOLDER` holds the allocation that it runs in."""

from __future__ import annotations

import sys
from pathlib import Path

from slurm.held.holder.loop import Holder
from slurm.held.holder.plan import PlanError, load_plan


def main(arguments: list[str]) -> int:
    """Hold the allocation; 0: given back in order, 2: a wrong call, 1: the disk refuses."""
    if len(arguments) != 1:
        print("usage: python -P -m slurm.held.holder FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    try:
        return Holder(folder, load_plan(folder)).run()
    except PlanError as error:
        print(f"slurm.held.holder: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"slurm.held.holder: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
