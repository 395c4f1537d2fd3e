# Every target sets up what it needs: a virtual environment in .venv with the pinned versions of constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export OMP_NUM_THREADS ?= 1

.PHONY: help setup demo browser test test-core test-all lint format docs bench figures clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## make .venv and install open_nvib into it, for development

# torch first and with the constraint: a resolver that is free to choose takes gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# All cores, where the tests of several processes take one each.
demo: $(READY) ## train a small NVAE on Wikipedia, measure it and show what it does: minutes on two cores
	env -u OMP_NUM_THREADS $(BIN)/nvib demo

# Reports and the page are looked at in a real browser. Where none can be installed, these tests are skipped and say so.
browser: ## Debian's Chromium, where there is none
	@command -v chromium > /dev/null || { apt-get update --quiet=2 && apt-get install --quiet=2 --yes chromium > /dev/null; } \
		|| echo "Chromium is not installed and cannot be from here: tests that need it are skipped."

lint: $(READY) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(READY) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint browser ## what every change must pass: style, types and all tests but the slow ones
	$(BIN)/pytest -n 2 -m 'not slow' --cov

test-core: $(READY) ## the tests of the core library alone, in less than a minute
	$(BIN)/pytest tests/core -m 'not slow'

test-all: lint browser ## every test
	$(BIN)/pytest -n 2 --cov

bench: $(READY) ## speed and memory against torch's own parts, as tables and as JSON in benchmarks/
	$(BIN)/python benchmarks/attention.py --output benchmarks/results.json
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/text.py --output benchmarks/text_results.json

docs: $(READY) ## the documentation as a site, in site/; a warning is an error
	$(BIN)/python -m tools.cli_reference docs/reference/cli.md
	$(BIN)/python -m zensical build --clean --strict

figures: $(READY) ## draw the figures of the docs again
	$(BIN)/python -m tools.figures_of_docs.gamma docs/figures/gamma_approximation.svg
	$(BIN)/python -m tools.figures_of_docs.attention docs/figures/denoising_attention.svg
	cd docs/figures && ../../$(BIN)/python ../../tools/blocks.py ../tutorials/layer.md

clean: ## remove the virtual environment and what the tools leave behind
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .cache dist site
