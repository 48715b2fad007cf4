"""Every wrong input is one TaskFileError with file, key, value or rule, and a hint where one can be given."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import TaskFileError
from engine.task.load import load_task
from tests.task.project import CONFIG, TASK, TRAIN, make_project, with_parameter


def failure(folder: Path, text: str, **files: str) -> TaskFileError:
    with pytest.raises(TaskFileError) as caught:
        load_task(make_project(folder, text, **files), env={})
    assert caught.value.file == str(folder / "infrarsi.toml")
    return caught.value


EDITS = [
    # what is replaced, by what, key, words of the message or rule, words of the hint
    ("gpus_per_node", "gpu_per_node", "allocation.gpu_per_node", "unknown key", "gpus_per_node"),
    ("[allocation]", "[alocation]", "alocation", "unknown section", "allocation"),
    ("command = [", "comand = [", "task.comand", "unknown key", "command"),
    ('name = "tiny"\n', "", "task.name", "missing", ""),
    ("nodes = 1", "nodes = true", "allocation.nodes", "boolean", ""),
    ("nodes = 1", 'nodes = "1"', "allocation.nodes", "integer", ""),
    ("nodes = 1", "nodes = 0", "allocation.nodes", "greater than or equal to 1", ""),
    ("nodes = 1", "nodes = 1.5", "allocation.nodes", "integer", ""),
    ("nodes = 1", "memory_limit_gib = nan", "allocation.memory_limit_gib", "", ""),
    ('device = "cpu"', 'device = "cdua"', "allocation.device", "'cuda'", "cuda"),
    ('"--lr=0.1"', "1", "task.command[3]", "text", ""),
    ('["train.py"', '[""', "task.command[0]", "empty", ""),
    ('["train.py"', '["trian.py"', "task.command[0]", "no such script", "train.py"),
    ("{output_dir}", "{out_dir}", "task.command[5]", "unknown placeholder", "output_dir"),
    ('name = "tiny"', 'name = "tiny"\npython = "/no/python"', "task.python", "no such interpreter", ""),
    ('name = "tiny"', 'name = "tiny"\npython = "no-such-python"', "task.python", "PATH", ""),
    ('name = "tiny"', 'name = "tiny"\ndata = ["corpus"]', "task.data[0]", "no such file", ""),
    ('name = "tiny"', 'name = "tiny"\ndata = ["../corpus"]', "task.data[0]", "absolute path", ""),
    ('name = "tiny"', 'name = "tiny"\ndata = ["."]', "task.data[0]", "contains the project", ""),
    ('name = "tiny"', 'name = "tiny"\ndata = ["config.toml"]', "parameters[0].bindings[0]", "data path", ""),
    ('name = "tiny"', 'name = "tiny"\nproject = "sub"', "task.project", "no such folder", ""),
    ("world_size) == 0", "world_sizes) == 0", "constraints.require[0]", "unknown name", "world_size"),
    ("world_size) == 0", "world_size) == 1", "constraints.require[0]", "8 % (2 * 2) == 1", ""),
    ("world_size) == 0", "world_size) = 0", "constraints.require[0]", "column", ""),
    ("world_size) == 0", "0) == 0", "constraints.require[0]", "division by zero", ""),
    ("% (micro_batch_size", "% (compute_dtype", "constraints.require[0]", "needs numbers", ""),
    ("world_size) == 0", "world_size)", "constraints.require[0]", "condition", "compare"),
    ('["model.py"]', '["train.py"]', "scope.editable[0]", "editable and locked", ""),
    ('["model.py"]', '["*.py"]', "scope.editable[0]", "train.py is editable and locked", ""),
    ('["model.py"]', '["../x"]', "scope.editable[0]", "leaves the project", ""),
    ('["train.py"]\n\n[[', '["/abs"]\n\n[[', "scope.locked[0]", "absolute", ""),
    ("[1, 2, 4, 8]", "[1, 4, 8]", "parameters[0].initial[1]", "not one of the values", ""),
    ("[1, 2]", "[]", "parameters[0].initial", "at least one", ""),
    ("[1, 2]", "[1, true]", "parameters[0].initial[1]", "not one of the values", ""),
    ("[1, 2, 4, 8]", "[]", "parameters[0].values", "at least one", ""),
    ("[1, 2, 4, 8]", "[1, 2, 2.0]", "parameters[0].values[2]", "equal", ""),
    ("[1, 2, 4, 8]", "[1, true]", "parameters[0].values[0]", "booleans or numbers", ""),
    ("[1, 2, 4, 8]", "[1979-05-27]", "parameters[0].values[0]", "", ""),
    ("[1, 2, 4, 8]", "[[1]]", "parameters[0].values[0]", "", ""),
    ("[1, 2, 4, 8]", "{ min = 1, max = 8 }", "parameters[0].values.step", "missing", ""),
    ("[1, 2, 4, 8]", "{ min = 1, max = 8, step = 0 }", "parameters[0].values.step", "step > 0", ""),
    ("[1, 2, 4, 8]", "{ min = 1, max = 8, step = 2 }", "parameters[0].values.max", "whole number", "7 or 9"),
    ("[1, 2, 4, 8]", "{ min = 9, max = 8, step = 1 }", "parameters[0].values.max", "max >= min", ""),
    ("[1, 2, 4, 8]", "{ min = 1, max = 1e9, step = 1 }", "parameters[0].values", "at most", ""),
    ("[1, 2, 4, 8]", "{ a = { unset = false } }", "parameters[0].values.a", "unset = true", ""),
    ("[1, 2, 4, 8]", "{ a = 1, b = 1 }", "parameters[0].values.b", "same literal", ""),
    ("values = [1, 2, 4, 8]\ninitial = [1, 2]", "", "parameters[0].values", "missing", ""),
    ("initial = [1, 2]", "default = 4", "parameters[0].bindings[0]", "default says 4", ""),
    ("initial = [1, 2]", 'default = "many"', "parameters[0].default", "not one of the values", ""),
    (
        "[1, 2, 4, 8]\ninitial = [1, 2]",
        "[1, 4, 8]",
        "parameters[0].bindings[0]",
        "none of the values",
        "add 2",
    ),
    ("derived =", "values = [1]\nderived =", "parameters[1].values", "exclude each other", "remove"),
    ("derived =", "initial = [1]\nderived =", "parameters[1].initial", "exclude each other", "remove"),
    (
        'key = "train.accumulation"',
        'key = "train.accum"',
        "parameters[1].bindings[0].key",
        "no such",
        "accumulation",
    ),
    ("global_batch // (", "16 // (", "parameters[1].bindings[0]", "the expression gives 4", ""),
    (
        "global_batch // (micro_batch_size",
        "global_batch // (gradient_accumulation",
        "parameters[1]",
        "circle",
        "",
    ),
    ("global_batch // (micro_batch_size", "global_batch // (5", "parameters[1].bindings[0]", "holds 2", ""),
    ('"micro_batch_size"\nvalues', '"compute_dtype"\nvalues', "parameters[2].mechanism", "already", ""),
    ('"micro_batch_size"\nvalues', '"world_size"\nvalues', "parameters[0].mechanism", "fixed", ""),
    ('"micro_batch_size"\nvalues', '"micro batch"\nvalues', "parameters[0].mechanism", "not a name", ""),
    (
        "compute_dtype == 'fp32'",
        "compute_dtyp == 'fp32'",
        "parameters[3].when",
        "unknown name",
        "compute_dtype",
    ),
    ("compute_dtype == 'fp32'", "compute_dtype", "parameters[3].when", "not a condition", ""),
    ("compute_dtype == 'fp32'", "compute_dtype > 1", "parameters[3].when", "needs numbers", ""),
    ("compute_dtype == 'fp32'", "tf32_matmul == true", "parameters[3].when", "unknown name", "not"),
    ("compute_dtype == 'fp32'", "__import__('os')", "parameters[3].when", "not expected", ""),
    ("config.toml", "confg.toml", "parameters[0].bindings[0].file", "does not exist", "config.toml"),
    ("config.toml", "../config.toml", "parameters[0].bindings[0].file", "leaves the project", ""),
    ("config.toml", "/etc/x.toml", "parameters[0].bindings[0].file", "leaves the project", ""),
    ("config.toml", "model.py", "parameters[0].bindings[0].file", "not understood", ""),
    ("train.micro_batch", "train.microbatch", "parameters[0].bindings[0].key", "no such key", "micro_batch"),
    ("train.micro_batch", "train..x", "parameters[0].bindings[0].key", "dotted key", ""),
    (
        'flag = "--precision"',
        'flag = "precision"',
        "parameters[2].bindings[0].flag",
        "not a flag",
        "--precision",
    ),
    ('flag = "--precision"', 'flag = "--dtype"', "parameters[2].bindings[0]", "is not set", "default"),
    ('flag = "--precision"', 'flga = "--dtype"', "parameters[2].bindings[0]", "neither", "flag"),
    (
        'flag = "--precision"',
        'flag = "--x", stile = "bare"',
        "parameters[2].bindings[0].stile",
        "unknown",
        "style",
    ),
    (
        'flag = "--precision"',
        'flag = "--x", style = "bear"',
        "parameters[2].bindings[0].style",
        "'bare'",
        "bare",
    ),
    (
        'flag = "--precision"',
        'flag = "--x", style = "bare"',
        "parameters[2].bindings[0].style",
        "cannot hold",
        "",
    ),
    ('flag = "--precision"', 'flag = "--x", env = "X"', "parameters[2].bindings[0]", "exclude", ""),
    ('[{ flag = "--precision" }]', "[]", "parameters[2].bindings", "at least 1", ""),
    ('[{ flag = "--precision" }]', '["--precision"]', "parameters[2].bindings[0]", "no binding", ""),
    ('name = "TF32"', 'name = "TF_32"', "parameters[3].bindings[0].name", "no such constant", "TF32"),
    ('name = "TF32"', 'name = "T F"', "parameters[3].bindings[0].name", "not a name", ""),
    (
        'python = "train.py", name',
        'python = "config.toml", name',
        "parameters[3].bindings[0].python",
        ".py",
        "",
    ),
    ('env = "ALLOCATOR"', 'env = "MY VAR"', "parameters[4].bindings[0].env", "not a variable", ""),
    ('env = "ALLOCATOR"', 'env = "WORLD_SIZE"', "parameters[4].bindings[0].env", "launcher", ""),
    ('key = "attention"', 'key = "fsdp.stage"', "parameters[5].bindings[0]", "holds 2", ""),
    (
        '[{ file = "model.yaml", key = "attention" }]',
        '[{ file = "config.toml", key = "train.micro_batch" }]',
        "parameters[5].bindings[0]",
        "already written by parameters[0].bindings[0]",
        "",
    ),
]


@pytest.mark.parametrize(("old", "new", "key", "words", "hint"), EDITS)
def test_wrong_task_files(tmp_path: Path, old: str, new: str, key: str, words: str, hint: str) -> None:
    """One mistake gives one error, at its key, in words that say what is right."""
    assert old in TASK
    error = failure(tmp_path, TASK.replace(old, new, 1))
    assert error.key == key
    assert words in f"{error.message} {error.rule}"
    assert hint in (error.hint or "")
    assert error.rule


def test_syntax_errors_name_the_line(tmp_path: Path) -> None:
    """A TOML mistake is shown with its line."""
    error = failure(tmp_path, '[task]\nname = "x\ncommand = []\n')
    assert "line 2" in error.message
    assert error.value == 'name = "x'


def test_encoding_errors_name_the_line(tmp_path: Path) -> None:
    """A file in another encoding is refused where the first wrong byte stands."""
    (tmp_path / "infrarsi.toml").write_bytes('[task]\nname = "größe"\n'.encode("latin-1"))
    with pytest.raises(TaskFileError, match="line 2") as caught:
        load_task(tmp_path)
    assert "UTF-8" in caught.value.message


def test_missing_file_and_folder(tmp_path: Path) -> None:
    """A wrong path is named, with the nearest that exists."""
    with pytest.raises(TaskFileError, match=r"has no infrarsi\.toml"):
        load_task(tmp_path)
    make_project(tmp_path)
    with pytest.raises(TaskFileError) as caught:
        load_task(tmp_path / "infrarsy.toml")
    assert "infrarsi.toml" in (caught.value.hint or "")


BAD_FILES = [
    ("config_toml", CONFIG.replace("=", ":"), "parameters[0].bindings[0].file", "not valid TOML"),
    ("model_yaml", "a: [1", "parameters[5].bindings[0].file", "not valid YAML"),
    ("model_yaml", "a: 1\n---\nb: 2\n", "parameters[5].bindings[0].file", "one YAML document"),
    ("train_py", "TF32 = = 1\n", "parameters[3].bindings[0].python", "not valid Python"),
    ("train_py", TRAIN + "TF32 = True\n", "parameters[3].bindings[0].name", "more than once"),
    ("train_py", "TF32 = A = True\n", "parameters[3].bindings[0].name", "together"),
    ("train_py", "import os\nTF32 = os.getenv('x')\n", "parameters[3].bindings[0].name", "not a literal"),
    ("train_py", "TF32 = 0\n", "parameters[3].bindings[0]", "holds 0"),
]


@pytest.mark.parametrize(("name", "text", "key", "words"), BAD_FILES)
def test_bound_files_that_cannot_be_read(tmp_path: Path, name: str, text: str, key: str, words: str) -> None:
    """A bound file that does not hold what it must is reported at the binding that names it."""
    error = failure(tmp_path, TASK, **{name: text})
    assert error.key == key
    assert words in f"{error.message} {error.rule}"


def test_bindings_that_disagree(tmp_path: Path) -> None:
    """Two bindings of one parameter must hold the same value."""
    binding = '{ file = "config.toml", key = "data.workers" }, { flag = "--workers" }'
    text = with_parameter(f'mechanism = "w"\nvalues = [2, 4]\nbindings = [{binding}]')
    error = failure(tmp_path, text.replace('"--lr=0.1"', '"--workers", "2"'))
    assert error.key == "parameters[6].bindings[1]"
    assert "flag --workers holds '2'" in error.message
    assert "config.toml: data.workers says 4" in error.message


def test_global_batch_that_nothing_tells(tmp_path: Path) -> None:
    """An expression over an unknown global batch says how to provide it."""
    text = TASK.replace("gradient_accumulation", "accum")
    error = failure(tmp_path, text, config_toml=CONFIG.replace("global_batch = 8\n", ""))
    assert error.key == "parameters[1].derived"
    assert 'mechanism = "global_batch"' in (error.hint or "")


def test_derived_division_with_a_remainder(tmp_path: Path) -> None:
    """A baseline whose global batch does not divide is an error, not a smaller batch."""
    text = TASK.replace("[1, 2, 4, 8]\ninitial = [1, 2]", "[1, 3]").replace("== 0", ">= 0")
    config = CONFIG.replace("micro_batch = 2", "micro_batch = 3").replace(
        "accumulation = 2", "accumulation = 1"
    )
    error = failure(tmp_path, text, config_toml=config)
    assert error.key == "parameters[1].derived"
    assert "8 // 6 leaves a remainder" in error.message


def test_link_out_of_the_project(tmp_path: Path) -> None:
    """A bound file may not be a link to somewhere else."""
    file = make_project(tmp_path / "project")
    (tmp_path / "elsewhere.toml").write_text(CONFIG)
    (tmp_path / "project" / "config.toml").unlink()
    (tmp_path / "project" / "config.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(TaskFileError, match="link leads out") as caught:
        load_task(file, env={})
    assert caught.value.key == "parameters[0].bindings[0].file"


edits = st.lists(
    st.tuples(
        st.integers(0, len(TASK) - 1),
        st.integers(0, 12),
        st.sampled_from([*"[]{}\",='#\n.-9té\0", "", "true"]),
    ),
    min_size=1,
    max_size=3,
)


@given(edits)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_ends_in_a_traceback(tmp_path: Path, changes: list[tuple[int, int, str]]) -> None:
    """However a task file is damaged, it loads or gives the typed error with its file."""
    text = TASK
    for start, length, new in changes:
        text = text[:start] + new + text[start + length :]
    file = make_project(tmp_path, text)
    try:
        task = load_task(file, env={})
    except TaskFileError as error:
        where = error.file
    else:
        where = str(task.file)
    assert where == str(file)
