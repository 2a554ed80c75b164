# Everything a person or CI runs. `make run` and `make test` need Python 3.11 to 3.13 and a package index, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# the optional parts of a team's deployment
EXTRAS := postgresql s3 qdrant ray k8s
INTEGRATIONS := .venv-integrations
STORES := $(CURDIR)/.rag_eval
# telemetry of Dagster and MLflow
QUIET := DO_NOT_TRACK=true DAGSTER_DISABLE_TELEMETRY=yes MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false
BROWSER := tests/browser/node_modules
# Two workers share two cores, so one thread each. The first worker that is idle takes tests of the other.
TESTS := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: run test test-all test-integrations check faults bench success fit ui team install install-team lock docs renew clean help

run: install  ## set up, then the nightly evaluation of the bundled gold sets
	@$(BIN)/rag-eval run

test: install  ## the test suite, about four minutes on two cores
	@$(TESTS)

test-all: install test-integrations $(BROWSER)/.installed  ## the long suites too: statistics, servers, kills, browsers, the frameworks of the field
	@$(TESTS) -m slow

test-integrations: $(INTEGRATIONS)/.installed  ## real LangChain, LlamaIndex and Semantic Kernel objects, and ppi-python, in an environment of their own
	@PYTHONPATH=. RAG_EVAL_REQUIRE_INTEGRATIONS=1 $(INTEGRATIONS)/bin/python -m pytest -c /dev/null --rootdir tests --noconftest -p no:cacheprovider -q tests/citations/test_citations_projections.py tests/uncertainty/test_uncertainty_ppi_python.py

$(INTEGRATIONS)/.installed: requirements-integrations.lock | $(STAMP)
	@echo "Setting up $(INTEGRATIONS): the frameworks that rag_eval reads objects of, and ppi-python; semantic-kernel and ragas exclude each other, so they have an environment of their own."
	@$(PYTHON) -m venv $(INTEGRATIONS)
	@$(BIN)/uv pip install --quiet --python $(INTEGRATIONS)/bin/python --require-hashes -r requirements-integrations.lock
	@touch $@

# scripts of packages are not run; the browser itself is the machine's own
$(BROWSER)/.installed: tests/browser/package.json tests/browser/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix tests/browser --ignore-scripts --no-audit --no-fund --loglevel=error && touch $@; \
	else echo "npm was not found: the accessibility tests will skip"; fi

check: install  ## lint, types, import contracts, doc tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q -p no:randomly --doctest-modules rag_eval --ignore=rag_eval/defs -o addopts=""

faults: install  ## apply deliberate faults to a copy, one at a time, and print which no test catches
	@$(BIN)/python tests/faults.py -n 2

bench: install  ## speed and memory against the libraries underneath, as JSON lines
	@for script in $(filter-out benchmarks/fit_% benchmarks/timing.py benchmarks/miss_rate_data.py benchmarks/golden_record.py benchmarks/million.py benchmarks/success.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script || exit 1; done

success: run  ## judge the success criteria: met, not met, or not measurable
	@$(BIN)/python benchmarks/success.py

fit: install  ## fit the shipped coefficients anew (needs the public data of RAG_EVAL_TEST_DATA; minutes)
	@for script in $(wildcard benchmarks/fit_*.py); do $(BIN)/python $$script || exit 1; done

# the schedule stays off until a person turns it on, and both programs end together
ui: install  ## Dagster (http://127.0.0.1:3000) and MLflow (http://127.0.0.1:5000) on this machine, until Ctrl-C
	@$(BIN)/python -m rag_eval.defs.instance $(STORES)/dagster
	@trap 'kill 0' EXIT; \
	$(QUIET) $(BIN)/mlflow ui --workers 1 --backend-store-uri sqlite:///$(STORES)/mlflow.db --artifacts-destination file://$(STORES)/mlartifacts & \
	$(QUIET) RAG_EVAL_SCHEDULE_ON=false DAGSTER_HOME=$(STORES)/dagster $(BIN)/dagster dev -w workspace.yaml

team: install-team  ## a team's deployment on this machine: PostgreSQL, S3, Chroma, MLflow, Dagster, and two gold sets at once
	@$(BIN)/python deploy/team.py

install: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "make needs Python 3.11 to 3.13; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 run")'
	@echo "Setting up $(VENV): about 230 packages, 1.5 GB on disk; half a minute from a warm package cache, some minutes over a slow line. Only once."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $(STAMP)
	@echo "Set up."

install-team: $(VENV)/.installed-team  ## add what a team's deployment needs: PostgreSQL, S3, Qdrant, Ray, Kubernetes

$(VENV)/.installed-team: requirements-team.lock | $(STAMP)
	@echo "Adding the packages of a team's deployment: about 25, 500 MB on disk."
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements-team.lock
	@touch $@

lock: install  ## renew the three locks: the product, a team's deployment, other frameworks
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --upgrade --extra nightly --extra plots --extra documents --group dev --group docs --group model pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --constraint requirements.lock $(addprefix --extra ,nightly plots documents $(EXTRAS)) --group dev --group docs --group model --group team pyproject.toml -o requirements-team.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --upgrade --group pyproject.toml:integrations -o requirements-integrations.lock

docs: install  ## build the documentation site into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml
	@echo "open build/site/index.html"

renew: install  ## renew the generated parts of README.md and docs/ with real runs, and the picture
	@$(BIN)/python docs/generate.py

clean:  ## remove what runs made; the environment stays
	@rm -rf .rag_eval reports/*/ reports/*.json .pytest_cache .mypy_cache .ruff_cache .hypothesis

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12
