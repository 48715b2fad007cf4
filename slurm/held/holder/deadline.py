"""When the allocation ends."""

from __future__ import annotations

import os
import re
import subprocess
import time

_SCONTROL_TIMEOUT_S = 20.0
_END = re.compile(r"\bEndTime=(\S+)")


class Deadline:
    """The end of this allocation on this node's clock.

    Args:
        job_id: The allocation's job; None outside of Slurm.
        limit_s: The time limit that was asked for, seconds: the answer where Slurm gives none.
    """

    def __init__(self, job_id: str | None, limit_s: float) -> None:
        self._job_id = job_id
        self.limit_s = limit_s
        self.end = _told() or self._asked() or time.time() + limit_s

    def left_s(self) -> float:
        """Seconds until the end."""
        return self.end - time.time()

    def warned(self, lead_s: float) -> None:
        """Slurm signalled that the end is near: ask for the end again, it may have been moved."""
        self.end = self._asked() or min(self.end, time.time() + lead_s)

    def _asked(self) -> float | None:
        if self._job_id is None:
            return None
        try:
            answer = subprocess.run(
                ["scontrol", "-o", "show", "job", self._job_id],
                env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SCONTROL_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = _END.search(answer.stdout)
        try:
            return time.mktime(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S")) if match else None
        except (ValueError, OverflowError):
            return None


def _told() -> float | None:
    """The end as newer versions of Slurm put it into the environment."""
    try:
        return float(os.environ["SLURM_JOB_END_TIME"])
    except (KeyError, ValueError):
        return None
