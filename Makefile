# Two commands do everything on a fresh machine: `make demo` and `make test`.

VENV := .venv
PYTHON := $(VENV)/bin/python
# Many tests wait for something: more processes than CPUs.
WORKERS ?= 4
# gRPC's core tells of every closed connection.
export GRPC_VERBOSITY := NONE

.PHONY: demo test soak vm lint protos picture bench bench-docs starter clean

demo: $(VENV)/.demo
	@$(VENV)/bin/cpupool demo

test: $(VENV)/.dev
	@echo "== style, spelling, types"
	@$(VENV)/bin/ruff format --check --quiet . && $(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/codespell
	@$(VENV)/bin/mypy
	@echo "== tests"
	@$(PYTHON) -m pytest -n $(WORKERS) --cov --cov-report= && $(PYTHON) tools/coverage_floor.py

# Properties with many times more examples, others in each run.
soak: $(VENV)/.dev
	@$(PYTHON) -m pytest -n $(WORKERS) --hypothesis-profile=soak tests/properties tests/unit tests/starter

# In virtual machines: all tests, or TEST=tests/vm/test_....py.
vm: $(VENV)/.dev
	@$(PYTHON) -m pytest -p no:xdist -v --log-cli-level=INFO $(or $(TEST),tests/vm)

lint: $(VENV)/.dev
	@$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

protos: $(VENV)/.dev
	@tools/protos.sh cpupool/api

picture: $(VENV)/.dev
	@$(PYTHON) -m docs.picture

bench: $(VENV)/.dev
	@$(PYTHON) -m benchmarks

# docs/benchmarks.md: how long choosing CPUs takes, and how good the choice is.
bench-docs: $(VENV)/.dev
	@$(PYTHON) -m benchmarks.choosing

# build/<machine>/process-starter, for each machine that a compiler is here for.
starter:
	@tools/starter.sh build

$(VENV)/.demo: pyproject.toml constraints.txt tools/setup.sh
	@tools/setup.sh $(VENV)

$(VENV)/.dev: pyproject.toml constraints.txt tools/setup.sh
	@tools/setup.sh $(VENV) dev

clean:
	rm -rf $(VENV) .venv-protos build .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
