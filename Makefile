# The same few commands for people and for CI. Each sets itself up in .venv; nothing is installed outside this folder.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SECONDS_FUZZ ?= 60
ARGS ?=
FILES ?=

.PHONY: help demo test check format schemas bench bench-quality fuzz clean

help:  ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/ready: pyproject.toml clients/python/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "recalld needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --disable-pip-version-check -e clients/python -e . --group dev
	touch $@

demo: $(VENV)/ready  ## the main job: real gateway events in, memories kept, context back before the deadline
	$(BIN)/python tests/demo/demo.py $(ARGS)

test: $(VENV)/ready  ## all tests
	$(BIN)/pytest $(ARGS)

check: $(VENV)/ready  ## style, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/ready  ## write the code in its one style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

schemas: $(VENV)/ready  ## export protocol/schemas from the messages
	$(BIN)/python -m recalld.wire.schema protocol/schemas

bench: $(VENV)/ready  ## speed, memory and start time, as JSON lines, each beside its floor (about 15 minutes)
	$(BIN)/python tests/bench/bench.py $(ARGS)

bench-quality: $(VENV)/ready  ## what reaches the prompt, on conversation files (FILES="a.json b.json")
	$(BIN)/python tests/bench/quality.py $(FILES) $(ARGS)

fuzz: $(VENV)/ready  ## feed damaged messages to the decoders for SECONDS_FUZZ seconds
	$(BIN)/python tests/fuzz/fuzz_wire.py --seconds $(SECONDS_FUZZ) $(ARGS)

clean:  ## remove what the commands above made
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis
