"""One rank: a training in which nothing is computed, told to the node agent as the probe tells a real one."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import records
from drills import Drill, DrillError
from meeting import Meeting

_WITHIN_RUN = 0.01
_FREE_BYTES = 64 << 20


class Channel:
    """The probe's connection to the node agent."""

    def __init__(self):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(os.environ["INFRARSI_PROBE_SOCKET"])
        self._answers = self._socket.makefile("rb")
        self._next = 0

    def say(self, kind, content):
        """Send one record."""
        record = {"k": kind, "seq": self._next, "t_ns": time.perf_counter_ns(), **content}
        self._next += 1
        self._socket.sendall(json.dumps(record).encode() + b"\n")

    def answer(self):
        """The agent's next word, None when it is gone."""
        line = self._answers.readline()
        return json.loads(line)["k"] if line else None


class Training:
    """The loop."""

    def __init__(self, spec):
        self.spec = spec
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.probe = json.loads(os.environ["INFRARSI_PROBE"])
        self.drill = Drill(spec["drill"], self.rank)
        self.channel = Channel()
        self.index = 0

    def run(self):
        """Train to the end of the plan; the exit code."""
        self.channel.say("hello", records.hello(self.rank, self.world, time.time_ns()))
        if self.channel.answer() != "accept":
            return 9
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        limit = None if limit == resource.RLIM_INFINITY else limit
        self.channel.say("torch", records.torch(limit))
        time.sleep(self.spec["startup_s"])
        address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", 0))
        meeting = Meeting(self.rank, self.world, address, port)
        self.channel.say("signature", records.signature("start", 0))
        failure = self._refusal(limit)
        if failure is not None:
            return self._fail(*failure, 0)
        try:
            self._train(meeting)
        except DrillError as error:
            return self._fail("DrillError", ["Exception"], str(error), self.spec["memory_bytes"], self.index)
        updates = self.probe["total_updates"]
        self.channel.say("signature", records.signature("end", updates))
        self.channel.say(
            "end", {"updates": updates, "reason": "stopped", "hooks_ok": True, "clocks_ok": True}
        )
        self.channel.answer()
        return 0

    def _train(self, meeting):
        meeting.wait()
        last = time.perf_counter_ns()
        last_cpu = time.process_time_ns()
        due = last
        for index in range(self.probe["total_updates"]):
            self.index = index
            self.drill.before(index)
            # Times that are due, not pauses: a delay by a busy machine of up to half a step is made up for.
            step_ns = int(1e9 * self._step_s(index))
            due = max(due, last - step_ns // 2) + step_ns
            time.sleep(max(0, due - time.perf_counter_ns()) / 1e9)
            met = time.perf_counter_ns()
            meeting.wait()
            end, cpu = time.perf_counter_ns(), time.process_time_ns()
            times = {
                "end_ns": end,
                "wall_ns": end - last,
                "cpu_ns": cpu - last_cpu,
                "probe_ns": 50_000,
                "communication_ns": end - met,
            }
            last, last_cpu = end, cpu
            if index == 0:
                self.channel.say("optimizer", records.optimizer())
            perturbed = self.probe.get("perturb_ulp_seed") is not None
            record = records.update(index, self.rank, self.spec, times, perturbed)
            self.channel.say("update", record)
            if self.rank == 0:
                print(f"update {index} loss {record['loss'][0]:.4f}", flush=True)

    def _step_s(self, index):
        """Equal on all ranks; the first updates are slower."""
        draw = zlib.crc32(f"{self.spec['noise_seed']} {index}".encode()) / 0xFFFFFFFF
        warm_up = 1.5 if index == 0 else 1.0
        return self.spec["step_s"] * warm_up * (1.0 + _WITHIN_RUN * (2.0 * draw - 1.0))

    def _refusal(self, limit):
        """Why the first update fails: (type, bases, message, bytes held)."""
        needed = self.spec["memory_bytes"]
        if self.spec["refuses"] is not None:
            return "ValueError", ["Exception"], self.spec["refuses"], needed // 2
        if limit is not None and needed > limit and self.rank == 0:
            held = limit - _FREE_BYTES
            message = (
                "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
                f"you tried to allocate {needed - held} bytes. Error code 12 (Cannot allocate memory)"
            )
            return "RuntimeError", ["Exception"], message, held
        return None

    def _fail(self, kind, bases, message, held, index):
        self.channel.say("exception", records.exception(kind, bases, message, held, index))
        print(f"[rank{self.rank}]: {kind}: {message}", file=sys.stderr, flush=True)
        return 1


sys.stdout.flush()
os._exit(Training(json.loads(os.environ["TRAINING_SPEC"])).run())
