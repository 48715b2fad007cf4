from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import IntegrityError, UsageError
from engine.mechanisms.build import build, mappings_frame, mechanisms_frame
from engine.mechanisms.columns import MAPPINGS_FILE, MECHANISMS_FILE
from engine.mechanisms.location import store_folder
from engine.mechanisms.mappings import load_mappings
from engine.mechanisms.record import canonical_text
from engine.mechanisms.table import find_mechanism, load_mechanisms, nearest_ids

SOURCE = store_folder() / "source"


def test_the_committed_tables_are_what_the_sources_build():
    """The Parquet files in the repository hold exactly what their sources say."""
    assert pl.read_parquet(store_folder() / MECHANISMS_FILE).equals(mechanisms_frame(SOURCE))
    assert pl.read_parquet(store_folder() / MAPPINGS_FILE).equals(mappings_frame(SOURCE))


def test_two_builds_give_the_same_bytes_and_leave_nothing_else(tmp_path: Path):
    """A build is deterministic and leaves no temporary file."""
    folders = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "source").symlink_to(SOURCE)
        build(folder)
        folders.append(folder)
    for file in (MECHANISMS_FILE, MAPPINGS_FILE):
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes()
    assert sorted(p.name for p in folders[0].iterdir()) == [MAPPINGS_FILE, MECHANISMS_FILE, "source"]


def test_the_table_is_complete_and_consistent():
    """71 mechanisms; defaults are the reference of both priors; numbers are the row order."""
    mechanisms = load_mechanisms()
    assert len(mechanisms) == 71
    assert [m.number for m in mechanisms.values()] == list(range(1, 72))
    for mechanism in mechanisms.values():
        assert mechanism.log_speedup(mechanism.default) == (0.0, 0.0)
        assert mechanism.memory_ratio(mechanism.default) == (1.0, 0.0)
        assert len(set(mechanism.values)) == len(mechanism.values) >= 2
        assert mechanism.relieves or mechanism.costs
        assert set(mechanism.value_risk) <= {canonical_text(value) for value in mechanism.values}
        kinds = {"bool": bool, "int": int, "float": float, "choice": str}
        assert {type(value) for value in mechanism.values} == {kinds[mechanism.value_type]}


def test_memory_savers_are_said_to_relieve_memory():
    """A mechanism whose prior saves memory is filed under the bottleneck memory."""
    for mechanism in load_mechanisms().values():
        savers = [m for m, _ in mechanism.prior_memory_ratio.values() if m < 0.9]
        if savers and mechanism.id not in ("padding_strategy",):
            assert "memory" in mechanism.relieves, mechanism.id


def test_records_cannot_be_changed():
    """Neither a record nor the mappings inside it can be changed by a caller."""
    mechanism = load_mechanisms()["compile_scope"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.name = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        mechanism.prior_log_speedup["off"] = (1.0, 0.0)  # type: ignore[index]
    with pytest.raises(TypeError):
        load_mechanisms()["x"] = mechanism  # type: ignore[index]


def test_values_are_found_as_typed():
    """0 and 0.0 are one value of a float mechanism; text is no number; unknown values have no prior."""
    mechanisms = load_mechanisms()
    assert mechanisms["recompute_layer_fraction"].log_speedup(0) == (0.2029, 0.08)
    assert mechanisms["micro_batch_size"].log_speedup(4.0) == (0.18, 0.17)
    assert mechanisms["fused_norm"].log_speedup(True) == (0.0244, 0.0244)
    assert mechanisms["attention_backend"].log_speedup("no such kernel") is None
    assert mechanisms["micro_batch_size"].log_speedup("4") == (0.18, 0.17)
    assert mechanisms["micro_batch_size"].log_speedup(64) is None
    assert mechanisms["micro_batch_size"].log_speedup(math.inf) is None


def test_risk_of_a_value_overrides_the_mechanism():
    """One value can be locked while its mechanism is not."""
    compression = load_mechanisms()["comm_compression"]
    assert (compression.risk("bf16"), compression.risk("lowrank")) == ("numerics", "locked")


@given(st.sampled_from(["micro_batch_size", "dataloader_workers", "comm_bucket_size"]), st.floats(1, 1000))
def test_interpolation_stays_between_its_neighbours(name: str, value: float):
    """Between two rows the mean lies between theirs and the sd is the wider of the two."""
    mechanism = load_mechanisms()[name]
    rows = sorted((float(text), prior) for text, prior in mechanism.prior_log_speedup.items())
    found = mechanism.log_speedup(value)
    if value > rows[-1][0] or value < rows[0][0]:
        assert found is None
        return
    low = max(row for row in rows if row[0] <= value)
    high = min(row for row in rows if row[0] >= value)
    assert found is not None
    assert min(low[1][0], high[1][0]) - 1e-12 <= found[0] <= max(low[1][0], high[1][0]) + 1e-12
    assert found[1] == max(low[1][1], high[1][1])


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("micro-batch-size", "micro_batch_size"), ("Compile_Scop", "compile_scope"), ("zero stage", None)],
)
def test_a_wrong_id_is_answered_with_the_nearest(wrong: str, right: str | None):
    """The error of an unknown id names the id that was probably meant."""
    mechanisms = load_mechanisms()
    if right is not None:
        assert nearest_ids(mechanisms, wrong)[0] == right
    with pytest.raises(UsageError) as caught:
        find_mechanism(mechanisms, wrong)
    assert (right or "infrarsi mechanisms list") in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"PAR1 not a parquet file PAR1"])
@pytest.mark.parametrize("load", [load_mechanisms, lambda path: load_mappings(path=path)])
def test_a_missing_or_corrupt_table_is_one_integrity_error(tmp_path: Path, content: bytes | None, load):
    """Whatever is wrong with a table, the error names the file and the next step."""
    path = tmp_path / "table.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(IntegrityError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "engine.mechanisms.build" in str(caught.value)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("default", "gone", "default"),
        ("value_type", "complex", "value_type"),
        ("semantic_risk", "some", "semantic_risk"),
        ("relieves", ["speed"], "relieves"),
        ("number", "1", "columns"),
    ],
)
def test_a_row_that_breaks_a_rule_is_named(tmp_path: Path, column: str, value: object, says: str):
    """A readable table with impossible content is refused with the row and the rule."""
    frame = mechanisms_frame(SOURCE).head(1)
    path = tmp_path / "mechanisms.parquet"
    literal = pl.lit(value) if not isinstance(value, list) else pl.lit(pl.Series([value])).first()
    frame.with_columns(literal.alias(column)).write_parquet(path)
    with pytest.raises(IntegrityError, match=says):
        load_mechanisms(path)


def test_mappings_speak_of_known_mechanisms_and_values():
    """Every framework row is about a mechanism of the table and names that mechanism's values."""
    mechanisms = load_mechanisms()
    rows = load_mappings()
    assert len(rows) > 1300
    for row in rows:
        mechanism = mechanisms[row.mechanism]
        known = {canonical_text(value) for value in mechanism.values}
        if mechanism.value_type in ("choice", "bool"):
            assert set(row.template) <= known | {"*"}, row


def test_mappings_of_one_framework():
    """The filter keeps one framework's rows in their order, and engines are read from the notes."""
    rows = load_mappings("ms_swift")
    assert {row.framework for row in rows} == {"ms_swift"}
    assert {row.engine for row in rows} >= {"swift sft", "megatron sft"}
    assert load_mappings("no such framework") == ()


def test_reading_records_needs_no_polars_until_a_table_is_read():
    """Importing the table's reader alone does not import polars: the command line starts fast."""
    code = "import sys, engine.mechanisms.table, engine.mechanisms.mappings;sys.exit('polars' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=SOURCE.parents[1], check=False).returncode == 0
