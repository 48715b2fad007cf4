"""Measure many configurations of one sample task on this machine and write them as a landscape (CSV + TOML).

    python record_landscape.py dense_gpt --out ~/landscapes --configurations 220 --minutes 60

A landscape can be searched offline as often as one likes. Parameters, their values and where they are
written come from the sample's infrarsi.toml. Every measurement is appended to
NAME.measurements.jsonl first: an interrupted recording goes on where it stopped, and CSV and TOML are made
from that file. Torch is imported once and the ranks of a trial are forked from there, which saves some four
seconds a trial. Needs torch and the standard library, Linux, and a machine with one idle core per rank.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from recording.landscape import write_landscape
from recording.plan import record
from recording.recorder import Recorder
from recording.sample import Sample


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("sample", type=Path, help="folder of the sample task")
    parser.add_argument("--out", type=Path, default=Path("landscapes"), help="folder of the landscape")
    parser.add_argument("--configurations", type=int, default=220, help="distinct configurations wanted")
    parser.add_argument("--minutes", type=float, help="stop after this time; run again to go on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trial-seconds", type=float, default=150, help="a longer trial is killed")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(Sample.load(arguments.sample.resolve()), out, arguments.trial_seconds)
    try:
        record(recorder, arguments.configurations, arguments.seed, arguments.minutes)
    finally:
        recorder.stop()
        write_landscape(recorder)


if __name__ == "__main__":
    main()
