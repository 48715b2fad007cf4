"""`python -P -m slurm.agent SPEC` runs this node's part of the trial of one spec.json."""

from __future__ import annotations

import sys
from pathlib import Path

from slurm.agent.claim import AlreadyRunError
from slurm.agent.member import HeadLostError
from slurm.agent.plan import SpecError
from slurm.agent.reap import LeftoverError
from slurm.agent.result import ResultLostError
from slurm.agent.run import run

EXIT_CODES: dict[type[Exception], int] = {
    SpecError: 2,
    AlreadyRunError: 3,
    HeadLostError: 4,
    ResultLostError: 5,
    LeftoverError: 6,
}


def main(arguments: list[str]) -> int:
    """Run the trial.

    Returns:
        0: result.json was written; 2: a wrong call or spec; 3: the trial was started before; 4: the head of
        the trial was not found or is gone; 5: the disk took no result; 6: a process cannot be ended.
    """
    if len(arguments) != 1:
        print("usage: python -P -m slurm.agent SPEC", file=sys.stderr)
        return 2
    try:
        return run(Path(arguments[0]))
    except tuple(EXIT_CODES) as error:
        print(f"slurm.agent: {error}", file=sys.stderr)
        return EXIT_CODES[type(error)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
