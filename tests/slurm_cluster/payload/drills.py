"""What a rank can be told to do wrong, in config.toml ([drill]) or by an order in a folder.

mode    raise   an exception, recorded and printed, then exit code 1
        exit    os._exit(3) without a word
        kill    SIGKILL
        hang    waits for ever, deaf to SIGTERM
        hog     takes more and more memory, then keeps it
        wait    waits until the file `release` lies in the folder; says that it waits by `waiting-<rank>`
        slow    one update takes five seconds longer
rank    the one that does it; -1: all of them
update  before which update
folder  where `order.json` (the same keys) is looked for before every update; who follows it removes it
"""

from __future__ import annotations

import json
import os
import signal
import time

_HOG_STEP = 64 << 20
_HOG_LIMIT = 1 << 30
_SLOW_S = 5.0


class DrillError(Exception):
    """Raised where a drill asks for it."""


class Drill:
    """The orders of one rank."""

    def __init__(self, settings, rank):
        self._settings = settings
        self._rank = rank
        self._done = False

    def before(self, index):
        """Do what is asked for before this update.

        Raises:
            DrillError: in mode "raise".
        """
        folder = self._settings["folder"]
        path = os.path.join(folder, "order.json") if folder else None
        found = _read(path) if path else None
        if found is not None and self._is_due(found, index):
            if found["rank"] == self._rank:
                os.unlink(path)
            _MODES[found["mode"]](folder, self._rank)
        elif not self._done and self._is_due(self._settings, index):
            self._done = True
            _MODES[self._settings["mode"]](folder, self._rank)

    def _is_due(self, order, index):
        return order["mode"] != "none" and order["rank"] in (-1, self._rank) and index >= order["update"]


def _read(path):
    try:
        with open(path, encoding="utf-8") as stream:
            return {"rank": 1, "update": 0, **json.load(stream)}
    except (OSError, ValueError):
        return None


def _raise(_folder, rank):
    raise DrillError(f"the drill asked rank {rank} for an exception")


def _exit(_folder, _rank):
    os._exit(3)


def _kill(_folder, _rank):
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(_folder, _rank):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def _hog(_folder, _rank):
    held = []
    while len(held) * _HOG_STEP < _HOG_LIMIT:
        held.append(b"\1" * _HOG_STEP)
        time.sleep(0.05)
    while True:
        time.sleep(60)


def _wait(folder, rank):
    with open(os.path.join(folder, f"waiting-{rank}"), "w", encoding="utf-8"):
        pass
    while not os.path.exists(os.path.join(folder, "release")):
        time.sleep(0.05)


def _slow(_folder, _rank):
    time.sleep(_SLOW_S)


_MODES = {
    "raise": _raise,
    "exit": _exit,
    "kill": _kill,
    "hang": _hang,
    "hog": _hog,
    "wait": _wait,
    "slow": _slow,
}
