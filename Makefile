# Every target makes its own environment in .venv; Python >= 3.11 is all that has to be there before.
PYTHON ?= python3
WORKERS ?= 2
THREADS ?= 1
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(shell sed -n 's/^ *"\(torch[<>=][^"]*\)".*/\1/p' pyproject.toml)
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
BUILD := build

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint docs gallery bench

help:  ## say what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed  ## learn which invariance images of digits support; writes build/demo with a report
	$(BIN)/orbitwise demo --out $(BUILD)/demo --force

test: $(VENV)/.installed-test  ## run the tests; WORKERS=0 for one process, THREADS of each, PYTEST_ARGS for more
	OMP_NUM_THREADS=$(THREADS) OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(VENV)/.installed-docs  ## build the documentation; writes build/docs
	OMP_NUM_THREADS=$(THREADS) $(BIN)/sphinx-build -W --keep-going -q -b html -d $(BUILD)/doctrees docs $(BUILD)/docs

gallery: $(VENV)/.installed-docs  ## the same, with every script of examples/ run; ORBITWISE_DATA for all of them
	OMP_NUM_THREADS=$(THREADS) $(BIN)/sphinx-build -W --keep-going -q -b html -D plot_gallery=True \
	  -d $(BUILD)/doctrees docs $(BUILD)/docs

bench: $(VENV)/.installed-bench  ## run every file of benchmarks/
	@for file in benchmarks/*.py; do \
	  [ -e "$$file" ] || { echo "there is no benchmark yet"; exit 0; }; \
	  echo "== $$file"; $(BIN)/python "$$file" || exit; \
	done

# One stamp for every set of extras, written last. An installation cut short leaves `.unfinished` behind, and the
# next one starts from an empty environment. Torch comes first, so that what follows keeps the version it finds.
define install
@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
  "Orbitwise needs Python 3.11 or later and $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.12")'
@if [ -e $(VENV)/.unfinished ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
  $(PYTHON) -m venv --clear $(VENV); fi
@echo "installing orbitwise$(1) in $(VENV)"
@trap 'exit 130' INT TERM HUP; touch $(VENV)/.unfinished; \
$(PIP) "$(TORCH)" && $(PIP) -e ".$(1)"; status=$$?; \
[ $$status -gt 128 ] || rm -f $(VENV)/.unfinished; exit $$status
@touch $@
endef

$(VENV)/.installed: pyproject.toml
	$(call install)

$(VENV)/.installed-%: pyproject.toml
	$(call install,[$*])
