# make demo       an example on Spark and the embedded log, live; SECONDS=20 ends it by itself
# make check      formatting, lint, types, layers and sizes
# make test-fast  the tests that need neither Spark nor a broker
# make test       everything
# make test-faults  kills and broken brokers, many of them; FAULTS=50 says how many, SEED=… repeats what was printed
# make bench      records per second: beside the peers on Kafka (an hour and more), of one core, beside Spark's own ways

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: .venv java demo check test-fast test test-faults bench clean

.venv: $(INSTALLED)

$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Headrace needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable . --group dev
	@touch $@

# Spark runs on Java. On Debian, as root, it is installed; elsewhere the command that does it is said.
java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version >/dev/null 2>&1 || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update --quiet=2 && apt-get install --yes --quiet=2 default-jre-headless; \
		else \
			echo "Spark needs Java 17 or newer: sudo apt-get install --yes default-jre-headless" >&2; exit 1; \
		fi; }

demo: $(INSTALLED) java
	$(BIN)/headrace demo $(EXAMPLE) $(if $(SECONDS),--seconds $(SECONDS))

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q tests/test_skeleton_sizes.py

test-fast: $(INSTALLED)
	$(BIN)/python -m pytest -q -n 2 -m "not spark and not kafka and not slow"

test: java check
	$(BIN)/python -m pytest -q -n 2

test-faults: $(INSTALLED) java
	HEADRACE_FAULTS=$(or $(FAULTS),20) HEADRACE_SEED=$(SEED) \
		$(BIN)/python -m pytest -q -rP tests/faults tests/kafka/test_delivery_faults.py

bench: $(INSTALLED) java
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/engine.py

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
