# The two most important commands: `make run` starts a broker, and `make test` runs the tests. Both install what they
# need.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
PORT   ?= 8080
DATA   ?= data
NODE   := .cache/node
ENGINES := .cache/engines
CONSOLE := .cache/console
KAFKA_JARS := .cache/kafka
KOTLIN := .cache/kotlin
SPARK4 := .cache/spark4
NEWEST_SPARK := .cache/spark-newest
STAGE  ?= dev
PREFIX ?= nakadi

BIN := $(VENV)/bin
export PYTHONPATH := layers/nakadi/python:glue_jobs:.
# Python keeps compiled modules, whatever the environment says: tests start hundreds of processes that import the
# package.
export PYTHONDONTWRITEBYTECODE :=
export NAKADI_CONSOLE ?= $(CURDIR)/$(CONSOLE)/built

.PHONY: help setup run console jobs kill-jobs published test test-long test-all test-engines test-aws-local test-workers test-spark test-install simulate mutants soak lasting storms attacks clients types check format bench bench-aws bench-kafka bench-console compare calls lock synth diff bootstrap deploy deploy-data destroy destroy-data wheel clean

help:
	@echo 'make run [PORT=8080] [DATA=data]   start a broker on this machine; WORKERS=1 uses one core'
	@echo 'make run ENGINE=kafka              the same with its events in Kafka; KAFKA=host:9092 uses a running one'
	@echo 'make run ENGINE=aws-local          the deployment on AWS, on this machine; STRICT=1 with its roles and limits'
	@echo 'make console                       rebuild the console, and check its types'
	@echo 'make jobs [DATA=data]              update tables and statistics, and remove expired events'
	@echo 'make jobs FOLLOW=1                 keep the tables up to date until you interrupt it'
	@echo 'make kill-jobs [KILLS=20]          kill each job again and again, and check the results (minutes)'
	@echo 'make published [SEEDS=20]          publish events of random shapes, run jobs, and compare the tables value by value'
	@echo 'make test [ARGS=tests/unit]        run the tests'
	@echo 'make test-long                     run the tests that make test leaves out because they take long'
	@echo 'make test-all [SEED=7]             run both, with more examples, moments and engines, and with new seeds'
	@echo 'make test-engines                  all tests on Kafka, contracts on DynamoDB Local and kinesalite (Maven and a JDK)'
	@echo 'make test-aws-local [STRICT=1]     every end-to-end test and command, and Spark, against the deployment on this machine (minutes)'
	@echo 'make test-workers                  every end-to-end test against a broker of two workers (minutes)'
	@echo 'make test-install [LOWEST=1]       install the wheel from a registry, with each extra, for each Python (minutes)'
	@echo 'make check                         formatting, lint, types, import rule'
	@echo 'make simulate [SEEDS=1000] [FIRST=0]  run simulated worlds of subscriptions'
	@echo 'make mutants [SEEDS=5000]          break the code in one place at a time, and see the simulation find it'
	@echo 'make soak [MINUTES=10] [ENGINE=kafka] [WORKERS=2]  kill consumers and servers of a subscription, and count what arrives; or ENGINE=aws-local'
	@echo 'make lasting [MINUTES=60] [ENGINE=kafka|aws-local] [JOBS=1]  everything that clients do, and what grows meanwhile; files go to lasting/'
	@echo 'make storms [SEEDS=3]              let calls to AWS fail in every way, and count losses'
	@echo 'make test-spark                    the sources and targets of Spark 4, with 4.0 and the newest version (minutes)'
	@echo 'make attacks                       attack a broker on this machine with hostile requests (two minutes)'
	@echo 'make clients                       generate clients in Python and Java, and use them (Java needs Maven and a JDK)'
	@echo 'make types                         compile what `nakadi types` writes, in each language (Kotlin needs Maven and a JDK)'
	@echo 'make format                        fix the formatting'
	@echo 'make bench                         measure, and compare the figures with their aims (half an hour)'
	@echo 'make bench-aws                     count the calls to AWS, and measure functions (a quarter of an hour)'
	@echo 'make bench-kafka                   measure publishing and streaming with events in Kafka (minutes)'
	@echo 'make bench-console [SECONDS=60]    measure the console in a browser: first paint, size, the live tail'
	@echo 'make compare A=URL B=URL           compare two brokers on this machine'
	@echo 'make calls                         count the function calls of a publication, a delivery and a commit'
	@echo 'make synth [STAGE=dev] [CONTEXT=]  write the templates for AWS into cdk.out'
	@echo 'make deploy [STAGE=dev] [CONTEXT=] deploy to AWS, as docs/deploy.md explains'
	@echo 'make wheel                         build the wheel and the source distribution into dist, with the console'
	@echo 'make lock                          recompile requirements/*.in'

ifeq ($(ENGINE),aws-local)
run: $(VENV)/.test $(NODE)/.test $(BIN)/nakadi $(CONSOLE)/.run
	@exec $(BIN)/python -m infra.laptop --port $(PORT) $(if $(STRICT),--strict) $(ARGS)
else ifeq ($(ENGINE),kafka)
run: $(VENV)/.run $(VENV)/.kafka $(if $(KAFKA),,$(KAFKA_JARS)/.jars) $(BIN)/nakadi $(CONSOLE)/.run
	@KAFKA=$(KAFKA) exec $(BIN)/python -m infra.laptop.kafka_local --port $(PORT) --data '$(DATA)' $(if $(WORKERS),--workers $(WORKERS)) $(ARGS)
else ifneq ($(filter-out embedded,$(ENGINE)),)
run:
	@echo 'ENGINE=$(ENGINE) is unknown: choose embedded, which is the default, kafka, or aws-local' >&2; exit 2
else
run: $(VENV)/.run $(BIN)/nakadi $(CONSOLE)/.run
	@exec $(BIN)/python -m nakadi.local --port $(PORT) --data '$(DATA)' $(if $(WORKERS),--workers $(WORKERS)) $(ARGS)
endif

console: $(VENV)/.run
	@console/build.sh $(BIN)/python --dev
	@$(CONSOLE)/bin/node console/node_modules/typescript/bin/tsc --project console --noEmit

jobs: $(VENV)/.test $(BIN)/nakadi
	@$(BIN)/nakadi jobs $(if $(FOLLOW),follow --data '$(DATA)',all --data '$(DATA)' --plots '$(DATA)/plots') $(ARGS)

kill-jobs: $(VENV)/.test
	@$(BIN)/python -m tests.support.kill_jobs $(or $(KILLS),20)

published: $(VENV)/.test
	@$(BIN)/python -m tests.support.published $(or $(SEEDS),20) $(SEED)

# Installs all that `make check` and `make test` need, so that they do not reach a package registry themselves.
setup: $(VENV)/.test $(NODE)/.test $(NODE)/.cdk $(CONSOLE)/.test $(if $(KAFKA),,$(KAFKA_JARS)/.test) tests/__pycache__/.compiled

# Tests wait half of the time, so six processes keep two processors busy.
test: setup
	@$(BIN)/python -m pytest $(or $(ARGS),tests -n 6 --no-loadscope-reorder) $(if $(SEED),--hypothesis-seed=$(SEED))

# The tests that `make test` leaves out because they take a long time.
test-long: setup
	@$(BIN)/python -m pytest $(or $(ARGS),tests -n 4 --no-loadscope-reorder) -m long

# All tests, on more examples and engines. Random tests begin with a new seed, which the run prints.
test-all:
	@TEST_ALL=1 SEED=$(or $(SEED),$(shell date +%s)) $(MAKE) --no-print-directory test

# Tests on a real Kafka, and on two emulations that nobody developed the engines with: tests that pass there are likely
# to hold on AWS.
test-engines: $(VENV)/.test $(NODE)/.test $(ENGINES)/.test $(if $(KAFKA),,$(KAFKA_JARS)/.jars)
	@OTHER_ENGINES=1 $(BIN)/python -m pytest tests/contracts tests/unit/engines/kinesis/test_event_log_resharding.py tests/e2e \
		-k 'dynamodb-local or kinesalite or kafka' $(ARGS)

test-aws-local: $(VENV)/.test $(NODE)/.test
	@AWS_LOCAL=all AWS_LOCAL_STRICT=$(STRICT) $(BIN)/python -m pytest tests/e2e tests/cli tests/spark -k aws-local \
		-m 'long or not long' $(ARGS)

# Installs from a registry, for each Python on this machine and each extra. LOWEST=1 installs the oldest allowed
# versions.
test-install: $(VENV)/.test
	@$(BIN)/python -m tests.install $(if $(LOWEST),--lowest) $(ARGS)

test-workers: $(VENV)/.test
	@TWO_WORKERS=all $(BIN)/python -m pytest $(or $(ARGS),tests/e2e) -k two-workers

# The jobs use another Spark, so this one is in its own folder, which precedes theirs.
test-spark: $(VENV)/.test $(NODE)/.test $(SPARK4)/.installed $(NEWEST_SPARK)/.installed $(if $(KAFKA),,$(KAFKA_JARS)/.test)
	@PYTHONPATH='$(CURDIR)/$(SPARK4)' $(BIN)/python -m pytest tests/spark4 -m long $(ARGS)
	@PYTHONPATH='$(CURDIR)/$(NEWEST_SPARK)' $(BIN)/python -m pytest tests/spark4 -m long $(ARGS)

check: $(VENV)/.test
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

simulate: $(VENV)/.test
	@WORKERS=$(or $(WORKERS),$(shell nproc)) $(BIN)/python -m tests.simulation $(or $(SEEDS),1000) $(FIRST)

mutants: $(VENV)/.test
	@$(BIN)/python -m tests.simulation.mutants $(or $(SEEDS),5000)

soak: $(VENV)/.test $(if $(filter kafka,$(ENGINE)),$(VENV)/.kafka $(KAFKA_JARS)/.jars)
	@$(BIN)/python -u -m tests.soak $(or $(MINUTES),10) $(ENGINE)

lasting: $(VENV)/.test $(if $(filter kafka,$(ENGINE)),$(VENV)/.kafka $(KAFKA_JARS)/.jars)
	@$(BIN)/python -u -m tests.soak.lasting $(or $(MINUTES),60) $(if $(ENGINE),--engine $(ENGINE)) $(if $(JOBS),--jobs) $(ARGS)

storms: $(VENV)/.test
	@$(BIN)/python -m tests.storms $(or $(STEPS),1500) $(or $(FIRST),1) $(or $(SEEDS),3)

attacks: $(VENV)/.test
	@ATTACKS=long $(BIN)/python -m pytest tests/attacks $(ARGS)

clients: $(VENV)/.test
	@$(BIN)/python -m pytest -q tests/clients
	@$(BIN)/python -m tests.clients .cache/clients

types: $(VENV)/.test $(CONSOLE)/.test $(KOTLIN)/.jars
	@$(BIN)/python -m pytest tests/cli/test_types.py tests/cli/test_types_compiled.py -m 'long or not long' $(ARGS)

format: $(VENV)/.test
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

BENCH := .cache/bench

bench: $(VENV)/.test
	@mkdir -p $(BENCH)
	$(BIN)/python benchmarks/schemas.py
	$(BIN)/python benchmarks/registry.py
	$(BIN)/python benchmarks/event_shapes.py --json $(BENCH)/event_shapes.json
	$(BIN)/python benchmarks/publish.py --json $(BENCH)/publish.json
	$(BIN)/python benchmarks/workers.py --workers 2,4,8 --rounds 3 --json $(BENCH)/workers.json
	$(BIN)/python benchmarks/stream.py --json $(BENCH)/stream.json
	$(BIN)/python benchmarks/subscriptions.py --json $(BENCH)/subscriptions.json
	$(BIN)/python benchmarks/archive.py --json $(BENCH)/archive.json
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/coordination.py --seconds 60 --json $(BENCH)/coordination.json
	$(BIN)/python benchmarks/aims.py $(BENCH)

compare: $(VENV)/.test
	@$(BIN)/python benchmarks/compare.py $(A) $(B) $(ARGS)

bench-kafka: $(VENV)/.test $(VENV)/.kafka $(if $(KAFKA),,$(KAFKA_JARS)/.jars)
	$(BIN)/python benchmarks/kafka.py $(ARGS)

bench-console: $(VENV)/.run $(CONSOLE)/.test
	$(BIN)/python benchmarks/console.py --seconds $(or $(SECONDS),60) $(ARGS)

calls: $(VENV)/.test
	@$(BIN)/python benchmarks/calls.py $(ARGS)

bench-aws: $(VENV)/.test $(NODE)/.test
	$(BIN)/python benchmarks/aws.py
	$(BIN)/python benchmarks/kinesis.py

lock: $(VENV)/.test
	$(BIN)/uv pip compile -q $(LOCK) requirements/test.in -o requirements/test.txt
	$(BIN)/uv pip compile -q $(LOCK) -c requirements/test.txt requirements/run.in -o requirements/run.txt
	$(BIN)/uv pip compile -q $(LOCK) -c requirements/test.txt requirements/build.in -o requirements/build.txt
	$(BIN)/uv pip compile -q $(LOCK) -c requirements/test.txt requirements/kafka.in -o requirements/kafka.txt
	$(BIN)/uv pip compile -q $(LOCK) requirements/spark4.in -o requirements/spark4.txt
	$(BIN)/uv pip compile -q $(LOCK) requirements/spark-newest.in -o requirements/spark-newest.txt
	$(BIN)/uv pip compile -q $(LOCK) -c requirements/test.txt requirements/deploy.in -o requirements/deploy.txt
	$(BIN)/uv pip compile -q $(LOCK_LAYER) -c requirements/test.txt layers/dependencies/requirements.in \
		-o layers/dependencies/requirements.txt
	$(BIN)/uv pip compile -q $(LOCK_LAYER) -c requirements/test.txt layers/kafka/requirements.in \
		-o layers/kafka/requirements.txt
	$(BIN)/uv pip compile -q $(LOCK:--universal=--python-platform aarch64-manylinux_2_28) -c requirements/test.txt \
		services/streaming/requirements.in -o services/streaming/requirements.txt
	$(BIN)/uv pip compile -q $(LOCK:--universal=--python-platform aarch64-manylinux_2_28) -c requirements/test.txt \
		functions/queries/requirements.in -o functions/queries/requirements.txt

# `python -m build` also builds a wheel, without the console, and says that the console is missing.
wheel: $(VENV)/.build $(CONSOLE)/.run
	@test -e $(CONSOLE)/built/index.html
	@$(BIN)/python -m hatchling build -d dist

CDK      := .cache/cdk
IN_STAGE  = -c stage=$(STAGE) -c name_prefix=$(PREFIX) $(CONTEXT)
CDK_RUN   = @PATH="$(CURDIR)/$(CDK)/bin:$$PATH" CDK_DISABLE_CLI_TELEMETRY=true \
            node $(CDK)/node_modules/aws-cdk/bin/cdk

# These commands need no AWS account and no Docker. CONTEXT is for example '-c shards=4 -c alarm_email=me@example.org'.
synth: $(VENV)/.deploy $(CDK)/.cli $(CDK)/.layer $(CONSOLE)/.run
	$(CDK_RUN) synth --quiet $(IN_STAGE)

# These commands need an AWS account. docs/deploy.md explains them one after the other.
bootstrap: $(VENV)/.deploy $(CDK)/.cli $(CDK)/.layer
	$(CDK_RUN) bootstrap $(IN_STAGE)

diff: $(VENV)/.deploy $(CDK)/.cli $(CDK)/.layer $(CONSOLE)/.run
	$(CDK_RUN) diff $(IN_STAGE)

# Deploys only the stores of data: the stage into which a backup is restored.
deploy-data: $(VENV)/.deploy $(CDK)/.cli $(CDK)/.layer $(CONSOLE)/.run
	$(CDK_RUN) deploy --exclusively $(PREFIX)-$(STAGE)-data $(IN_STAGE)

deploy: $(VENV)/.deploy $(CDK)/.cli $(CDK)/.layer $(CONSOLE)/.run
	$(CDK_RUN) deploy --all $(IN_STAGE)

destroy: $(VENV)/.deploy $(CDK)/.cli
	$(CDK_RUN) destroy --exclusively $(PREFIX)-$(STAGE)-analytics $(PREFIX)-$(STAGE) $(IN_STAGE)

# Deletes the stored data, too. This works only after a deployment with '-c keep_data=false'.
destroy-data: $(VENV)/.deploy $(CDK)/.cli
	$(CDK_RUN) destroy --exclusively $(PREFIX)-$(STAGE)-data $(IN_STAGE) -c keep_data=false

LOCK := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
        --custom-compile-command 'make lock'
LOCK_LAYER := --python-version 3.13 --python-platform aarch64-manylinux_2_28 --only-binary :all: \
        --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

clean:
	rm -rf $(VENV) $(NODE) $(CONSOLE) console/node_modules $(ENGINES) $(KAFKA_JARS) $(KOTLIN) $(SPARK4) $(NEWEST_SPARK) .mypy_cache .pytest_cache .ruff_cache cdk.out

# Stamp files record what is installed. A changed requirements file causes a new installation.
$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Python 3.11 or newer is needed'; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: requirements/run.txt | $(VENV)/.venv
	@echo 'Setting up (once)...'
	@$(BIN)/pip install -q --disable-pip-version-check -r requirements/run.txt
	@touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.run
	@echo 'Setting up the tests (once, some minutes)...'
	@$(BIN)/pip install -q --disable-pip-version-check -r requirements/test.txt
	@touch $@

$(VENV)/.deploy: requirements/deploy.txt | $(VENV)/.venv
	@echo 'Setting up the deployment (once)...'
	@$(BIN)/pip install -q --disable-pip-version-check -r requirements/deploy.txt
	@touch $@

# Installs what builds a wheel, and nothing that only runs or tests need.
$(VENV)/.build: requirements/build.txt | $(VENV)/.venv
	@$(BIN)/pip install -q --disable-pip-version-check -r requirements/build.txt
	@touch $@

# The command line, from this checkout.
$(BIN)/nakadi: scripts/console-script $(VENV)/.run
	@$(BIN)/python scripts/console-script $@

# Installs a local Kinesis, for the event log's tests.
$(NODE)/.test: tests/support/node/package-lock.json tests/support/node/setup.sh | $(VENV)/.venv
	@tests/support/node/setup.sh $(BIN)/python $(NODE)
	@touch $@

# The CDK unpacks 200 MB below the home folder at its first use. If it cannot write there, each process of its tests
# does so.
$(NODE)/.cdk: $(VENV)/.test $(NODE)/.test
	@PATH="$$PATH:$(CURDIR)/$(NODE)/bin" $(BIN)/python -c 'import aws_cdk' >/dev/null 2>&1 || true
	@touch $@

# Builds the console. If this fails, brokers run without the console, and its tests are skipped.
CONSOLE_SOURCES := $(shell find console -type f -not -path '*/node_modules/*' -not -name openapi.d.ts)

$(CONSOLE)/.run: $(CONSOLE_SOURCES) | $(VENV)/.venv
	@echo 'Building the console (once)...'
	@console/build.sh $(BIN)/python && touch $@ || echo 'The console could not be built; the broker works without it.' >&2

$(CONSOLE)/.test: $(CONSOLE_SOURCES) | $(VENV)/.run
	@console/build.sh $(BIN)/python --dev && touch $@ || echo 'The console could not be built: its tests are skipped.' >&2

# Compiles all modules. In a new checkout, all test processes would compile them at the same time, for ten seconds each.
tests/__pycache__/.compiled: $(VENV)/.test | $(NODE)/.cdk
	@$(BIN)/python -m pytest -qq --collect-only tests >/dev/null 2>&1 || true
	@touch $@

# Installs another local DynamoDB and another local Kinesis, for `make test-engines`.
$(ENGINES)/.test: tests/support/others/package-lock.json tests/support/others/pom.xml | $(VENV)/.venv
	@command -v mvn >/dev/null && command -v javac >/dev/null || { echo 'Maven and a JDK (17 or newer) are needed'; exit 1; }
	@tests/support/node/setup.sh $(BIN)/python $(ENGINES) tests/support/others
	@mvn -B -q -f tests/support/others/pom.xml '-Dtarget=$(CURDIR)/$(ENGINES)/dynamodb' \
		'-Dmaven.repo.local=$(CURDIR)/$(ENGINES)/maven' dependency:copy-dependencies
	@touch $@

# Installs the client library of Kafka, for brokers that keep their events in Kafka.
$(VENV)/.kafka: requirements/kafka.txt $(VENV)/.run
	@$(BIN)/pip install -q --disable-pip-version-check -r requirements/kafka.txt
	@touch $@

# Installs Kafka itself. If this fails, `make test` runs without it.
$(KAFKA_JARS)/.jars: infra/laptop/kafka_local.pom.xml
	@command -v mvn >/dev/null || { echo 'Maven is needed to get Kafka; KAFKA=host:9092 names one that runs' >&2; exit 1; }
	@mkdir -p $(KAFKA_JARS)
	@mvn -B -q -Dstyle.color=never -f infra/laptop/kafka_local.pom.xml '-Dtarget=$(CURDIR)/$(KAFKA_JARS)' \
		'-Dmaven.repo.local=$(CURDIR)/$(KAFKA_JARS)/maven' dependency:copy-dependencies
	@touch $@

$(KAFKA_JARS)/.test: infra/laptop/kafka_local.pom.xml
	@$(MAKE) -s $(KAFKA_JARS)/.jars && touch $@ || echo 'Kafka could not be had: tests on it are skipped.' >&2

# Installs the Kotlin compiler, for `make types`. Without it, its tests are skipped.
$(KOTLIN)/.jars: tests/support/types/kotlin.pom.xml
	@command -v mvn >/dev/null || { echo 'Maven is needed to get the compiler of Kotlin' >&2; exit 1; }
	@mkdir -p $(KOTLIN)
	@mvn -B -q -Dstyle.color=never -f tests/support/types/kotlin.pom.xml '-Dtarget=$(CURDIR)/$(KOTLIN)' \
		'-Dmaven.repo.local=$(CURDIR)/$(KOTLIN)/maven' dependency:copy-dependencies
	@touch $@

$(SPARK4)/.installed: requirements/spark4.txt tests/support/spark4.pom.xml | $(VENV)/.venv
	@echo 'Setting up Spark 4 (once)...'
	@rm -rf $(SPARK4)
	@$(BIN)/pip install -q --disable-pip-version-check --target $(SPARK4) -r requirements/spark4.txt
	@mvn -B -q -Dstyle.color=never -f tests/support/spark4.pom.xml '-Dtarget=$(CURDIR)/$(SPARK4)/iceberg' \
		'-Dmaven.repo.local=$(CURDIR)/$(SPARK4)/maven' dependency:copy-dependencies || \
		echo 'Iceberg for Spark 4 could not be had: the test that needs it is skipped.' >&2
	@touch $@

$(NEWEST_SPARK)/.installed: requirements/spark-newest.txt | $(VENV)/.venv
	@echo 'Setting up the newest Spark (once)...'
	@rm -rf $(NEWEST_SPARK)
	@$(BIN)/pip install -q --disable-pip-version-check --target $(NEWEST_SPARK) -r requirements/spark-newest.txt
	@touch $@

# Installs the CDK's command line, and Node for it.
$(CDK)/.cli: infra/cli/package-lock.json infra/cli/setup.sh | $(VENV)/.venv
	@infra/cli/setup.sh $(BIN)/python $(CDK)
	@touch $@

# Builds the layers of Lambda functions, with wheels for Lambda's processors.
$(CDK)/.layer: layers/dependencies/requirements.txt scripts/build-layers | $(VENV)/.venv
	@mkdir -p $(CDK)
	@$(BIN)/python scripts/build-layers
	@touch $@
