# make demo         runs an example on Spark and the embedded log; SECONDS=20 stops it after 20 seconds
# make check        checks formatting, lint, types, layers and the examples in docstrings
# make test-fast    runs the tests that take little time and need neither Spark, a Kafka broker nor another server
# make test         runs `make check` and every test, but those that are marked `long`, which it lists
# make test-faults  kills processes and brokers at random, and runs long tests; FAULTS=50 says how often, SEED=… repeats a
#                   printed run, TRIGGER=micro-batch runs the applications with that trigger
# make test-changes  changes applications with KEYS (100,000) keys in every kind of store: half an hour on two cores
# make test-fuzz    gives hostile bytes to every decoder and requests to the web server, each for SECONDS (20);
#                   DECODERS=manifest,delta chooses decoders by words of their names; KIND_SECONDS=600 gives that time
#                   to each kind of bytes that come from outside, as `make test` gives ten seconds
# make test-simulation  runs the simulation with RUNS seeds from SEED on: faults of storage, log, clocks and processes
# make test-soak    counts 5,000 records a second for ten minutes, or for SECONDS: memory, checkpoint and latency must
#                   stay level; docs/images/soak.svg shows them, build/soak.svg those of another run. FAULT_EVERY=30
#                   kills or stops a process or the broker every 30 seconds
# make docs         builds the documentation site into build/site
# make screenshots  takes the pictures of the dashboard in docs/images, of an example that runs on Spark
# make bench        measures records per second: against other systems on Kafka (more than an hour), on one core,
#                   against Spark's own streaming, the embedded log, and with more and more slots; each benchmark
#                   writes its section of benchmarks/results.md
#
# The targets install what is missing. Python packages go into .venv. Java, a JDK, Chromium, strace and the servers of the
# tests come from apt-get when make runs as root on Debian; elsewhere make prints the command to run, and fails.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
CLASSES := .venv/.classes
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# $(call install,PACKAGES,NEED) installs Debian packages, or prints NEED and the command that does it.
define install
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update --quiet=2 && apt-get install --yes --quiet=2 --no-install-recommends $(1); \
	else \
		echo "$(2): sudo apt-get install --yes $(1)" >&2; exit 1; \
	fi
endef

# Tests start many processes; without cached bytecode each of them compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: .venv java jdk chromium strace servers demo check test-fast test test-faults test-changes test-fuzz test-simulation test-soak \
	docs screenshots bench clean

.venv: $(INSTALLED)

# Debian's Python comes without `ensurepip`, which `venv` needs. The lock has every package with the digests of its files,
# the build backend included, and pip installs nothing else: `pip check` fails if the lock lacks a dependency.
$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Headrace needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(call install,python3-venv,A virtual environment needs ensurepip); }
	$(PYTHON) -m venv .venv
	$(PIP) install --require-hashes --no-deps --requirement requirements.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	$(PIP) check
	@touch $@

# Spark runs on Java.
java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version >/dev/null 2>&1 \
		|| { $(call install,default-jre-headless,Spark needs Java 17 or newer); }

# The tests compile Java programs that use Kafka Streams itself.
jdk:
	@command -v javac >/dev/null || { $(call install,default-jdk-headless,The tests need a JDK of version 17 or newer); }

# The tests open the dashboard in Chromium. With HEADRACE_WITHOUT_BROWSER=1 those tests are skipped, and pytest's
# summary says so.
chromium:
	@if [ "$$HEADRACE_WITHOUT_BROWSER" != 1 ]; then \
		command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| { $(call install,chromium,The tests need Chromium (HEADRACE_WITHOUT_BROWSER=1 skips those that do)); }; \
	fi

# The tests of sources and sinks start these servers themselves, on ports and in directories of their own.
servers:
	@{ ls /usr/lib/postgresql/*/bin/postgres && ls /usr/sbin/mariadbd && command -v redis-server && ls /usr/sbin/mosquitto; } \
		>/dev/null 2>&1 \
		|| { $(call install,postgresql mariadb-server redis-server mosquitto,The tests need servers); }

# The tests of the disk let single system calls fail.
strace:
	@command -v strace >/dev/null || { $(call install,strace,The tests need strace); }

# Tests and benchmarks start Spark and Kafka's broker a hundred times.
$(CLASSES): $(INSTALLED) | java
	$(BIN)/headrace prepare --kafka --json > $@

demo: $(INSTALLED) java
	$(BIN)/headrace demo $(EXAMPLE) $(if $(SECONDS),--seconds $(SECONDS))

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q src

# An eighth of the examples of every property test: tests/profiles.py. `make check` runs the examples in src.
test-fast: $(INSTALLED)
	HEADRACE_PROFILE=fast $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not spark and not kafka and not slow" tests

test: jdk java chromium strace servers check $(CLASSES)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests

# Only the tests in tests/faults run applications on Spark that do not say which trigger they use.
test-faults: $(CLASSES) servers strace
	HEADRACE_FAULTS=$(or $(FAULTS),20) HEADRACE_SEED=$(SEED) $(if $(TRIGGER),HEADRACE_PROCESSING_TRIGGER=$(TRIGGER)) \
		$(BIN)/python -m pytest -q -n 2 --dist worksteal -rP tests/faults $(if $(TRIGGER),-m "not slots", \
		tests/disk tests/kafka/test_delivery_faults.py tests/spark/test_vectors_on_spark.py \
		tests/connect/test_sink_faults.py tests/connect/test_source_faults.py tests/connect/test_postgres_changes.py \
		tests/connect/test_end_to_end.py tests/docs/test_first_hour.py)

test-changes: $(INSTALLED)
	HEADRACE_KEYS=$(or $(KEYS),100000) $(BIN)/python -m pytest -q -s tests/checkpoint/test_change_matrix.py

test-fuzz: $(INSTALLED)
	$(if $(KIND_SECONDS),HEADRACE_FUZZ_KIND_SECONDS=$(KIND_SECONDS),HEADRACE_FUZZ_SECONDS=$(or $(SECONDS),20)) \
		HEADRACE_FUZZ_DECODERS="$(DECODERS)" \
		$(BIN)/python -m pytest -q -n 2 --timeout 7200 tests/fuzz$(if $(DECODERS),/test_decoders.py)

test-simulation: $(INSTALLED)
	$(BIN)/python -m tests.simulation --seed $(or $(SEED),0) --runs $(or $(RUNS),1000)

test-soak: $(CLASSES)
	$(BIN)/python -m tests.soak $(if $(SECONDS),--seconds $(SECONDS) --chart build/soak.svg) \
		$(if $(FAULT_EVERY),--fault-every $(FAULT_EVERY))

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "build/site/start.html"

screenshots: $(INSTALLED) java chromium
	$(BIN)/python tools/dashboard_screenshots.py

bench: $(CLASSES)
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.core
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.log
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.clients
	$(BIN)/python -m benchmarks.recovery
	$(BIN)/python -m benchmarks.rescale

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
