# Everything that is installed or written lies in this folder, except the jars in the per-user cache.

PYTHON ?= python3
# Given to pytest, as in: make test ARGS="tests/unit -k sequencer"
ARGS ?=
# Processes that share out the test files: while some wait for a broker or a JVM, the others keep two cores busy
WORKERS ?= 4
# Faults of the crash matrix: make crash-matrix N=1000
N ?= 96
# How long everything is killed, a fraction too: make soak HOURS=0.2
HOURS ?= 8
# Of an earlier soak, to plan the same again
SEED ?=
# How often the suite has to pass beside busy loops: make test-load RUNS=1
RUNS ?= 3
# Runs of each engine: make bench-peers ROUNDS=1
ROUNDS ?= 5

VENV_PYTHON := .venv/bin/python
PYTEST := $(VENV_PYTHON) -m pytest -n $(WORKERS) --no-loadscope-reorder
CONTRACTS := $(addprefix tests/integration/, kafka/test_wire.py streaming/analysis/test_plan_description.py \
	streaming/replay/test_spark_steering.py streaming/spark streaming/analysis/test_executed_batch.py)
STAMP := .venv/.ready-for-$(notdir $(PYTHON))

# Hundreds of processes import the package and the tests: they are compiled once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster check test pytest test-all test-load test-registry docs crash-matrix soak fault-matrix test-cluster durations kubernetes-servers lint format lock checksums bench-commit bench-gates bench-iceberg bench-lakehouse bench-ledger bench-peers bench-postgres bench-profile bench-restart bench-restore bench-savepoint bench-scale bench-sequencer bench-sink bench-source bench-state model wheel clean clean-cache

help: ## list what there is
	@echo "Usage: make TARGET [PYTHON=python3.12]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv from the lock file, and fill the per-user cache; the second time nothing is done

$(STAMP): requirements.lock pyproject.toml scripts/setup.sh scripts/preflight.sh airflow_provider_exactlyonce/jars/checksums.txt
	@scripts/setup.sh "$(PYTHON)"
	@touch $@

durations: setup ## run the test suite, note how long each test takes (the longest begin first), print where the time goes
	@$(PYTEST) -p tests.cpu_seconds --junitxml build/tests.xml $(ARGS)
	@$(VENV_PYTHON) -m tests.durations build/tests.xml

demo: setup ## run the demo: broker, stream, two kills, gate, report
	@$(VENV_PYTHON) -m demo

demo-cluster: setup ## the same job on YARN, with its home on S3 and three brokers of which one is killed; fetches 120 MB once
	@$(VENV_PYTHON) -m demo.cluster

check: lint ## lint, types, unit tests, and the contracts with private APIs; before each commit
	@$(PYTEST) tests/unit $(CONTRACTS) $(ARGS)

test: setup ## lint, types, and the test suite, at the same time
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest: setup
	@$(PYTEST) $(ARGS)

test-all: lint docs ## the same with the slow tests, then test-cluster; resumes: on the same files nothing that has passed runs again
	@$(PYTEST) -p tests.resume -m "not cluster" $(ARGS)
	@$(MAKE) --no-print-directory test-cluster

test-load: setup ## the test suite RUNS times in a row while two busy loops take of both cores what they get
	@for core in 1 2; do sh -c 'while :; do :; done' & loops="$$loops $$!"; done; trap "kill $$loops" EXIT INT TERM; \
	for run in $$(seq $(RUNS)); do echo "Run $$run of $(RUNS)"; $(PYTEST) $(ARGS) || exit; done

test-registry: setup ## the tests of Avro and Protobuf with a real schema registry; needs Java 21, of which the rest can do without
	@$(VENV_PYTHON) -m pytest -n 0 -m "" tests/unit/streaming/registry tests/integration/streaming/registry/test_schema_registry.py $(ARGS)

crash-matrix: setup ## N faults at every step of the protocol, then some at Spark's own sink; resumes
	@$(VENV_PYTHON) -m tests.crash_matrix --runs $(N)
	@$(VENV_PYTHON) -m tests.crash_matrix --stock --runs $$(( $(N) / 6 + 12 ))

soak: setup ## two chained pipelines for HOURS, while everything is killed; judged record by record, with slopes: build/soak/index.html
	@$(VENV_PYTHON) -m tests.soak --hours $(HOURS) $(if $(SEED),--seed $(SEED)) $(ARGS)

fault-matrix: setup ## every pair of failing calls at every sink, and longer failures, for hours; resumes
	@EXACTLYONCE_FAULT_MATRIX=1 $(PYTEST) -p tests.resume -m "" tests/integration/streaming/test_failing_calls.py $(ARGS)

kubernetes-servers: setup ## build etcd and an API server of Kubernetes for test-cluster, once, into the per-user cache (needs Go, and half an hour)
	@$(VENV_PYTHON) -m tests.kubernetes_cluster

test-cluster: setup ## three brokers that are killed, frozen, cut off (needs root), YARN, pods, homes on HDFS and GCS; resumes; prints a table
	@$(VENV_PYTHON) -m pytest -n 0 -p tests.resume -m cluster tests/integration $(ARGS)

lint: setup ## ruff, and mypy --strict, on the tests too
	@.venv/bin/ruff check --quiet --output-format concise
	@.venv/bin/ruff format --quiet --check || { echo "Not formatted as above: make format" >&2; exit 1; }
	@.venv/bin/mypy

format: setup ## let ruff format and fix what it can
	@.venv/bin/ruff check --fix --quiet || true
	@.venv/bin/ruff format

lock: ## remake requirements.lock from pyproject.toml (needs uv)
	@uv=$$(command -v uv || ls .venv/bin/uv 2> /dev/null) || { echo "uv is needed: pip install uv" >&2; exit 1; }; \
	"$$uv" pip compile --quiet pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
		--no-header --output-file requirements.lock

checksums: setup ## download the jars afresh and remake their checksums, after a change of jars/ivy.xml, s3a.xml, gcs.xml or azure.xml
	@$(VENV_PYTHON) scripts/remake_checksums.py

bench-commit: setup ## measure what a commit costs a batch, and how soon a reader sees it
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/commit.py $(ARGS)

bench-gates: setup ## measure what 500 waiting gates cost a triggerer, and how soon the next task is queued
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/gates.py $(ARGS)

bench-iceberg: setup ## measure the Iceberg sink beside a plain Parquet write of the same rows, and commits into a table that grows
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/iceberg.py $(ARGS)

bench-lakehouse: setup ## measure the Delta sink beside a plain Parquet write and Spark's own Delta write of the same rows, and a commit into a large table
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/lakehouse.py $(ARGS)

bench-ledger: setup ## measure how long a ledger of a million commits takes to open
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/ledger.py $(ARGS)

bench-peers: setup ## measure the same jobs on Flink, with Spark's own source and sink, and here; draws a plot
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/peers.py --rounds $(ROUNDS) $(ARGS)

bench-postgres: setup ## measure the PostgreSQL sink against a plain COPY of the same rows
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/postgres.py $(ARGS)

bench-profile: setup ## draw where the CPU of a row goes as a flame graph: one run of an engine under perf
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/cpu_profile.py $(ARGS)

bench-restart: setup ## measure a killed driver's restart beside a shell's loop; with ARGS=--deferred under a deferred task
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/restart.py $(ARGS)

bench-savepoint: setup ## measure savepoints of 10 MB, 100 MB and 1 GB of state against cp -r, and the query beside them
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/savepoint.py $(ARGS)

bench-scale: setup ## measure what grows: the commit's record, the turns of tasks, a transaction, supervisors in a triggerer
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/scale.py $(ARGS)

bench-sequencer: setup ## measure what share of a batch of 200 tasks x 200 partitions is their taking turns
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/sequencer.py $(ARGS)

bench-restore: setup ## measure a restore, and its replay against the original processing of the same batches
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/restore.py $(ARGS)

bench-sink: setup ## measure the sink against Spark's own: one run, one broker, interleaved; draws a plot
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/sink.py $(ARGS)

bench-source: setup ## measure a source that reads in the Python worker beside Spark's connector
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/source.py $(ARGS)

bench-state: setup ## measure keyed state against hand-written transformWithState and Spark's own aggregation
	@PYTHONPATH=. $(VENV_PYTHON) benchmarks/state.py $(ARGS)

model: ## check the model of the protocol and its mutations; BOUNDS=full in wider bounds too (needs spin and gcc)
	@docs/model/check.sh $(BOUNDS)

wheel: setup ## build dist/*.whl
	@$(VENV_PYTHON) -m build --wheel --no-isolation

docs: setup ## build these pages and the reference of classes as a site into build/docs; a dead link fails
	@$(VENV_PYTHON) -m sphinx -q -W --keep-going -d build/doctrees -c scripts/site . build/docs
	@echo "build/docs/index.html"

clean: ## remove what was made here, stopping a broker first; not the per-user cache
	@if [ -d .exactlyonce ]; then PYTHONPATH=. $(PYTHON) scripts/clean.py; fi
	@rm -rf .venv .exactlyonce .mypy_cache .ruff_cache .pytest_cache build dist demo-report bench-report spark-warehouse metastore_db
	@rm -rf derby.log *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Removed what was made here. The per-user cache stays: make clean-cache"

clean-cache: ## remove the per-user cache: the jars, and the archive of Spark's classes; make setup fills it again
	@rm -f .venv/.ready-for-*
	@PYTHONPATH=. $(PYTHON) scripts/clean.py --cache
