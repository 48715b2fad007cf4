"""`python -P -m slurm.agent SPEC` runs the trial of one spec.json."""

from __future__ import annotations

import sys
from pathlib import Path

from slurm.agent.plan import SpecError
from slurm.agent.run import AlreadyRunError, run


def main(arguments: list[str]) -> int:
    """Run the trial; 0: result.json was written, 2: a wrong call, 3: the trial was started before."""
    if len(arguments) != 1:
        print("usage: python -P -m slurm.agent SPEC", file=sys.stderr)
        return 2
    try:
        return run(Path(arguments[0]))
    except SpecError as error:
        print(f"slurm.agent: {error}", file=sys.stderr)
        return 2
    except AlreadyRunError as error:
        print(f"slurm.agent: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
