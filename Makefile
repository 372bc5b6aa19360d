# Everything runs in a virtual environment of its own; `make test` sets it up from nothing.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A throwaway cache: a cached kernel does not notice that a loss in another file was edited.
CACHE := $(VENV)/numba-cache
# Where `make reproduce` writes its report.
OUT ?= report
# What the site is built in: from nothing, since Sphinx keeps pages whose source has gone.
SITE := docs/_build docs/gallery docs/reference/api
# Where `make oldest` installs.
OLDEST := $(VENV)-oldest
# What `make arithmetic` and `make oldest` run; everything if empty.
TESTS ?=
# Packages are installed without bytecode: without writing it, every process would compile all sources it imports again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: test arithmetic oldest reproduce bench dist setup lint types layers docs docs-full pytest clean

# The checks use one core each, the tests both: the former side by side, then the latter.
test: setup
	$(MAKE) --jobs 2 docs types lint layers
	$(MAKE) pytest

# The tests under several arithmetic settings: what depends on rounding passes under some and fails under others.
arithmetic: $(STAMP)
	$(BIN)/python tools/arithmetic.py $(TESTS)

# The tests with the oldest versions that pyproject.toml allows, in an environment of their own.
oldest:
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --no-compile --constraint constraints-oldest.txt --editable '.[test]'
	rm -rf $(OLDEST)/numba-cache
	OPENBLAS_NUM_THREADS=1 NUMBA_CACHE_DIR=$(OLDEST)/numba-cache \
		$(OLDEST)/bin/python -m pytest -n 2 --dist worksteal $(TESTS)

reproduce: $(STAMP)
	$(BIN)/python -m paper --out $(OUT)

bench: $(STAMP)
	$(BIN)/python -m benchmarks --out bench-results

# An sdist and a wheel in dist/, checked, and the wheel tried in a clean environment.
dist: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[dist]'
	$(BIN)/python tools/distribute.py

setup: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	# Bytecode of what is used is written when it is first imported.
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]'
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

# The site in docs/_build/html. Examples are shown and not run; `docs-full` runs them too, for their pictures.
docs: $(STAMP)
	rm -rf $(SITE)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --define plot_gallery=0 docs docs/_build/html
	$(BIN)/python tools/check_site.py docs/_build/html

docs-full: $(STAMP)
	rm -rf $(SITE)
	$(BIN)/sphinx-build --fail-on-warning --keep-going docs docs/_build/html
	$(BIN)/python tools/check_site.py docs/_build/html

# One thread of the BLAS for each of two workers: with more they would wait for one another (`make arithmetic` has two).
pytest: $(STAMP)
	rm -rf $(CACHE)
	OPENBLAS_NUM_THREADS=1 NUMBA_CACHE_DIR=$(CACHE) $(BIN)/python -m pytest -n 2 --dist worksteal

clean:
	rm -rf $(SITE)
	rm -rf $(VENV) $(OLDEST) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
