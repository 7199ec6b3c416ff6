# What a newcomer types. `make help` lists it.
ENV := $(or $(VIRTUAL_ENV),$(CONDA_PREFIX),$(CURDIR)/.venv)
RUN := "$(ENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)/python"

.PHONY: help install train test check stress gpu tensorboard lint format clean
help:  ## this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/' | expand -t 14

# An active environment is used as it is; otherwise .venv is made. The stamp holds the pyproject.toml that was installed.
install:  ## set up the environment, when pyproject.toml has changed
	@test -x $(RUN) || python3 -m venv "$(ENV)"
	@cmp -s pyproject.toml "$(ENV)/leyden.installed" || { $(RUN) -m pip install -q -e '.[dev]' && cp pyproject.toml "$(ENV)/leyden.installed"; }

train: install  ## train the default model on the bundled data
	@$(RUN) src/train.py

test: install  ## does it work here? under 3 minutes on 2 cores
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist worksteal -m 'not slow and not stress and not gpu'

check: test  ## all that a change must pass: the slow tests too, style and types
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist worksteal -m 'slow and not stress and not gpu'
	@$(MAKE) lint

stress: install  ## the tests that take minutes
	@$(RUN) -m pytest -m stress
	@$(RUN) tests/stress_resume.py --kills 100
	@$(RUN) tests/stress_resume.py --kills 20 --ddp
	@$(RUN) tests/stress_resume.py --kills 20 --compile

gpu: install  ## the tests that need a GPU, under 8 minutes
	@$(RUN) -m pytest -m gpu

tensorboard: install  ## curves of all runs, on http://localhost:6006
	@$(RUN) -m tensorboard.main --logdir logs

lint: install  ## style and types
	@$(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(RUN) -m mypy

format: install  ## put the code into shape
	@$(RUN) -m ruff check --fix . && $(RUN) -m ruff format .

clean:  ## delete caches and builds; neither runs nor data
	@rm -rf build dist .pytest_cache .ruff_cache .mypy_cache src/*.egg-info
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
