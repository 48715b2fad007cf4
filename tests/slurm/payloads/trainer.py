"""A training script of the tests: `trainer.py MODE OUTPUT_DIR`; everything else is in the environment."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from speaker import Speaker

MODE, OUTPUT = sys.argv[1], Path(sys.argv[2])
TOTAL = json.loads(os.environ["INFRARSI_PROBE"])["total_updates"]
FOREVER_S = 600


def forever() -> None:
    while True:
        time.sleep(FOREVER_S)


def train(speaker: Speaker, updates: int) -> None:
    for _ in range(updates):
        deadline = time.process_time() + 0.02
        while time.process_time() < deadline:
            pass
        speaker.update()


def normal(speaker: Speaker) -> None:
    print(f"rank {speaker.rank} trains")
    train(speaker, TOTAL)
    speaker.end()


def crash(speaker: Speaker) -> None:
    train(speaker, 1)
    if speaker.rank == int(os.environ["WORLD_SIZE"]) - 1:
        speaker.say("exception", phase="forward", type="ValueError", mro=["ValueError"], message="boom")
        os._exit(3)
    forever()


def hang(speaker: Speaker) -> None:
    train(speaker, 1)
    if speaker.rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        forever()
    while True:
        train(speaker, 1)
        time.sleep(0.05)


def fail(speaker: Speaker) -> None:
    """The last rank ends with an error at once, and the others would go on."""
    train(speaker, 1)
    if speaker.rank == int(os.environ["WORLD_SIZE"]) - 1:
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(3)
    train_until_released(speaker)
    speaker.end()


def uneven(speaker: Speaker) -> None:
    """The last rank takes a second longer; each notes when it was let go and when it was done."""
    if speaker.rank == int(os.environ["WORLD_SIZE"]) - 1:
        time.sleep(1.0)
    train(speaker, TOTAL)
    done = time.monotonic()
    speaker.say("end", updates=speaker.updates, reason="stopped", hooks_ok=True, clocks_ok=True)
    answer = speaker.answer()
    times = {"done": done, "let_go": time.monotonic(), "answer": answer}
    (OUTPUT / f"times-{speaker.rank}").write_text(json.dumps(times))


def meet(speaker: Speaker) -> None:
    """Rank 0 listens on MASTER_PORT, the others wait for it; the first time, somebody has taken the port."""
    while speaker.rank != 0 and not (OUTPUT / "listens").exists():
        time.sleep(0.02)
    if speaker.rank == 0:
        port = int(os.environ["MASTER_PORT"])
        with (OUTPUT / "ports").open("a") as stream:
            stream.write(f"{port}\n")
        with socket.socket() as thief, socket.socket() as server:
            if not (OUTPUT / "stolen").exists():
                (OUTPUT / "stolen").touch()
                thief.bind(("", port))
                thief.listen()
            try:
                server.bind(("", port))
            except OSError as error:
                print(f"failed to listen, port: {port}, message: {error.strerror}", flush=True)
                os._exit(1)
        (OUTPUT / "listens").touch()
    train(speaker, TOTAL)
    speaker.end()


def silent(_speaker: Speaker) -> None:
    forever()


def garbage(speaker: Speaker) -> None:
    speaker.raw(b"{not json\n\xff\xfe\n[1, 2]\n" + b"[" * 100_000 + b"\n")
    speaker.say("update", i=0)
    speaker.updates = 1
    speaker.seq += 5
    speaker.update(rank=7)
    speaker.say("nonsense")
    speaker.end()


def second(speaker: Speaker) -> None:
    answers = [Speaker().hello(), Speaker(rank=1 - speaker.rank).hello()]
    (OUTPUT / f"answers-{speaker.rank}").write_text(json.dumps(answers))
    train(speaker, TOTAL)
    speaker.end()


def large(speaker: Speaker) -> None:
    speaker.say("signature", when="start", model="M" * (3 << 20))
    train(speaker, TOTAL)
    speaker.end()


def escape(speaker: Speaker) -> None:
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "os.write(1, b'x'); time.sleep(600)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, cwd="/", env={}
    )
    if child.stdout is not None:
        child.stdout.read(1)
    (OUTPUT / "escaped").write_text(str(child.pid))
    train(speaker, TOTAL)
    speaker.end()


def describe(speaker: Speaker) -> None:
    limit = resource.getrlimit(resource.RLIMIT_DATA)
    facts = {"environ": dict(os.environ), "cwd": os.getcwd(), "limit": limit, "path": sys.path}
    temporary = OUTPUT / f"facts.{speaker.rank}.tmp"
    temporary.write_text(json.dumps(facts))
    temporary.rename(OUTPUT / "facts.json")
    train_until_released(speaker)
    speaker.end()


def lift(speaker: Speaker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    train_until_released(speaker)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    speaker.end()


def report(speaker: Speaker) -> None:
    """Run out of memory, and lift the limit for longer than the agent's samples are apart to say so."""
    train(speaker, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    time.sleep(1.0)
    speaker.say(
        "exception", phase="forward", type="MemoryError", mro=["MemoryError"], message="out of memory"
    )
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    speaker.end()


def _below(mode: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, mode, str(OUTPUT)])


def wrap(speaker: Speaker) -> None:
    sys.exit(_below("inner").wait())


def inner(speaker: Speaker) -> None:
    (OUTPUT / "inner").write_text(str(os.getpid()))
    speaker.say("torch")
    train(speaker, TOTAL)
    speaker.end()


def consult(speaker: Speaker) -> None:
    _below("prepare").wait()
    _outer(speaker)


def plain(speaker: Speaker) -> None:
    _below("prepare").wait()
    (OUTPUT / "outer").write_text(str(os.getpid()))
    train(speaker, TOTAL)
    speaker.end()


def outlive(speaker: Speaker) -> None:
    _below("linger")
    while not (OUTPUT / "lingers").exists():
        time.sleep(0.01)
    _outer(speaker)


def _outer(speaker: Speaker) -> None:
    (OUTPUT / "outer").write_text(str(os.getpid()))
    speaker.say("torch")
    train(speaker, TOTAL)
    speaker.end()


def prepare(speaker: Speaker) -> None:
    """A step without torch, which ends at once as the probe ends: without waiting for anybody."""
    speaker.say("end", updates=0, reason="finished", hooks_ok=None, clocks_ok=None)


def linger(_speaker: Speaker) -> None:
    (OUTPUT / "lingers").touch()
    forever()


def employ(speaker: Speaker) -> None:
    speaker.say("torch")
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from speaker import Speaker; "
    code += f"open({str(OUTPUT / 'worker')!r}, 'w').write(str(Speaker().hello()))"
    subprocess.run([sys.executable, "-c", code], check=True)
    train(speaker, TOTAL)
    speaker.end()


def train_until_released(speaker: Speaker) -> None:
    """Train on until the test has seen enough."""
    while not (OUTPUT / "release").exists():
        train(speaker, 1)
        time.sleep(0.02)
    train(speaker, max(TOTAL - speaker.updates, 0))


def main() -> None:
    speaker = Speaker()
    if speaker.hello() != "accept":
        sys.exit(9)
    globals()[MODE](speaker)


main()
