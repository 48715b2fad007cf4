"""After a trial: is every node of the allocation clean?"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from slurm.held.holder import devices
from slurm.held.holder.plan import HolderPlan
from slurm.held.holder.step import Step

_LIMIT_S = 180.0
_LOOK_S = 0.05


def find_leftovers(
    plan: HolderPlan, folder: Path, trial_dir: Path, token: str, meanwhile: Callable[[], None]
) -> list[str]:
    """What a trial left on any node, in words; a node that cannot be asked counts as not clean.

    Args:
        plan: How steps are started.
        folder: The allocation's folder; the answers of several nodes lie in `checks/<token>/`.
        trial_dir: The trial's folder.
        token: The trial's token.
        meanwhile: Called while waiting for the nodes.
    """
    if plan.nodes == 1:
        return devices.wait_until_clean(str(trial_dir))
    answers = folder / "checks" / token
    answers.mkdir(parents=True, exist_ok=True)
    check = Step(plan.device_check(str(trial_dir)), answers, lambda: _text_in(answers) != "")
    deadline = time.monotonic() + _LIMIT_S
    end = check.poll()
    while end is None and time.monotonic() < deadline:
        meanwhile()
        time.sleep(_LOOK_S)
        end = check.poll()
    if end is None:
        check.end(signal.SIGKILL)
        return ["the nodes could not be asked within three minutes"]
    if end.returncode == 0:
        return []
    return [*_text_in(answers).splitlines(), *end.words.splitlines()] or [f"srun: {end.returncode}"]


def _text_in(folder: Path) -> str:
    try:
        return (folder / "agent.log").read_text(errors="replace")
    except OSError:
        return ""
