"""A sbatch, squeue and scancel of a few lines, for what a real Slurm does only when it is broken."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

# The queue is a file of "id name" lines; sbatch does what the next line of `plan` says.
_SBATCH = """\
#!/bin/sh
name=$(sed -n 's/^#SBATCH --job-name=//p' "$2")
count=$(($(wc -l < "$FOLDER/calls") + 1))
echo "$*" >> "$FOLDER/calls"
what=$(sed -n "${count}p" "$FOLDER/plan")
case "$what" in *queue*) echo "$((100 + count)) $name" >> "$FOLDER/queue" ;; esac
case "$what" in
  *hang*) sleep 60 ;;
  *say*) echo "$((100 + count))"; exit 0 ;;
  *garbage*) echo "well done"; exit 0 ;;
  *timeout*) echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2 ;;
  *contact*) echo "sbatch: error: Batch job submission failed: Unable to contact slurm controller" >&2 ;;
  *no*) echo "sbatch: error: Batch job submission failed: Invalid qos specification" >&2 ;;
esac
exit 1
"""


class FakeSlurm:
    """A folder of programs and the files that steer them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("calls", "queue", "plan"):
            (folder / name).touch()
        self.program("sbatch", _SBATCH)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def program(self, name: str, text: str) -> None:
        """Put a program into the folder."""
        path = self.folder / name
        path.write_text(text.replace("$FOLDER", str(self.folder)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def answers(self, *plan: str) -> None:
        """What sbatch does, call by call: queue, and then say, garbage, hang, timeout, contact or no."""
        (self.folder / "plan").write_text("".join(f"{line}\n" for line in plan))

    @property
    def calls(self) -> int:
        """How often sbatch was called."""
        return len((self.folder / "calls").read_text().splitlines())

    @property
    def queue(self) -> dict[str, str]:
        """Job id → name."""
        lines = (line.split() for line in (self.folder / "queue").read_text().splitlines())
        return {line[0]: line[1] for line in lines}
