# Two commands do everything on a fresh machine with Python 3.11+ and make: `make demo` and `make test`.
# All targets share one environment, .venv, built on first use and rebuilt when its requirements change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
REQUIREMENTS := pyproject.toml constraints.txt
# The oldest torch that all but the lab supports; pyproject.toml names the same, and a test compares them.
OLDEST_TORCH := 2.6.0
# What the tests of integrations and examples use there; torchao 0.18 does not import on it.
OLDEST_PACKAGES := numpy scipy matplotlib pytest pytest-xdist pytest-timeout hypothesis \
	accelerate bitsandbytes datasets einops lightning lion-pytorch peft pytorch_optimizer schedulefree \
	sentence-transformers timm transformers trl
# Two test processes of one thread each are faster than one of two, and do not fight over the cores.
WORKERS ?= 2
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test lint types format test-oldest docs dist release-check benchmarks benchmark-tables study-tables fine-tuning-tables environments clean help

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 18

demo: $(VENV)/.lab ## SGD, SAM, LE-SAM and LE-SAM+ on digits with wrong labels: a table, a picture, a page
	$(BIN)/lesam compare

test: $(VENV)/.all $(VENV)/.trackio ## all tests, doctests and documents
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST)
	PYTHONPATH=$(VENV)/trackio $(ONE_THREAD) $(BIN)/python -m pytest tests/lab/training/test_loggers.py -k trackio

lint: $(VENV)/.all ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.all ## types, strict in the whole package
	$(BIN)/mypy

format: $(VENV)/.all ## bring the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmarks: $(VENV)/.all ## side-by-side measurements, minutes each; ends with a table of targets and what was reached
	missed=0; for name in step price ddp flatness input train report; do $(BIN)/python benchmarks/$$name.py || missed=1; done; \
	$(BIN)/python benchmarks/tables.py && exit $$missed

benchmark-tables: $(VENV)/.all ## docs/benchmarks.md again, from the records in benchmarks/results
	$(BIN)/python benchmarks/tables.py docs/benchmarks.md

study-tables: $(VENV)/.lab ## every table and figure of the study and the price again, from the records in results
	$(BIN)/python -m lesam.lab.paper.study tables results docs/images docs/study.md docs/price.md README.md

fine-tuning-tables: $(VENV)/.lab ## every table of docs/fine-tuning.md again, from the records in results/fine-tuning
	$(BIN)/python -m lesam.lab.paper.transfer tables results/fine-tuning docs/fine-tuning.md

# Not the examples and the self-check, which run on the newest torch and call what is tested here.
test-oldest: $(VENV)-oldest/.done ## optimizers, set-ups, flatness and integrations on the oldest supported torch
	$(ONE_THREAD) $(VENV)-oldest/bin/python -m pytest -n $(WORKERS) --dist loadgroup -rs \
		--ignore tests/setups/test_examples.py --ignore tests/optim/test_selfcheck.py \
		tests/optim tests/reference tests/setups tests/flatness tests/integrations \
		lesam/optim lesam/flatness lesam/integrations $(PYTEST)

docs: $(VENV)/.all ## the site in site/, with tutorials run; a broken link, an undocumented name or a raw formula fails it
	$(ONE_THREAD) NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --config-file website/mkdocs.yml

dist: $(VENV)-dist/.done ## wheel and sdist in dist/, looked into and tried in an empty environment
	rm -rf dist build *.egg-info
	$(VENV)-dist/bin/python -m build --quiet --outdir dist
	$(VENV)-dist/bin/python .ci/dist.py dist

release-check: ## may this commit be published?  make release-check TAG=v0.1.0
	$(PYTHON) .ci/release.py $(TAG)

environments: $(VENV)/.all $(VENV)/.trackio $(VENV)-oldest/.done $(VENV)-dist/.done ## all that is installed by the targets above

clean: ## remove the environments and caches
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-dist .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site *.egg-info

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("lesam needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.lab: $(REQUIREMENTS) | $(BIN)/python
	$(PIP) --editable ".[lab]"
	touch $@

$(VENV)/.all: $(REQUIREMENTS) | $(BIN)/python
	$(PIP) --editable ".[flatness,lab,lightning,postgresql,ray,slurm,transformers,docs,dev]"
	touch $@ $(VENV)/.lab

# Trackio wants an older Pillow than the rest: both lie beside the environment, for the one test that needs them.
$(VENV)/.trackio: Makefile $(VENV)/.all
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/trackio \
		trackio==0.43.0 pillow==12.3.0 brotli==1.2.1 gradio-client==2.7.2 orjson==3.13.0 python-multipart==0.0.33
	touch $@

# The same versions as everywhere, but for torch and what belongs to one torch.
$(VENV)-oldest/.done: $(REQUIREMENTS) Makefile
	$(PYTHON) -m venv $(VENV)-oldest
	grep -vE '^((torch|torchvision|triton|sympy)==|nvidia|cuda)' constraints.txt > $(VENV)-oldest/constraints.txt
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(VENV)-oldest/constraints.txt torch==$(OLDEST_TORCH) $(OLDEST_PACKAGES)
	$(VENV)-oldest/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# What builds the wheel is not what uses it: an environment with the builder and nothing else.
$(VENV)-dist/.done: constraints.txt
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build
	touch $@
