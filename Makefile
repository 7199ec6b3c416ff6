# What a newcomer types; `make help` lists the targets.
ENV := $(or $(VIRTUAL_ENV),$(CONDA_PREFIX),$(CURDIR)/.venv)
RUN := "$(ENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)/python"

.PHONY: help install train test check stress gpu tensorboard lint format clean
help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/' | expand -t 14

# An active environment is used, else .venv is made. leyden.installed is a copy of the pyproject.toml that was installed.
install:  ## install Leyden, if pyproject.toml has changed
	@test -x $(RUN) || python3 -m venv "$(ENV)"
	@cmp -s pyproject.toml "$(ENV)/leyden.installed" || { $(RUN) -m pip install -q -e '.[dev]' && cp pyproject.toml "$(ENV)/leyden.installed"; }

train: install  ## train a small CNN on the bundled digits
	@$(RUN) src/train.py

test: install  ## check that all works here, in under 3 minutes on 2 cores
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist worksteal -m 'not slow and not stress and not gpu'

check: test  ## run all other tests, the style checks and the type checks
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist worksteal -m 'slow and not stress and not gpu'
	@$(MAKE) lint

stress: install  ## run the longest tests: 140 runs killed at random moments, and a real SLURM where there is one
	@$(RUN) -m pytest -m stress
	@$(RUN) tests/stress_resume.py --kills 100
	@$(RUN) tests/stress_resume.py --kills 20 --ddp
	@$(RUN) tests/stress_resume.py --kills 20 --compile

gpu: install  ## run the tests that need a GPU
	@$(RUN) -m pytest -m gpu

tensorboard: install  ## show the curves of all runs on http://localhost:6006
	@$(RUN) -m tensorboard.main --logdir logs

lint: install  ## check style and types
	@$(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(RUN) -m mypy

format: install  ## format the code
	@$(RUN) -m ruff check --fix . && $(RUN) -m ruff format .

clean:  ## delete caches and builds, but no runs and no data
	@rm -rf build dist .pytest_cache .ruff_cache .mypy_cache src/*.egg-info
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
