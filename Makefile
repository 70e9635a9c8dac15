# Run `make help` for what there is. Every target sets up what it needs; a second run finds it done.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PREFIX ?= /usr/local
BIN := .venv/bin
# Recording needs root; what runs as root leaves no files of root's in the checkout.
AS_ROOT := $(if $(filter-out 0,$(shell id -u)),sudo env PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=.build/hypothesis $(if $(PYTRACE_TORCH),PYTRACE_TORCH="$(PYTRACE_TORCH)"))
PYTEST := $(AS_ROOT) $(BIN)/python -m pytest $(if $(AS_ROOT),-p no:cacheprovider)
# More words for pytest, for example: make test ARGS="-k fib -x"
ARGS ?=
# Most of the time a test waits for its target.
JOBS ?= 3
# Pythons whose rows of docs/matrix.md are made anew, and no others: make test-matrix ROWS="3.13t or 3.14t"
ROWS ?=
# The kernel of the emulated machine.
KERNEL ?= 6.12
# Those of docs/kernels.md; "here" is this host's own.
KERNELS ?= 6.1 6.12 here
# How often each fault is tried.
TRIES ?= 5

.PHONY: help setup demo test test-matrix test-faults test-kernels test-kernels-short mutants test-vm torch test-torch bench experiments check check-docs page format docs site install install-daemon wheels deb release uninstall clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing: Debian packages, kernel headers, .venv
	@scripts/setup.sh

demo: setup ## trace a small multi-threaded service and report where its time went
	@scripts/demo/demo.sh

test: setup ## run the tests on this host's own Python
	@$(PYTEST) -n $(JOBS) --dist worksteal --ignore tests/torch $(ARGS)

test-matrix: setup ## run them on Debian's 3.9 to 3.15, pyenv's 3.8 to 3.13, and without a GIL, and write docs/matrix.md (builds root filesystems, once)
	@scripts/roots.sh
	@rm -f .build/matrix.xml
	@$(PYTEST) -n $(JOBS) --dist worksteal --ignore tests/torch --matrix --junitxml .build/matrix.xml $(if $(ROWS),-k "$(ROWS)" tests/bpf/test_counts.py) $(ARGS); code=$$?; \
	$(if $(ARGS),,$(BIN)/python scripts/matrix.py .build/matrix.xml $(if $(ROWS),docs/matrix.md) > .build/matrix.md && mv .build/matrix.md docs/matrix.md || code=1;) exit $$code

mutants: setup ## change the code in COUNT=200 places, one at a time, and say which changes no unit test notices (hours)
	@scripts/setup.sh venv mutants
	@$(BIN)/python scripts/mutants.py --count $(or $(COUNT),200) $(ARGS)

test-faults: setup ## try each fault several times (TRIES=5), and write docs/faults.md
	@rm -f .build/faults.xml; mkdir -p .build
	@$(PYTEST) -n $(JOBS) tests/faults --tries $(TRIES) --junitxml .build/faults.xml $(ARGS); code=$$?; \
	$(if $(ARGS),,$(BIN)/python scripts/faults.py .build/faults.xml > .build/faults.md && mv .build/faults.md docs/faults.md || code=1;) exit $$code

test-kernels: setup ## run a part of the tests on each kernel, in emulated machines (KERNELS="5.10 6.1 6.12 sid 6.1-arm64 6.12-arm64-16k here"; half an hour each), and write docs/kernels.md
	@scripts/test-kernels.sh $(KERNELS)

test-kernels-short: setup ## run a few of them on 6.1 and 6.12 within five minutes, where their images exist; CI does
	@scripts/test-kernels-short.sh

test-vm: setup ## run what can stop a machine in an emulated one, with a kernel of its own (KERNEL=6.1 or 6.12; builds its disk, once)
	@scripts/vm/run.sh --kernel $(KERNEL) python -m pytest -q -p no:cacheprovider -m emulated $(ARGS) tests/hostile

torch: setup ## install PyTorch for the workloads and their tests, once
	@scripts/torch.sh

test-torch: torch ## run the tests that need PyTorch
	@$(PYTEST) tests/torch $(ARGS)

bench: setup ## measure what tracing and reading cost
	@set -e; for bench in scripts/bench/*.py; do echo "== $$bench"; $(AS_ROOT) $(BIN)/python $$bench $(ARGS); done

experiments: torch ## answer questions about neural networks by tracing them; reports in .build/experiments
	@set -e; for name in complexity cores blas networks opcodes; do $(AS_ROOT) $(BIN)/python scripts/experiments/$$name.py; done

check: setup ## layout of the code, ruff, mypy, the generated documents and who may import whom; CI runs this before the tests
	@scripts/setup.sh venv check
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python scripts/generate_docs.py --check
	@if command -v npm >/dev/null; then cd page && npm ci --silent && npm run --silent check; fi
	@$(BIN)/python -m pytest -q -p no:cacheprovider tests/unit/repository/test_architecture.py

check-docs: setup ## run the commands behind figures and promises of README and the docs, under a minute, and compare
	@$(AS_ROOT) $(BIN)/python scripts/check_docs.py

page: ## build the page of `report --html` anew from page/ (needs node)
	@cd page && npm ci --silent && npm run --silent build

format: ## lay out the Python code anew
	@scripts/setup.sh venv check
	@$(BIN)/ruff format .

docs: setup ## write the generated documents anew
	@$(BIN)/python scripts/generate_docs.py

site: ## build the documentation as a site in .build/site; a broken link is an error, and CI looks
	@scripts/setup.sh venv check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@! grep -rlE '(src|rel="stylesheet" href)="(https?:)?//' --include '*.html' .build/site || { echo "these pages load something from elsewhere" >&2; exit 1; }

install: ## put pytrace-ebpf on the PATH (PREFIX=/usr/local, DESTDIR= for packagers)
	@$(if $(DESTDIR),,scripts/setup.sh host)
	@scripts/setup.sh venv install
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" scripts/install.sh

install-daemon: install ## and the daemon's systemd unit and an example of its configuration
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" scripts/install.sh --daemon

wheels: setup ## build into dist/: the source, a wheel for Linux on x86-64, and one for reading traces on any machine
	@scripts/wheels.sh

deb: wheels ## build into dist/: a Debian package for this host's release (DEB_PYTHON=3.11 for bookworm, 3.13 for trixie)
	@scripts/deb/build.sh

release: setup ## build and try what is published, as VERSION=1.2.3: source, wheels and .deb, each in a clean root; the tag is left to you (5 minutes)
	@$(BIN)/python scripts/release.py $(VERSION)

uninstall: ## take it away again
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" scripts/install.sh --remove

clean: ## remove .venv and everything built or cached here
	@rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@$(AS_ROOT) rm -rf .build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
