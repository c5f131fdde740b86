# Everything that a newcomer, a developer and the CI need. `make` alone lists it.
# Nothing is installed outside this directory (.venv, .cache), except by `make test-interop` and `make test-containers`, which say so.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.ONESHELL:

BIN := .venv/bin
INTEROP := .cache/interop
CONTAINERS := .cache/containers
MUTATION := .cache/mutation
SITE := .cache/site
SBOM := .cache/sbom
INSTALLED := .venv/.installed
MINIMUM_JAVA := 17

# The first Python that is new enough; PYTHON=… overrules. 3.11 first, because that is what is tested most.
find_python = for candidate in $${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3; do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$candidate" && exit; done; true

# Shows what a step is and how long it took: $(call step,what,command)
define step
printf '\n\033[1m== %s\033[0m\n' "$(1)"; started=$$SECONDS; $(2); printf '== %s: %d s\n' "$(1)" "$$((SECONDS - started))"
endef

# Installs the Debian packages of the shell array `missing`, and says so.
define install_missing
if [ $${#missing[@]} -gt 0 ]; then
	command -v apt-get >/dev/null || { echo "Please install $${missing[*]} (there is no apt-get here) and try again." >&2; exit 1; }
	as_root=(); [ "$$(id -u)" -eq 0 ] || as_root=(sudo)
	echo "installing $${missing[*]} with apt-get"
	"$${as_root[@]}" apt-get update --quiet=2
	DEBIAN_FRONTEND=noninteractive "$${as_root[@]}" apt-get install --yes --quiet=2 --no-install-recommends "$${missing[@]}"
fi
endef

.PHONY: help
help: ## Show this list
	@printf 'Usage: make TARGET\n\n'
	awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	printf '\nStart with: make demo\n'

# ---- setting up ----------------------------------------------------------------------------------------------------------------

.PHONY: setup
setup: java-check $(INSTALLED) ## Create .venv with everything pinned (quick when it is there)

$(INSTALLED): requirements.txt pyproject.toml
	@python="$$($(find_python))"
	if [ -z "$$python" ]; then
		echo "Python 3.11 or newer was not found. Install it (Debian, Ubuntu: sudo apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3.11 …" >&2; exit 1
	fi
	if [ ! -x $(BIN)/python ]; then
		echo "creating .venv with $$("$$python" --version)"
		"$$python" -m venv .venv || { rm -rf .venv; echo "Python's venv module is incomplete. Install it (Debian, Ubuntu: sudo apt-get install python3-venv) and try again." >&2; exit 1; }
	fi
	echo "installing packages into .venv (about 600 MB with PySpark; once, some minutes on a slow line)"
	$(BIN)/python -I inflight/local/set_up.py requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	touch $@

.PHONY: java-check
java-check:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"
	major="$$("$$java" -version 2>&1 | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' || true)"
	if [ "$${major:-0}" -lt $(MINIMUM_JAVA) ]; then
		echo "Java $(MINIMUM_JAVA) or newer is needed, found: $${major:-none}. Install it (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; Fedora: sudo dnf install java-21-openjdk-headless) and try again." >&2; exit 1
	fi

.PHONY: jars
jars: setup ## Fetch the jars of Kafka and of Spark's connectors into .cache (70 MB, once)
	@$(BIN)/inflight jars

.PHONY: jar-list
jar-list: setup ## Resolve conf/ivy.xml into conf/jars.txt (the only target that resolves versions of jars)
	@$(BIN)/python -m inflight.local.pin_jars conf/jars.txt

# ---- trying it -----------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: setup ## Watch it work: devices, a killed engine, and a count of what arrived
	@$(BIN)/inflight demo

# ---- checking it ---------------------------------------------------------------------------------------------------------------

# Tests with other processes wait for Kafka and Spark: several processes run them (tests/conftest.py says which tests share one). They
# take longest, so what only computes runs beside them.
.PHONY: test
test: jars ## Lint, types, layers and the tests that share one Kafka and one Spark: four to nine minutes on two cores
	@$(call step,lint,$(BIN)/ruff check . && $(BIN)/ruff format --check --quiet . || { echo "make format mends most of this" >&2; exit 1; })
	.ci/beside 'tests with other processes' '$(BIN)/pytest -q -m "$(everywhere)" -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --durations=10 $(PROCESS_TESTS)' \
		'tests of parts' '$(BIN)/pytest -q -m "$(everywhere)" -n 2 --dist loadfile --durations=5 $(PROCESS_TESTS:%=--ignore=%) $(SESSION_TESTS:%=--ignore=%) --ignore=tests/mutation' \
		'tests of the session' '$(coverage)' types '$(BIN)/mypy' layers '$(BIN)/lint-imports'

TEST_PROCESSES := 5
everywhere := not servers and not interop and not rabbitmq and not faults and not slow and not wheel and not containers

PROCESS_TESTS := tests/integration tests/spark

# The tests of state/, which have to reach every branch of it. What takes long and reaches no line of its own runs without the tracer.
SESSION_TESTS := tests/unit/state tests/spec tests/scenarios tests/properties
coverage = $(BIN)/pytest -q $(SESSION_TESTS) --cov=state --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100 --durations=5

.PHONY: coverage
coverage: setup ## The tests of state/; a branch of it that they do not reach is a failure
	@$(coverage)

.PHONY: test-servers
test-servers: jars ## The tests that start a Kafka or gateways of their own, or a query once more; two minutes
	@$(call step,servers,$(BIN)/pytest -q -m "servers and not faults" -n 2 --dist loadfile --no-loadscope-reorder --durations=5 $(PROCESS_TESTS))

.PHONY: test-unit
test-unit: setup ## Only what needs neither Java nor other processes: a minute
	@$(BIN)/pytest -q -m "not processes and not long" -n 2 --dist loadfile tests/unit tests/mutation $(SESSION_TESTS)

.PHONY: test-faults
test-faults: jars ## Kill engine, Kafka and archive at the worst moments; some minutes
	@$(call step,faults,$(BIN)/pytest -m "faults and not interop and not slow" --durations=10)

.PHONY: faults
faults: jars ## An hour of faults under 50 devices, and an account of all that was sent (FAULTS_MINUTES=5 SEED=7 KINDS="killed; frozen" TESTBED=standby BUSY_LOOPS=3)
	@$(BIN)/python -m trials.faults.run --minutes $${FAULTS_MINUTES:-60} --testbed $${TESTBED:-cluster} $${SEED:+--seed $$SEED} $${KINDS:+--kinds "$$KINDS"} $${BUSY_LOOPS:+--busy-loops $$BUSY_LOOPS}

.PHONY: test-archive
test-archive: jars interop-tools ## The archive and the commands that read it, also killed and seen in a browser; long
	@$(call step,archive,$(BIN)/pytest -m slow --durations=10)

.PHONY: bandit
bandit: setup ## What is known to be unsafe in Python
	@$(call step,bandit,$(bandit))

bandit = $(BIN)/bandit --quiet --recursive --configfile pyproject.toml inflight streaming sinks state

.PHONY: properties
properties: setup ## A thousand random histories for each property of the session, its codecs and the fast path
	@$(call step,properties,HYPOTHESIS_PROFILE=thousand $(BIN)/pytest -q -n 2 --dist worksteal tests/properties)

.PHONY: mutation
mutation: setup ## Break each row of the transition tables and each rule of the models in turn: a test has to fail each time
	@$(call step,mutation,$(BIN)/pytest -q -n 2 tests/mutation)

.PHONY: mutmut
mutmut: setup $(MUTATION)/bin/mutmut ## Break each line of the fast path and of the ends of messages in turn, with mutmut; four minutes
	@$(call step,mutmut,rm -rf mutants; $(MUTATION)/bin/python -m tests.mutation.survivors)

# mutmut has an environment of its own, which sees what is in .venv: nothing else needs what it brings along.
$(MUTATION)/bin/mutmut: | setup
	@$(BIN)/python -m venv $(MUTATION)
	$(MUTATION)/bin/python -m pip install --disable-pip-version-check --quiet 'mutmut==3.8.1'
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		>"$$($(MUTATION)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of_the_project.pth"

.PHONY: test-interop
test-interop: jars $(INTEROP)/node_modules/kafkajs/package.json interop-tools ## With foreign clients, brokers, promtool and a browser (mosquitto, MQTT.js, RabbitMQ, HAProxy, Prometheus, Chromium); installs them with apt-get
	@$(call step,interoperability,INFLIGHT_NO_SKIPS=1 INFLIGHT_NODE_MODULES="$(CURDIR)/$(INTEROP)/node_modules" $(BIN)/pytest -m "(interop or rabbitmq) and not slow" -n 2 --dist loadfile --no-loadscope-reorder --durations=10)

.PHONY: examples
examples: jars $(INTEROP)/node_modules/kafkajs/package.json interop-tools ## Run every program of examples/ against a real system
	@$(call step,examples,INFLIGHT_NO_SKIPS=1 INFLIGHT_NODE_MODULES="$(CURDIR)/$(INTEROP)/node_modules" $(BIN)/pytest -q -k "example or of_the_docs or test_tracing" tests/integration)

.PHONY: test-wheel
test-wheel: jars ## The built wheel in a virtual environment of its own: import, command, `inflight up`
	@$(call step,wheel,$(BIN)/pytest -m wheel)

.PHONY: lint-containers
lint-containers: setup ## Check the files for containers and Kubernetes (references, schemas, configuration) without starting any
	@$(call step,files for containers,$(BIN)/pytest -q tests/unit/test_cluster_files.py tests/unit/test_container_support.py tests/unit/test_kubernetes_files.py tests/unit/test_watching_files.py)

.PHONY: test-containers
test-containers: setup container-tools ## Run docker-compose.yml and conf/cluster and kill each container; starts a dockerd of its own where no engine answers (BASE=python:3.13-slim-trixie JAVA=21 CONTAINERS=DIR)
	@$(call step,containers,INFLIGHT_CONTAINERS="$(abspath $(CONTAINERS))" INFLIGHT_IMAGE_BASE="$(BASE)" INFLIGHT_IMAGE_JAVA="$(JAVA)" $(BIN)/pytest -q -m containers --durations=8 tests/integration/containers)

.PHONY: container-tools
container-tools:
	@missing=()
	docker version >/dev/null 2>&1 || PATH="$$PATH:/usr/sbin" command -v dockerd >/dev/null || missing+=(docker.io iptables)  # its service is not needed
	docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || missing+=(docker-compose)
	command -v mmdebstrap >/dev/null || ! command -v apt-get >/dev/null || missing+=(mmdebstrap)  # for images that cannot be pulled
	$(install_missing)

.PHONY: interop-tools
interop-tools:
	@missing=()
	command -v mosquitto_pub >/dev/null || missing+=(mosquitto-clients)
	PATH="$$PATH:/usr/sbin" command -v mosquitto >/dev/null || missing+=(mosquitto)
	PATH="$$PATH:/usr/sbin" command -v rabbitmq-server >/dev/null || missing+=(rabbitmq-server)  # its service is not used
	PATH="$$PATH:/usr/sbin" command -v haproxy >/dev/null || missing+=(haproxy)  # its service is not used
	PATH="$$PATH:/usr/sbin" command -v promtool >/dev/null || missing+=(prometheus)  # for promtool, which tests the alerts; its service is not used
	command -v chromium >/dev/null || missing+=(chromium)  # looks at the report and at the console
	command -v node >/dev/null || missing+=(nodejs)
	command -v npm >/dev/null || missing+=(npm)
	command -v javac >/dev/null || missing+=(openjdk-17-jdk-headless)  # runs examples/Backend.java from its source
	command -v go >/dev/null || echo "NOT RUN: examples/go needs Go 1.24 or newer, which is not here"
	$(install_missing)

$(INTEROP)/node_modules/kafkajs/package.json: | interop-tools
	@mkdir -p $(INTEROP)
	npm install --prefix $(INTEROP) --no-save --no-audit --no-fund --loglevel=error mqtt@5 kafkajs@2

# ---- documents -----------------------------------------------------------------------------------------------------------------

.PHONY: docs
docs: $(SITE)/.installed ## Build the site of docs/ into build/site: every link and anchor is checked, and nothing is loaded from elsewhere
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python -m mkdocs build --strict 2>&1 | sed '/^INFO /d'  # with --quiet no warning counts
	if grep -rnoE '(src=|<link rel="(stylesheet|preload|preconnect|icon)"[^>]* href=)"?(https?:)?//[^"> ]*|url\((https?:)?//[^)]*' build/site --include=*.html --include=*.css; then
		echo "the site loads these from elsewhere" >&2; exit 1
	fi
	echo "open build/site/index.html"

.PHONY: references
references: setup ## Write the pages of docs/ that are made from the code, and print which ones have changed
	@$(BIN)/python -m docs.generate

.PHONY: docs-serve
docs-serve: $(SITE)/.installed ## Show the site at http://127.0.0.1:8000, and show it again after each change of a page
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python -m mkdocs serve --strict

# What builds the site is in an environment of its own: nothing else needs it.
$(SITE)/.installed: docs/generate/requirements.txt
	@python="$$($(find_python))"
	"$${python:?Python 3.11 or newer is needed}" -m venv $(SITE)
	$(SITE)/bin/python -m pip install --disable-pip-version-check --quiet --require-hashes --requirement docs/generate/requirements.txt
	touch $@

.PHONY: pictures
pictures: jars interop-tools ## Take the pictures in docs/ anew: console, status, top; three minutes on a quiet machine
	@$(BIN)/python docs/generate/take_pictures.py

.PHONY: bench
bench: jars ## Measure latency and throughput on this machine
	@$(BIN)/python -m bench

.PHONY: bench-contestants
bench-contestants: jars interop-tools ## The same devices and payloads with Inflight, RabbitMQ and Mosquitto in turn; long
	@$(BIN)/python -m bench.contestants --turns 2 --rates 20,200,500,1000,2000

.PHONY: bench-archive
bench-archive: jars ## Measure the archive with a million ledger rows, and `inflight trace` in them
	@$(BIN)/python -m bench.archive

.PHONY: attacks
attacks: jars ## what hostile devices cost the good ones: eleven attacks, a minute each (ATTACK_SECONDS=5 ONLY=bombs), and a table; twelve minutes
	@$(BIN)/python -m trials.attacks.run $${ATTACK_SECONDS:+--seconds $$ATTACK_SECONDS} $${ONLY:+--only $$ONLY}

.PHONY: conformance
conformance: jars ## Public MQTT suites against `inflight up`, from checkouts: PAHO_TESTING=DIR MQTT_LIB=DIR (ONLY=retained); fifteen minutes
	@$(BIN)/python -m trials.conformance.run $${PAHO_TESTING:+--paho "$$PAHO_TESTING"} $${MQTT_LIB:+--mqtt-lib "$$MQTT_LIB"} $${ONLY:+--only "$$ONLY"}

.PHONY: soak
soak: setup ## Hours of random histories: 25,000 for each property, 100,000 of the fast path (INFLIGHT_SOAK=100: fewer), and an hour of fuzz
	@INFLIGHT_SOAK=$${INFLIGHT_SOAK:-25000} $(BIN)/pytest tests/properties -o timeout=0
	$(BIN)/python -m trials.fuzz.run --seconds $${FUZZ_SECONDS:-3600}

.PHONY: fuzz
fuzz: setup ## Mutated packets, records, tokens, certificates and WebSocket frames for whoever reads them; a minute (FUZZ_SECONDS=600 SEED=7)
	@$(call step,fuzz,$(BIN)/python -m trials.fuzz.run --seconds $${FUZZ_SECONDS:-60} $${SEED:+--seed $$SEED})

# ---- developing ----------------------------------------------------------------------------------------------------------------

.PHONY: lint
lint: setup ## Lint, types, layers and bandit, without tests
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(bandit)

.PHONY: audit
audit: setup ## Known holes in the packages of requirements.txt; asks an advisory service on the Internet
	@tools="$$(mktemp -d)"; trap 'rm -rf "$$tools"' EXIT
	$(BIN)/python -m venv "$$tools/venv"
	"$$tools/venv/bin/python" -m pip install --quiet pip-audit
	"$$tools/venv/bin/pip-audit" --strict --disable-pip --requirement requirements.txt

# The tool has an environment of its own: nothing else needs it. It warns that a list of packages says nothing of who needs whom.
.PHONY: sbom
sbom: setup $(SBOM)/.installed ## Bill of materials of what a user gets: packages and jars with their hashes (CycloneDX, in build/)
	@mkdir -p build
	$(BIN)/python -m inflight.local.sbom packages requirements.txt > $(SBOM)/packages.txt
	PYTHONWARNINGS=ignore $(SBOM)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-file $(SBOM)/packages.json $(SBOM)/packages.txt
	$(BIN)/python -m inflight.local.sbom jars $(SBOM)/packages.json build/inflight.cdx.json
	$(SBOM)/bin/python -c 'import pathlib, sys; from cyclonedx.schema import SchemaVersion as V; from cyclonedx.validation.json import JsonStrictValidator as Check; sys.exit(Check(V.V1_6).validate_str(pathlib.Path(sys.argv[1]).read_text()))' build/inflight.cdx.json
	echo "build/inflight.cdx.json: $$(grep -c '"purl": "pkg:pypi' build/inflight.cdx.json) packages, $$(grep -cE '"purl": "pkg:(maven|generic)' build/inflight.cdx.json) jars"

$(SBOM)/.installed: Makefile
	@python="$$($(find_python))"
	"$${python:?Python 3.11 or newer is needed}" -m venv $(SBOM)
	$(SBOM)/bin/python -m pip install --disable-pip-version-check --quiet 'cyclonedx-bom==7.5.0'
	touch $@

# The wheel has the time of the commit, so that two builds of a commit have the same bytes. Nothing is uploaded.
.PHONY: release
release: setup sbom ## Check the version, then build into dist/: wheel, bill of materials, notes, checksums (DRAFT=1: an unfinished one)
	@$(BIN)/python -m inflight.local.release check $${DRAFT:+--draft}
	version="$$($(BIN)/python -m inflight.local.release version)"
	rm -rf dist && mkdir dist
	SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct)" $(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --no-build-isolation --wheel-dir dist .
	cp build/inflight.cdx.json "dist/inflight-$$version.cdx.json"
	$(BIN)/python -m inflight.local.release notes > "dist/inflight-$$version-notes.md"
	cd dist && sha256sum -- * > SHA256SUMS && cat SHA256SUMS

.PHONY: format
format: setup ## Format the code and mend what ruff can
	@$(BIN)/ruff check --fix . || true
	$(BIN)/ruff format .

.PHONY: requirements
requirements: setup ## Compile requirements.txt and those of the image from pyproject.toml (the only target that resolves versions)
	@tools="$$(mktemp -d)"; trap 'rm -rf "$$tools"' EXIT
	$(BIN)/python -m venv "$$tools/venv"
	"$$tools/venv/bin/python" -m pip install --quiet pip-tools
	compiled() { # FILE ARGUMENTS: the head of the file stays, and so does each version that still fits
		grep '^#' "$$1" > "$$tools/header"
		cp requirements.txt "$$tools/compiled.txt"
		"$$tools/venv/bin/pip-compile" --quiet "$${@:2}" --generate-hashes --strip-extras --allow-unsafe --no-header --no-annotate \
			--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --output-file "$$tools/compiled.txt" pyproject.toml
		{ cat "$$tools/header"; grep -v '^#' "$$tools/compiled.txt"; } > "$$tools/whole.txt"
		cp "$$tools/whole.txt" "$$1"
	}
	compiled requirements.txt --extra engine --extra tracing --extra dev
	compiled requirements-image.txt --extra engine --extra tracing
	compiled requirements-build.txt --all-build-deps --only-build-deps

.PHONY: clean
clean: ## Remove what was built and the data under var/; .venv and .cache stay
	@rm -rf build dist var mutants spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -not -path './.venv/*' -not -path './.cache/*' -prune -exec rm -rf {} +
