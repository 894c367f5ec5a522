# Two commands do everything on a fresh machine: `make demo` and `make test`.

VENV := .venv
PYTHON := $(VENV)/bin/python
# Many tests wait for something: more processes than CPUs.
WORKERS ?= 6
# Of `make soak`.
SEEDS ?= 50
ROUNDS ?= 3
# Where it is set, each of hundreds of processes compiles the package again.
export PYTHONDONTWRITEBYTECODE :=
# gRPC's core tells of every closed connection.
export GRPC_VERBOSITY := NONE

.PHONY: demo test soak soak-peers vm lint house protos picture bench bench-docs flood starter clean

demo: $(VENV)/.demo
	@$(VENV)/bin/cpupool demo

test: $(VENV)/.dev
	@echo "== style, spelling, types"
	@$(VENV)/bin/ruff format --check --quiet . && $(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/codespell
	@# Meanwhile one process compiles the tests for all that run them.
	@$(PYTHON) -m pytest --collect-only -qq -p no:xdist > /dev/null & \
		$(VENV)/bin/mypy; found=$$?; wait; exit $$found
	@echo "== tests"
	@$(PYTHON) -m pytest -n $(WORKERS) --cov --cov-report= && $(PYTHON) tools/coverage_floor.py

# For hours: properties with 60 times the examples, others in each run; SEEDS orders of trouble, and
# manager, plugins and runtime that die; all virtual machines and the container runtime ROUNDS times,
# with those that `make test` leaves out.
soak: $(VENV)/.dev
	@echo "== properties"
	@$(PYTHON) -m pytest -n $(WORKERS) --hypothesis-profile=soak \
		tests/properties tests/unit tests/starter tests/architecture
	@echo "== chaos: $(SEEDS) seeds, and every death"
	@CPUPOOL_CHAOS_SEEDS=$(SEEDS) $(PYTHON) -m pytest -n $(WORKERS) -v -m "" \
		tests/scenarios/test_chaos.py tests/scenarios/test_seed_deaths.py \
		tests/scenarios/test_resize_deaths.py
	@for round in $$(seq $(ROUNDS)); do \
		echo "== virtual machines and containerd: round $$round of $(ROUNDS)"; \
		$(PYTHON) -m pytest -n 2 -v -m "" tests/vm tests/containerd tests/kernel || exit 1; \
	done

# For 50 minutes: an agent with 256 MiB under bad peers, 10 minutes for each of five kinds;
# ARGS="--minutes 2 rapid_resets" for one kind.
soak-peers: $(VENV)/.dev
	@$(PYTHON) -m benchmarks.soak_peers $(ARGS)

# In virtual machines: all tests, or TEST=tests/vm/test_....py.
vm: $(VENV)/.dev
	@$(PYTHON) -m pytest -p no:xdist -v --log-cli-level=INFO $(or $(TEST),tests/vm)

lint: $(VENV)/.dev
	@$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

# What a reader meets: rooms, who imports whom, what is large, what stands in the wrong room, what
# one cause goes through; ARGS=--json for a program.
house: $(VENV)/.dev
	@$(PYTHON) -m tools.house --walks $(ARGS)

protos: $(VENV)/.dev
	@tools/protos.sh cpupool/api

picture: $(VENV)/.dev
	@$(PYTHON) -m docs.picture

bench: $(VENV)/.dev
	@$(PYTHON) -m benchmarks

# For 30 minutes: the webhook under 12,500 bad clients, beside a good one; ARGS="--minutes 1" for one.
flood: $(VENV)/.dev
	@$(PYTHON) -m benchmarks.flood $(ARGS)

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
