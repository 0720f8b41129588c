# make quickstart | test | test-long | test-browser | test-ci | test-gpu | lint | install | docs-site | pictures. Each makes the environment first, once.

PYTHON ?= python3
VENV ?= .venv
OUT ?= runs/quickstart
BIN := $(VENV)/bin

# Asserts that pytest has rewritten are kept for the next run, whose collection takes half of the time then.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install quickstart test test-long test-browser test-ci test-gpu test-all lint docs-site pictures clean

install: $(VENV)/installed

# torch comes first and by its exact version: a looser request may choose a build with gigabytes of CUDA libraries where
# a CPU build of this version is at hand.
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Stentor needs Python 3.11 or newer; say which: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[av,vad,track,studio,test]'
	@touch $@

quickstart: install
	$(BIN)/stentor quickstart --out $(OUT)

# One thread for each process: tests start many, and their tensors are too small to share out.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
TWO := -n 2 --dist worksteal

test: install
	$(PYTEST) $(TWO) -m "not long and not slow and not browser and not gpu"

# What takes several seconds each: trainings, clusters, exports.
test-long: install
	$(PYTEST) $(TWO) -m "long and not slow and not browser and not gpu"

# The studio in a real browser; skipped, with a message, where there is no Chromium.
BROWSER = $(sort $(dir $(shell grep -rlE "mark\.browser" tests --include=*.py)))
test-browser: install
	$(PYTEST) -m browser $(BROWSER)

# The three above in one run, which starts once and waits once for the last test.
test-ci: install
	$(PYTEST) $(TWO) -m "not slow and not gpu"

# On a machine with a CUDA GPU, under ten minutes; without one each test is skipped with a sentence.
test-gpu: install
	$(BIN)/python -m pytest -m gpu tests/gpu

test-all: install
	$(PYTEST)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, in build/docs-site. A broken link or anchor, or a page missing from mkdocs.yml, is an error.
docs-site: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

$(VENV)/docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

# Pictures of README.md and docs/, from a finished quickstart and from the studio. Needs Chromium.
pictures: install
	$(BIN)/python docs_site/pictures.py $(OUT)

clean:
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
