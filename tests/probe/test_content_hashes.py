"""The arithmetic of the hashes and of the one-ulp perturbation, against routes in plain Python."""

from __future__ import annotations

import hashlib
import importlib
import math
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.probe.payload_files import payload_dir

torch = pytest.importorskip("torch")
MODULUS = 1 << 64
matrices = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(-(2**31), 2**31), min_size=width, max_size=width), min_size=1, max_size=6
    )
)
examples = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def payload() -> Any:
    """Imports modules of the payload by name, as a training process would."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(payload_dir()))

    def module(name: str) -> ModuleType:
        return importlib.import_module(f"_infrarsi_probe.{name}")

    yield module
    patch.undo()


def signed(value: int) -> int:
    value %= MODULUS
    return value - MODULUS if value >= MODULUS // 2 else value


def avalanche(word: int) -> int:
    """One round of xor-shift and multiplication in unbounded integers."""
    word = signed(word)
    word = signed(signed(word ^ (word >> 31)) * -4658895280553007687)
    return signed(word ^ (word >> 28))


def row_sum(rows: list[list[int]], nonce: str) -> int:
    seed = int.from_bytes(hashlib.sha256(nonce.encode()).digest()[:8], "big", signed=True)
    keys = [avalanche(k * -7046029254386353131 + seed) | 1 for k in range(1, len(rows[0]) + 1)]
    return (
        sum(avalanche(sum((x + 1) * key for x, key in zip(row, keys, strict=True))) for row in rows) % MODULUS
    )


@examples
@given(matrices)
def test_row_hash_equals_its_definition(payload: Any, rows: list[list[int]]) -> None:
    """The tensor code computes the sum over rows of the mixed multilinear form, modulo 2**64."""
    hasher = payload("rowhash").RowHasher(torch, "nonce")
    assert int(hasher.rows(torch.tensor(rows))) % MODULUS == row_sum(rows, "nonce")


@examples
@given(matrices, st.randoms(), st.data())
def test_row_hash_ignores_order_and_layout_only(
    payload: Any, rows: list[list[int]], random: Any, data: Any
) -> None:
    """Any order and any split of the rows gives the same sum; another element in one row does not."""
    hasher = payload("rowhash").RowHasher(torch, "nonce")
    whole = int(hasher.rows(torch.tensor(rows))) % MODULUS
    shuffled = list(rows)
    random.shuffle(shuffled)
    cut = data.draw(st.integers(0, len(rows)))
    parts = [part for part in (shuffled[:cut], shuffled[cut:]) if part]
    assert sum(int(hasher.rows(torch.tensor(part))) for part in parts) % MODULUS == whole
    rows[0][-1] += 1
    assert int(hasher.rows(torch.tensor(rows))) % MODULUS != whole


def test_masked_padding_does_not_count(payload: Any) -> None:
    """A row padded under a mask hashes like the shorter row."""
    hasher = payload("rowhash").RowHasher(torch, "nonce")
    padded, mask = torch.tensor([[5, 6, 0, 0]]), torch.tensor([[1, 1, 0, 0]])
    assert int(hasher.rows(padded, mask)) == int(hasher.rows(torch.tensor([[5, 6]])))
    assert int(hasher.rows(padded)) != int(hasher.rows(torch.tensor([[5, 6]])))


def test_chunks_do_not_change_hashes(payload: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and tensors larger than a chunk hash as in one piece, contiguous or not."""
    rows = torch.arange(600).reshape(30, 20) * 7919
    weight = torch.linspace(-2.0, 2.0, 600).reshape(20, 30)
    rowhash, signature = payload("rowhash"), payload("signature")
    whole = int(rowhash.RowHasher(torch, "n").rows(rows)), signature.content(torch, weight)
    transposed = signature.content(torch, weight.t().contiguous().t())
    monkeypatch.setattr(rowhash, "CHUNK", 64)
    monkeypatch.setattr(signature, "CHUNK", 64)
    small = signature.content(torch, weight.t().contiguous().t())
    assert int(rowhash.RowHasher(torch, "n").rows(rows)) == whole[0]
    assert int(transposed[0]) == int(small[0]) == int(whole[1][0])
    assert small[1] == pytest.approx(float(weight.double().square().sum()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@examples
@given(values=st.lists(st.floats(-1e4, 1e4, width=16), min_size=1, max_size=20), seed=st.integers(0, 2**31))
def test_perturbation_is_at_most_one_ulp(payload: Any, dtype: str, values: list[float], seed: int) -> None:
    """Each element stays or moves to a neighbour in its dtype; zeros stay; the result is finite."""
    kind = getattr(torch, dtype)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.tensor(values, dtype=kind))
    before = module.weight.detach().clone()
    payload("perturb").perturb(torch, module, seed)
    after = module.weight.detach()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[before.element_size()]
    distance = (after.view(bits).to(torch.int64) - before.view(bits).to(torch.int64)).abs()
    assert int(distance.max()) <= 1
    assert bool(torch.isfinite(after).all())
    assert bool((after[before == 0] == 0).all())
    if dtype == "float32":
        up = torch.nextafter(before, torch.full_like(before, math.inf))
        down = torch.nextafter(before, torch.full_like(before, -math.inf))
        assert bool(((after == before) | (after == up) | (after == down)).all())


def test_perturbation_moves_about_two_thirds(payload: Any) -> None:
    """The three directions are drawn equally often."""
    module = torch.nn.Linear(300, 300, bias=False)
    before = module.weight.detach().clone()
    payload("perturb").perturb(torch, module, 1)
    moved = float((module.weight != before).float().mean())
    assert moved == pytest.approx(2 / 3, abs=0.01)
