# `make run` and `make test` are all that a fresh machine needs: each sets up what it uses.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
STUDY := runs/dense_gpt
DEPLOYED := runs/dense_gpt-deployed

export OMP_WAIT_POLICY := PASSIVE

.PHONY: run test setup quick check lint types imports measure drills slurm-demo wheel clean

run: setup  ## Make the dense sample faster, all five stages, on this machine's CPU
	rm -rf $(STUDY) $(DEPLOYED)
	$(BIN)/infrarsi run sample_tasks/dense_gpt --out $(STUDY) --deploy $(DEPLOYED)

test: setup check  ## Every gate and every test
	$(BIN)/python -m pytest -q -n 2 -m "not measure and not drill and not (slurm and slow)" --cov --cov-report=term:skip-covered --cov-fail-under=85

setup: $(STAMP)  ## A virtual environment with the tested versions

$(STAMP): pyproject.toml constraints.txt .ci/setup_environment.sh
	sh .ci/setup_environment.sh $(PYTHON) $(VENV)
	touch $(STAMP)

quick: setup  ## The tests that take no more than a few seconds each
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not measure and not drill"

check: lint types imports  ## Format, lint, types, import contracts

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

measure: setup  ## The long runs: both samples at full length, baseline against itself
	$(BIN)/python -m pytest -q -m measure

drills: setup  ## Break a real Slurm in every way that is known, for minutes; as root, with Slurm installed
	$(BIN)/python -m pytest -q -m "drill or (slurm and slow)"

slurm-demo: setup  ## Two nodes with eight GPUs each on this machine, in the foreground; as root, with Slurm installed
	@$(BIN)/python -m tests.slurm_cluster.demo

wheel: setup
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*
