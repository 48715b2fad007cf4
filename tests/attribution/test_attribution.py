from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schema.evidence import CudaMemory
from engine.schema.trial import FailureKind
from engine.trial.attribution.attribute import attribute
from engine.trial.attribution.bound import censored_bound_gib
from engine.trial.attribution.conflicts import normalise
from engine.trial.attribution.context import AttributionContext
from tests.attribution.runs import GIB, exception, log, rank, run

CPU_REFUSED = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate {} bytes. Error code 12 (Cannot allocate memory)"
)
PEER_LOST = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:37787. "
    "This is typically caused by a remote worker crashing."
)
CUDA_REFUSED = (
    "CUDA out of memory. Tried to allocate 1.96 GiB. GPU 1 has a total capacity of 63.29 GiB of which 1.82 "
    "GiB is "
    "free. Including non-PyTorch memory, this process has 61.46 GiB memory in use. Of the allocated memory "
    "22.97 GiB "
    "is allocated by PyTorch, with 2.14 GiB allocated in private pools (e.g., CUDA Graphs), and 37.00 GiB "
    "is reserved "
    "by PyTorch but unallocated. If reserved but unallocated memory is large try setting …"
)
CONFIG = AttributionContext(changes={"micro_batch_size": 4, "activation_recompute": "none"})
PATCH = AttributionContext(patched_files=("model.py",))
BOTH = AttributionContext(changes={"compile_scope": "model"}, patched_files=("src/model.py", "train.py"))
NOTHING = AttributionContext()


def test_a_refused_allocation_under_the_limit_is_a_censored_point():
    """On CPU the bound is what the rank held + what it asked for, and the victim rank is passed over."""
    oom = exception("RuntimeError", CPU_REFUSED.format(33554432), vm_data=1020 << 20)
    victim = exception("RuntimeError", PEER_LOST)
    evidence = run(
        rank(0, error=victim, last_ns=1), rank(1, error=oom, last_ns=2), memory_limit_bytes=1000 << 20
    )
    found = attribute(evidence, CONFIG)
    assert found is not None
    assert (found.kind, found.blame_candidate, found.rank) == (FailureKind.OOM_HOST, True, 1)
    assert found.required_bytes == (1020 << 20) + 33554432
    assert found.limit_bytes == 1000 << 20
    assert found.tried_gib == pytest.approx(33554432 / GIB)
    assert found.memory_gap_gib == pytest.approx((52 << 20) / GIB)
    assert censored_bound_gib(found) == pytest.approx(1052 / 1024)
    assert "you tried to allocate 33554432 bytes" in found.cause


@given(
    limit=st.integers(1 << 28, 1 << 40),
    held=st.none() | st.integers(0, 1 << 41),
    tried=st.integers(1, 1 << 36),
)
def test_the_bound_is_never_below_the_limit_nor_below_what_was_held_and_asked(limit, held, tried):
    """A refused request proves that more than the limit was needed, whatever the reading says."""
    oom = exception("RuntimeError", CPU_REFUSED.format(tried), vm_data=held)
    found = attribute(run(rank(0, error=oom), memory_limit_bytes=limit), CONFIG)
    assert found is not None
    if tried > 64 * limit:
        assert found.required_bytes is None
    else:
        assert found.required_bytes == max(limit, (held or 0) + tried)


@pytest.mark.parametrize(("message", "kind"), [("", "MemoryError"), ("std::bad_alloc", "RuntimeError")])
def test_allocators_without_numbers_prove_the_limit_itself(kind: str, message: str):
    """MemoryError and bad_alloc name no size; under a limit they still prove that it was too small."""
    evidence = run(rank(0, error=exception(kind, message, vm_data=900 << 20)), memory_limit_bytes=1 << 30)
    found = attribute(evidence, CONFIG)
    assert found is not None
    assert found.kind is FailureKind.OOM_HOST
    assert censored_bound_gib(found) == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_limit_bytes": None}, CPU_REFUSED.format(1 << 30)),
        ({"memory_limit_bytes": 1 << 30, "device": "cuda"}, CPU_REFUSED.format(1 << 30)),
        ({"memory_limit_bytes": 1 << 30}, CPU_REFUSED.format(1 << 46)),
        ({"memory_limit_bytes": 1 << 30}, "Caught MemoryError in DataLoader worker process 0."),
    ],
)
def test_no_bound_without_a_known_limit_on_the_training_device(changes: dict, message: str):
    """No limit, a GPU task's host, an absurd request, a worker's memory: out of memory without a bound."""
    evidence = run(rank(0, error=exception("RuntimeError", message, vm_data=1 << 30)), **changes)
    found = attribute(evidence, CONFIG)
    assert found is not None
    assert found.kind is FailureKind.OOM_HOST
    assert censored_bound_gib(found) is None


@pytest.mark.parametrize(
    ("share", "kind"), [(0.97, FailureKind.OOM_HOST), (0.5, FailureKind.CONFIG_CONFLICT)]
)
def test_a_primitive_that_cannot_be_created_is_memory_only_near_the_limit(share: float, kind: FailureKind):
    """OneDNN says the same for a full memory and for a refused shape; the held memory tells them apart."""
    limit = 1000 << 20
    refused = exception("RuntimeError", "could not create a primitive", vm_data=int(share * limit))
    found = attribute(run(rank(0, error=refused), memory_limit_bytes=limit), CONFIG)
    assert found is not None
    assert found.kind is kind


def test_a_limit_that_was_lifted_during_the_run_proves_nothing():
    """Where the agent saw the limit raised, the failure is no censored point."""
    oom = exception("RuntimeError", CPU_REFUSED.format(1 << 28), vm_data=1 << 30)
    found = attribute(run(rank(0, error=oom, limit_lifted=True), memory_limit_bytes=1 << 30), CONFIG)
    assert found is not None
    assert censored_bound_gib(found) is None


@pytest.mark.parametrize("message", ["can't start new thread", "Resource temporarily unavailable"])
def test_threads_refused_under_the_limit_are_memory_without_a_bound(message: str):
    """No allocator spoke, so no need is known; without a limit it is the host's fault."""
    error = exception("RuntimeError", message, vm_data=290 << 20)
    found = attribute(run(rank(0, error=error), memory_limit_bytes=300 << 20), CONFIG)
    assert found is not None
    assert (found.kind, found.required_bytes) == (FailureKind.OOM_HOST, None)
    assert "no allocator said" in found.cause
    assert censored_bound_gib(found) is None
    unlimited = attribute(run(rank(0, error=error)), CONFIG)
    assert unlimited is not None
    assert (unlimited.kind, unlimited.blame_candidate) == (FailureKind.INFRA, False)


def test_device_out_of_memory_with_all_its_numbers():
    """The sentence of torch 2.x is read completely; the bound is allocated + tried."""
    evidence = run(rank(1, error=exception("OutOfMemoryError", CUDA_REFUSED)), device="cuda")
    found = attribute(evidence, CONFIG)
    assert found is not None
    assert (found.kind, found.blame_candidate) == (FailureKind.OOM_GPU, True)
    assert (found.tried_gib, found.free_gib, found.capacity_gib) == (1.96, 1.82, 63.29)
    assert (found.allocated_gib, found.reserved_gib) == (22.97, pytest.approx(59.97))
    assert found.memory_gap_gib == pytest.approx(0.14)
    assert censored_bound_gib(found) == pytest.approx(24.93)


def test_the_old_sentence_and_the_probes_reading_fill_in():
    """Torch 1.x prints another order; numbers that no text has come from the allocator's own state."""
    old = (
        "CUDA out of memory. Tried to allocate 978.00 MiB (GPU 0; 4.00 GiB total capacity; 1.68 GiB already "
        "allocated; "
        "0 bytes free; 2.72 GiB reserved in total by PyTorch)"
    )
    found = attribute(run(rank(0, error=exception("RuntimeError", old)), device="cuda"), CONFIG)
    assert found is not None
    assert (found.free_gib, found.allocated_gib, found.reserved_gib) == (0.0, 1.68, 2.72)
    state = CudaMemory(
        allocated_bytes=6 * GIB, reserved_bytes=7 * GIB, free_bytes=GIB // 2, total_bytes=8 * GIB
    )
    bare = exception("OutOfMemoryError", "CUDA out of memory. Tried to allocate 1.00 GiB.", cuda=state)
    found = attribute(run(rank(0, error=bare), device="cuda"), CONFIG)
    assert found is not None
    assert (found.allocated_gib, found.reserved_gib, found.capacity_gib) == (6.0, 7.0, 8.0)
    assert (censored_bound_gib(found), found.memory_gap_gib) == (7.0, 0.5)


def test_a_device_that_others_use_is_infrastructure():
    """Memory that other processes hold is not the candidate's need."""
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which "
        "1.00 GiB is "
        "free. Process 77 has 50.00 GiB memory in use. Including non-PyTorch memory, this process has 29.00 "
        "GiB memory "
        "in use. Of the allocated memory 28.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by "
        "PyTorch but "
        "unallocated."
    )
    found = attribute(run(rank(0, error=exception("OutOfMemoryError", text)), device="cuda"), CONFIG)
    assert found is not None
    assert (found.kind, found.blame_candidate) == (FailureKind.INFRA, False)
    assert censored_bound_gib(found) is None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RuntimeError", "Expected to mark a variable ready only once. This error is caused by …"),
        (
            "RuntimeError",
            "expect_autograd_hooks_ INTERNAL ASSERT FAILED at "
            '"/pytorch/torch/csrc/distributed/c10d/reducer.cpp":1732',
        ),
        ("NotImplementedError", "FlexAttention does not support backward on CPU. Please set the input's …"),
        ("ValueError", "global_batch 8 is not divisible by micro_batch 3 x world 2"),
        ("TorchRuntimeError", "Expected inputs of BF16 type but got mat_a.dtype=torch.float32"),
        ("InductorError", "LoweringException: GuardOnDataDependentSymNode: Could not guard on Eq(u1, 1)"),
        ("RuntimeError", "Your training graph has changed in this iteration"),
        ("RuntimeError", "Invalid strides/sizes, got [0, 0] for strides"),
    ],
)
def test_what_the_code_refuses_is_a_conflict_of_the_changed_mechanisms(kind: str, message: str):
    """Every mechanism that differs is implicated; who is really to blame is for re-tests to find."""
    found = attribute(run(rank(0, error=exception(kind, message))), CONFIG)
    assert found is not None
    assert (found.kind, found.blame_candidate) == (FailureKind.CONFIG_CONFLICT, True)
    assert found.implicated == ("activation_recompute", "micro_batch_size")
    assert found.signature is not None
    assert found.signature.startswith(kind)
    assert message.split(".")[0][:60] in found.cause


def test_equal_failures_have_equal_signatures():
    """Sizes, addresses and paths of two runs do not make two failures of one."""
    first = "tensor 12 at 0x7f00a1 in /scratch/t001/work/model.py has shape [4, 512, 192]"
    second = "tensor 9 at 0x7f99ff in /scratch/t002/work/model.py has shape [8, 512]"
    assert normalise(first) == normalise(second)
    assert normalise(first) != normalise("tensor 12 has no gradient")


@given(st.text(max_size=400))
def test_normalising_is_idempotent_and_has_no_digits(text: str):
    """A signature holds no number and survives being normalised again."""
    once = normalise(text)
    assert not any(character in "0123456789" for character in once)
    assert normalise(once) == once


def test_only_a_patch_means_the_patch_failed():
    """With the configuration of the baseline, any exception is the patch's."""
    error = exception("RuntimeError", "shape mismatch", ("/env/site-packages/torch/nn/f.py", 3, "linear"))
    found = attribute(run(rank(0, error=error)), PATCH)
    assert found is not None
    assert (found.kind, found.implicated) == (FailureKind.PATCH_ERROR, ())


@pytest.mark.parametrize(
    ("kind", "message", "frames", "expected"),
    [
        ("NameError", "name 'q' is not defined", [("/t/work/src/model.py", 9, "forward")], "patch_error"),
        ("NameError", "name 'q' is not defined", [("/t/work/src/data.py", 9, "batch")], "config_conflict"),
        (
            "TypeError",
            "unexpected keyword 'mask'",
            [("/t/work/src/model.py", 9, "forward"), ("/e/site-packages/torch/m.py", 1, "call")],
            "patch_error",
        ),
        (
            "RuntimeError",
            "Expected to mark a variable ready only once.",
            [("/t/work/train.py", 80, "main"), ("/e/site-packages/torch/_tensor.py", 6, "backward")],
            "config_conflict",
        ),
        (
            "SyntaxError",
            "invalid syntax (model.py, line 12)",
            [("/t/work/train.py", 3, "<module>")],
            "patch_error",
        ),
        (
            "SyntaxError",
            "invalid syntax (data.py, line 12)",
            [("/t/work/data.py", 12, "")],
            "config_conflict",
        ),
    ],
)
def test_patch_and_configuration_are_told_apart_by_the_innermost_frame_of_the_project(
    kind: str, message: str, frames: list, expected: str
):
    """Library frames do not count, and a known clash of options is one wherever it surfaces."""
    found = attribute(run(rank(0, error=exception(kind, message, *frames))), BOTH)
    assert found is not None
    assert found.kind == expected


def test_the_baseline_has_nobody_else_to_blame():
    """Without a change and without a patch, an exception is the user's own."""
    found = attribute(run(rank(0, error=exception("FileNotFoundError", "data.bin"))), NOTHING)
    assert found is not None
    assert (found.kind, found.blame_candidate) == (FailureKind.USER_ERROR, False)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("OSError", "[Errno 28] No space left on device: 'output/state.pt'"),
        ("OSError", "[Errno 122] Disk quota exceeded"),
        (
            "DistNetworkError",
            "The server socket has failed to listen on any local network address. EADDRINUSE",
        ),
        ("AcceleratorError", "CUDA error: uncorrectable ECC error encountered"),
    ],
)
def test_infrastructure_is_nobodys_fault(kind: str, message: str):
    """Disks, ports and devices void a trial even when the candidate changed everything."""
    found = attribute(run(rank(0, error=exception(kind, message))), BOTH)
    assert found is not None
    assert (found.kind, found.blame_candidate) == (FailureKind.INFRA, False)


@pytest.mark.parametrize(
    ("changes", "kind", "blame"),
    [
        ({"ended": "cancelled", "signal": 15}, "none", False),
        ({"ended": "cancelled", "signal": 9}, "none", False),
        ({"ended": "launch_failed", "launch_error": "no python"}, "infra", False),
        ({"ended": "no_result", "notes": ("result.json: missing",)}, "infra", False),
        ({"ended": "total_timeout"}, "timeout", None),
        ({"ended": "update_timeout"}, "hang", None),
        ({"ended": "start_timeout"}, "infra", False),
    ],
)
def test_endings_that_the_agent_reports(changes: dict, kind: str, blame: bool | None):
    """Without an exception the agent's own word decides; a signal that it sent itself proves nothing."""
    found = attribute(run(rank(0, updates=3, exit_code=-9), **changes), CONFIG)
    assert found is not None
    assert (found.kind, found.blame_candidate) == (kind, blame)


def test_a_start_that_every_rank_reached_is_a_hang():
    """All ranks said hello but no first update came: the job hangs, the launcher is fine."""
    found = attribute(run(rank(0), rank(1), ended="start_timeout"), CONFIG)
    assert found is not None
    assert found.kind is FailureKind.HANG


def test_a_hang_names_the_rank_that_was_silent_first():
    """The rank with fewer updates is late, the others wait for it."""
    evidence = run(rank(0, updates=4, last_ns=900), rank(1, updates=3, last_ns=800), ended="update_timeout")
    found = attribute(evidence, CONFIG)
    assert found is not None
    assert found.rank == 1


def test_an_exception_beats_the_timeout_that_followed():
    """A rank that failed makes the others hang; the failure is the cause."""
    error = exception("ValueError", "bad option")
    evidence = run(rank(0, updates=3), rank(1, error=error), ended="update_timeout")
    found = attribute(evidence, CONFIG)
    assert found is not None
    assert (found.kind, found.rank) == (FailureKind.CONFIG_CONFLICT, 1)


def test_the_earliest_failing_rank_is_the_cause():
    """Of two ranks that failed by themselves, the one at the earlier update is named."""
    evidence = run(
        rank(0, error=exception("ValueError", "late", at_update=4), last_ns=5),
        rank(1, error=exception("ValueError", "early", at_update=2), last_ns=9),
    )
    found = attribute(evidence, CONFIG)
    assert found is not None
    assert found.rank == 1
    assert "early" in found.cause


@pytest.mark.parametrize(("signal", "code"), [(9, None), (None, 137), (None, -9)])
def test_a_bare_kill_is_probably_host_memory(signal: int | None, code: int | None):
    """SIGKILL without an exception: host memory, but the blame stays open and no need is known."""
    found = attribute(run(rank(0), signal=signal, exit_code=code, memory_limit_bytes=GIB), CONFIG)
    assert found is not None
    assert (found.kind, found.blame_candidate) == (FailureKind.OOM_HOST, None)
    assert censored_bound_gib(found) is None


def test_a_kill_that_the_system_explains():
    """The kernel's own line settles the blame and is quoted with its number."""
    text = (
        "step 1\nslurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have …\n"
    )
    found = attribute(run(rank(0), exit_code=137, log_tail=text), CONFIG)
    assert found is not None
    assert found.blame_candidate is True
    assert found.evidence[0].line == 2


def test_a_loss_that_is_no_number():
    """A run that ended well with a NaN loss failed all the same; the first broken update is named."""
    evidence = run(
        rank(0, updates=(1.0, 2.0, None, None, None, None, None, None), end=True),
        rank(1, updates=8, end=True),
        exit_code=0,
    )
    found = attribute(evidence, CONFIG)
    assert found is not None
    assert (found.kind, found.rank) == (FailureKind.NUMERICS, 0)
    assert "update 2" in found.cause


def test_the_word_error_is_no_failure():
    """A run whose ranks all ended is no failure, whatever it printed or caught on the way."""
    text = "0 errors\nUserWarning: error_if_nonfinite=True\nCUDA out of memory. retrying\nRuntimeError: x\n"
    caught = exception("OutOfMemoryError", CUDA_REFUSED)
    evidence = run(
        rank(0, updates=8, end=True, error=caught), rank(1, updates=8, end=True), exit_code=0, log_tail=text
    )
    assert attribute(evidence, CONFIG) is None


def test_an_interrupt_blames_nobody():
    """Ctrl-C is no failure of the candidate."""
    found = attribute(run(rank(0, error=exception("KeyboardInterrupt", "")), exit_code=130), CONFIG)
    assert found is not None
    assert (found.kind, found.blame_candidate) == (FailureKind.NONE, False)


def test_a_script_that_ends_early_is_named_as_such():
    """Fewer updates than wanted and exit code 0: the sentence says what happened."""
    found = attribute(run(rank(0, updates=3, end=True), rank(1, updates=3, end=True), exit_code=0), NOTHING)
    assert found is not None
    assert "ended by itself after 3 of 8 updates" in found.cause
    assert found.kind is FailureKind.USER_ERROR


@pytest.mark.parametrize(
    ("name", "context", "kind", "rank_number", "words"),
    [
        ("cpuoom", CONFIG, "oom_host", 0, "tried to allocate 70368744177664 bytes"),
        ("segv", CONFIG, "config_conflict", 1, "SIGSEGV"),
        ("graphbreak", CONFIG, "config_conflict", None, "Data-dependent branching"),
        ("straggler", CONFIG, "hang", 0, "Timed out waiting 5000ms"),
        ("argparse", CONFIG, "config_conflict", None, "unrecognized arguments: --fused-loss"),
        ("argparse", NOTHING, "user_error", None, "unrecognized arguments: --fused-loss"),
        ("dtype", PATCH, "patch_error", 0, "expected m1 and m2 to have the same dtype"),
        ("module", PATCH, "patch_error", None, "No module named 'fused_kernels'"),
    ],
)
def test_real_logs_alone(
    name: str, context: AttributionContext, kind: str, rank_number: int | None, words: str
):
    """Without any record of the probe the text still gives the cause, the rank and the proving line."""
    found = attribute(run(log_tail=log(name)), context)
    assert found is not None
    assert (found.kind, found.rank) == (kind, rank_number)
    assert words in found.cause
    number = found.evidence[0].line
    assert number is not None
    assert found.evidence[0].text.split("]: ")[-1] in log(name).split("\n")[number - 1]


def test_an_unknown_place_in_the_file_gives_no_line_numbers():
    """The tail of a long log has lines but no numbers."""
    context = AttributionContext(changes=CONFIG.changes, first_log_line=None)
    found = attribute(run(log_tail=log("dtype")), context)
    assert found is not None
    assert found.evidence[0].line is None


@given(st.text(max_size=2000), st.sampled_from(["exited", "update_timeout", "no_result"]))
def test_no_text_breaks_the_attribution(text: str, ended: str):
    """Whatever a job prints, a run that failed gets one attribution with one cause on one line."""
    found = attribute(run(rank(0), log_tail=text, ended=ended), BOTH)
    assert found is not None
    assert found.cause
    assert "\n" not in found.cause


def test_a_killed_rank_had_survived_what_it_printed():
    """A traceback that a script printed and survived is not why the kernel killed it later."""
    text = (
        'Traceback (most recent call last):\n  File "/t/work/data.py", line 3, in load\nKeyError: 7\n'
        "E1130 08:53:32.141000 14135 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 14)\n"
    )
    found = attribute(run(rank(0), rank(1), log_tail=text), CONFIG)
    assert found is not None
    assert (found.kind, found.rank, found.evidence[0].line) == (FailureKind.OOM_HOST, 1, 4)


def test_a_log_without_tracebacks_still_names_its_exception():
    """The last line of a cut-off log is enough for the kind, the rank and the numbers."""
    found = attribute(
        run(log_tail=f"…\n[rank1]: torch.OutOfMemoryError: {CUDA_REFUSED}", device="cuda"), CONFIG
    )
    assert found is not None
    assert (found.kind, found.rank, found.tried_gib) == (FailureKind.OOM_GPU, 1, 1.96)


def test_a_chain_is_followed_to_its_beginning():
    """The first exception of a chain is the cause; a failed look-up that a handler answers is not."""
    text = (
        "Traceback (most recent call last):\n"
        '  File "/t/work/model.py", line 3, in forward\n'
        "ValueError: global_batch 8 is not divisible by 6\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/t/work/train.py", line 9, in main\n'
        "RuntimeError: training failed\n"
    )
    error = exception("RuntimeError", "training failed", ("/t/work/train.py", 9, "main"))
    found = attribute(run(rank(0, error=error), log_tail=text), CONFIG)
    assert found is not None
    assert "not divisible by 6" in found.cause
    assert found.evidence[0].line == 3
    handled = text.replace("ValueError: global_batch", "KeyError: global_batch").replace(
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    )
    found = attribute(run(rank(0, error=error), log_tail=handled), CONFIG)
    assert found is not None
    assert "training failed" in found.cause
