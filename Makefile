# What people and continuous integration run; `make` lists it. Nothing here needs root.
# Settings: PYTHON=/path/to/python3.12   interpreter for new virtual environments (3.11 or newer)
#           ARGS="-k queue -x"           handed on to pytest, `headrace demo` or the benchmarks
#           CORPUS=folder SECONDS=600    for `make fuzz`: images of others, and how long
#           VERSION=0.2.0                for `make changelog`
#           BUILDER=podman               what makes the container image; else docker, podman or buildah, whichever is there

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-rest test-all test-slow fuzz lint types imports bench docs format changelog lock audit sbom image clean venv
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The first interpreter that is new enough; empty if none is. Looked for only where an environment has to be made.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$name"; break; }; done)

BIN := .venv/bin
DEV := .venv/.installed-dev
FULL := .venv/.installed-full
BENCH := .venv/.installed-bench
DOCS := .venv/.installed-docs
DEMO := .venv-demo/.installed
SUPPLY := .venv-supply/.installed
IMAGE ?= headrace
SOURCES := $(shell find src -type f -not -name '*.pyc')

# $(call environment,DIR): makes the virtual environment DIR unless it is there and works.
define environment
@if ! $(1)/bin/python -c '' 2>/dev/null; then \
	python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
		echo "No Python 3.11 or newer was found (looked for python3, python3.13, python3.12, python3.11)." >&2; \
		echo "On Debian or Ubuntu install the packages python3 and python3-venv, or name one: make PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi; \
	if ! "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		echo "$$python is not Python 3.11 or newer; name another: make PYTHON=/path/to/python" >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
		name="$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"; \
		echo "$$python cannot make virtual environments." >&2; \
		echo "On Debian or Ubuntu install the package python3-venv (for another Python than the system's: $$name)." >&2; \
		exit 1; \
	fi; \
	echo "Making the virtual environment $(1) with $$("$$python" --version) ($$python)"; \
	"$$python" -m venv --clear $(1); \
fi
endef

help: ## list these targets
	@echo "Targets of headrace's Makefile:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO) ## show headrace at work on this machine; needs only Python 3.11
	.venv-demo/bin/headrace demo $(ARGS)

# $(call pytest,WHICH,OPTIONS): no run stands still. A test that hangs where no exception reaches it ends its process, with the
# stacks of all threads; a process that ends so, or crashes, ends the run with the test's name; and the run has a limit of its own.
# Status 5: nothing was chosen, as happens with ARGS="-k ...".
pytest = { timeout --foreground --signal INT --kill-after 60 3000 $(BIN)/python -m pytest -m "$(1) and not slow and not gpu and not network" \
	-o faulthandler_timeout=330 -o faulthandler_exit_on_timeout=true --durations 25 $(2) $(ARGS) || [ $$? -eq 5 ]; }
AT_ONCE := -n auto --dist worksteal --max-worker-restart 0

test: $(DEV) ## run the quick tests: six minutes on two quiet cores
	@$(call pytest,not full,$(AT_ONCE))

test-rest: $(FULL) ## run the tests that `make test` leaves out; those marked measures last, one at a time
	@failed=0; \
	$(call pytest,full and not measures,$(AT_ONCE)) || failed=1; \
	$(call pytest,full and measures) || failed=1; \
	exit $$failed

test-all: ## run `make test` and `make test-rest`: all that a change must pass
	@failed=0; for part in test test-rest; do $(MAKE) --no-print-directory $$part || failed=1; done; exit $$failed

test-slow: $(DEV) ## run the tests that take minutes
	$(BIN)/python -m pytest -m "slow and not gpu and not network" $(ARGS) || [ $$? -eq 5 ]

fuzz: $(DEV) ## run the decoders over the files of a folder and damaged copies: CORPUS=folder SECONDS=600
	$(BIN)/python tools/fuzz_decoders.py $(CORPUS) --seconds $(or $(SECONDS),300) $(ARGS)

fuzz-http: $(DEV) ## send damaged HTTP requests to the front, beside aiohttp's parser and over sockets: COUNT=1000000
	$(BIN)/python -m pip install --quiet 'aiohttp>=3.10'
	$(BIN)/python tools/fuzz_http.py --count $(or $(COUNT),100000) --sockets $(or $(SOCKETS),10000)

lint: $(DEV) ## check style and format (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV) ## check types (mypy, strict)
	$(BIN)/mypy

imports: $(DEV) ## check that no import points downstream
	$(BIN)/python -m pytest -q tests/unit/test_imports.py::test_no_arrow_points_downstream

bench: $(BENCH) ## run the three benchmarks, the short way
	$(BIN)/python -m benchmarks.ladder --quick $(ARGS)
	$(BIN)/python -m benchmarks.queue_to_callback --quick $(ARGS)
	$(BIN)/python -m benchmarks.folder_to_parquet --quick $(ARGS)

docs: $(DOCS) ## build the documentation into build/docs; a broken link is an error
	$(BIN)/mkdocs build --strict --site-dir build/docs
	@echo "The documentation is in build/docs/index.html"

format: $(DEV) ## put code into the common format and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

changelog: $(DEV) ## show what changes.d would add to CHANGELOG.md; with VERSION=0.2.0, write it
	$(BIN)/towncrier build $(if $(VERSION),--yes --version "$(VERSION)",--draft --version next)

lock: $(SUPPLY) ## renew requirements/*.lock: the newest versions that pyproject.toml allows, with their hashes
	.venv-supply/bin/python tools/lock.py $(ARGS)

audit: $(SUPPLY) ## ask whether vulnerabilities are known in what requirements/*.lock pins; needs the network
	.venv-supply/bin/python tools/audit.py

sbom: $(SUPPLY) ## write the bill of materials of a release (CycloneDX) to dist/
	@mkdir -p dist
	.venv-supply/bin/cyclonedx-py requirements requirements/container.lock --pyproject pyproject.toml --mc-type application \
		--output-reproducible --spec-version 1.6 --of JSON -o dist/headrace.cdx.json
	@echo "The bill of materials is in dist/headrace.cdx.json"

image: ## build the container image (needs docker, podman or buildah)
	@builder="$(BUILDER)"; for name in docker podman buildah; do \
		[ -n "$$builder" ] || ! command -v "$$name" >/dev/null || builder="$$name"; done; \
	if [ -z "$$builder" ]; then echo "No docker, podman or buildah was found; name one: make image BUILDER=/path/to/it" >&2; exit 3; fi; \
	"$$builder" build -f Containerfile -t "$(IMAGE)" .

clean: ## remove what was built, caches, and the demonstration's environment and output
	rm -rf build dist .venv-demo .venv-supply headrace-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

venv: $(DEV)

$(DEMO): pyproject.toml $(SOURCES)
	$(call environment,.venv-demo)
	@echo "Installing headrace and what it needs into .venv-demo (about 550 MB on disk; a minute or two the first time)"
	@.venv-demo/bin/python -m pip install -qq .
	@touch $@

# Pinned and by hash. A Python or machine for which there is no such file gets the newest versions: tests that run there are
# worth more than none. What pyproject.toml asks for beyond the lock is added too; a test tells that the lock is to be renewed.
$(DEV): pyproject.toml requirements/dev.lock
	$(call environment,.venv)
	@echo "Installing headrace and the tools for its development into .venv"
	@$(BIN)/python -m pip install -qq --require-hashes -r requirements/dev.lock || \
		echo "requirements/dev.lock does not fit here, as pip says above: the newest versions are installed instead" >&2
	@$(BIN)/python -m pip install -qq --editable '.[dev]'
	@touch $@

# Versions are pinned, files are not: which file of torch is right depends on the machine.
$(FULL): $(DEV) requirements/full.txt
	@echo "Installing PyTorch and the other large packages that some tests need into .venv"
	@$(BIN)/python -m pip install -qq -r requirements/full.txt
	@touch $@

$(SUPPLY): requirements/supply.lock
	$(call environment,.venv-supply)
	@echo "Installing the tools for lock files, audit and bill of materials into .venv-supply"
	@.venv-supply/bin/python -m pip install -qq --require-hashes -r requirements/supply.lock
	@touch $@

$(BENCH): $(DEV)
	@echo "Installing what the benchmarks need into .venv"
	@$(BIN)/python -m pip install -qq --editable '.[bench,dev]'
	@touch $@

$(DOCS): $(DEV)
	@echo "Installing what builds the documentation into .venv"
	@$(BIN)/python -m pip install -qq --editable '.[docs]'
	@touch $@
