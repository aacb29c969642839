# Two commands for a newcomer: make demo, make test. Everything is installed into .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

# What the kernels are compiled with in tests. PyTorch's wheels insist on an older one, without which they work as well.
NVRTC := $(PIP) install --no-deps nvidia-cuda-nvrtc==13.5.37

.PHONY: demo test lint docs lab clean

demo: $(VENV)/installed
	$(BIN)/broadsheet classify examples/articles.csv -o labels --overwrite \
	  --text-column title --text-column text --id-column id --truth-column category
	$(BIN)/broadsheet verify labels

# GPUs, and a Slurm of network namespaces, want the machine to themselves; all else shares two cores.
test: $(VENV)/tested
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not gpu and not slurm"
	$(BIN)/python -m pytest -m "gpu or slurm"

lint: $(VENV)/linted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, into site/. Fails on a broken link.
docs: $(VENV)/documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lab: $(VENV)/lab
	$(BIN)/jupyter lab notebooks

clean:
	rm -rf $(VENV) labels site

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than Python 3.11: run make PYTHON=python3.11 (or newer)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: pyproject.toml | $(VENV)/python
	$(PIP) install -e .
	@touch $@

$(VENV)/tested: pyproject.toml | $(VENV)/python
	$(PIP) install -e '.[test]'
	$(NVRTC)
	@touch $@ $(VENV)/installed

$(VENV)/documented: pyproject.toml | $(VENV)/python
	$(PIP) install -e '.[docs]'
	@touch $@ $(VENV)/installed

$(VENV)/lab: pyproject.toml | $(VENV)/python
	$(PIP) install -e '.[notebook]'
	@touch $@ $(VENV)/installed

$(VENV)/linted: pyproject.toml | $(VENV)/python
	$(PIP) install -e '.[dev]'
	$(NVRTC)
	@touch $@ $(VENV)/installed $(VENV)/tested
