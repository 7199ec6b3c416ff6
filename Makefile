# What a newcomer types; `make help` lists the targets.
ENV := $(or $(VIRTUAL_ENV),$(CONDA_PREFIX),$(CURDIR)/.venv)
RUN := "$(ENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)/python"

.PHONY: help install train test check stress gpu tensorboard lint format clean
help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/' | expand -t 14

# An active environment is used, else .venv is made. It keeps a copy of the file that it was installed from.
test: EXTRA = [test]
check stress gpu lint format: EXTRA = [dev]
FROM = $(if $(LOCKED),requirements.lock,pyproject.toml)
COPY = "$(ENV)/leyden$(if $(LOCKED),,$(EXTRA)).$(FROM)"
PIP = $(RUN) -m pip install $$(test -t 1 || echo -q)
LOCK = $(PIP) --require-hashes -r requirements.lock && $(PIP) --no-deps --no-build-isolation
install:  ## install Leyden, if pyproject.toml has changed; LOCKED=1: with the versions that CI runs
	@test -x $(RUN) || python3 -m venv "$(ENV)"
	@cmp -s $(FROM) $(COPY) || { \
	  echo "Installing Leyden$(EXTRA) into $(ENV); what is new of 6 GB (most of it PyTorch for GPUs) takes some minutes."; \
	  $(if $(LOCKED),$(LOCK),$(PIP)) -e '.$(EXTRA)' && cp $(FROM) $(COPY); }

train: install  ## train a small CNN on the bundled digits
	@$(RUN) src/train.py

TEST = OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist worksteal -m
test: install  ## check that all works here, in under 3 minutes on 2 cores
	@$(TEST) 'not slow and not stress and not gpu'

ALL = tests tests/test_layout.py tests/test_readme.py
check: install  ## run all tests, the rules of what is handed in here, the style checks and the type checks
	@$(TEST) 'not slow and not stress and not gpu' $(ALL)
	@$(TEST) 'slow and not stress and not gpu' $(ALL)
	@$(STYLE)

stress: install  ## run the longest tests: 140 runs killed at random moments, and a real SLURM where there is one
	@$(RUN) -m pytest -m stress
	@$(RUN) tests/stress_resume.py --kills 100
	@$(RUN) tests/stress_resume.py --kills 20 --ddp
	@$(RUN) tests/stress_resume.py --kills 20 --compile

gpu: install  ## run the tests that need a GPU
	@$(RUN) -m pytest -m gpu

tensorboard: install  ## show the curves of all runs on http://localhost:6006
	@$(RUN) -m tensorboard.main --logdir logs

STYLE = $(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(RUN) -m mypy
lint: install  ## check style and types
	@$(STYLE)

format: install  ## format the code
	@$(RUN) -m ruff check --fix . && $(RUN) -m ruff format .

clean:  ## delete caches and builds, but no runs and no data
	@rm -rf build dist .pytest_cache .ruff_cache .mypy_cache src/*.egg-info
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
