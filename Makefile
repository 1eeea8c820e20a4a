# Every target runs in .venv; `make setup` makes it. With uv on the path it is faster.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= out
STEPS ?= 30
KILLS ?= 10
RANKS ?= 4
SETTINGS ?=
CONFIG ?= jobs/configs/demo.toml
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: setup demo train shards report test test-slow check format bench bench-peers curves loss-curves chaos gpu-check clean

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	@if command -v uv >/dev/null; then \
	  { test -d $(VENV) || uv venv --python $(PYTHON) $(VENV); } && \
	  UV_FIND_LINKS="$$PIP_FIND_LINKS" uv pip install --python $(BIN)/python -e '.[dev]'; \
	else \
	  { test -d $(VENV) || $(PYTHON) -m venv $(VENV); } && $(BIN)/pip install -q -e '.[dev]'; \
	fi
	touch $@

demo: setup
	$(BIN)/python -m jobs.demo $(OUT)/demo-corpus
	$(BIN)/steelyard build --config $(CONFIG) --out $(OUT)/demo
	$(BIN)/steelyard verify $(OUT)/demo
	$(BIN)/steelyard report $(OUT)/demo
	$(MAKE) train STEPS=5

# The demo's token stores under a plan of small steps, and a small model on four processes; on eight,
# tp 2 cp 2 pp 2: make train RANKS=8 SETTINGS="--set mesh.tp_size=2"
train: setup
	test -d $(OUT)/demo-corpus || $(BIN)/python -m jobs.demo $(OUT)/demo-corpus
	$(BIN)/steelyard build --config jobs/configs/train-shards.toml --out $(OUT)/train-shards \
	  --set shards.store=$(OUT)/demo/store --quiet
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node $(RANKS) -m trainer --shards $(OUT)/train-shards \
	  --config jobs/configs/train.toml --set run.steps=$(STEPS) $(SETTINGS) > $(OUT)/train.jsonl

shards: setup
	$(BIN)/steelyard build --config $(CONFIG) --out $(OUT)/shards

report: setup
	$(BIN)/steelyard report $(OUT)/demo

test: setup
	$(BIN)/python -m pytest

test-slow: setup
	$(BIN)/python -m pytest -m slow

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python -m jobs.bench.tables --check

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m jobs.bench.run
	$(BIN)/python -m jobs.bench.tables

# Other tools, each in an environment of its own below $(OUT)/peers, on a corpus made there.
bench-peers: setup
	$(BIN)/python -m jobs.bench.peers.run --cache $(OUT)/peers
	$(BIN)/python -m jobs.bench.tables

# The figures, pictures and tables of docs/CHOOSING.md; some ten minutes on two cores.
curves: setup
	$(BIN)/python -m jobs.bench.curves
	$(BIN)/python -m jobs.bench.tables

# The losses of docs/TRAINING.md, on the demo's token stores; some ten CPU minutes a core on two cores.
loss-curves: setup
	test -d $(OUT)/demo-corpus || $(BIN)/python -m jobs.demo $(OUT)/demo-corpus
	OMP_NUM_THREADS=1 $(BIN)/python -m jobs.bench.loss_curves --store $(OUT)/demo/store \
	  --sets $(OUT)/loss-sets
	$(BIN)/python -m jobs.bench.tables

# Kills, flipped bits, damage, fuzzing and full disks; some ten minutes on two cores.
chaos: setup
	$(BIN)/python -m jobs.chaos --kills $(KILLS)

# On a machine with a CUDA device, some minutes: kernels, MFU of a layer, a profile, CP strategies.
gpu-check: setup
	$(BIN)/python -m jobs.gpu_check

clean:
	rm -rf $(OUT)
