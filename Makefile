# Two commands for a newcomer: make demo, make test. Everything is installed into .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# Python compiles a module when it is first imported: most modules of large packages never are.
INSTALL := $(PIP) install --no-compile

# What the kernels are compiled with in tests. PyTorch's wheels insist on an older one, without which they work as well.
NVRTC := $(INSTALL) --no-deps nvidia-cuda-nvrtc==13.5.37

.PHONY: demo test test-all-but-slurm test-slurm lint size docs lab clean

demo: $(VENV)/installed
	$(BIN)/broadsheet classify examples/articles.csv -o labels --overwrite \
	  --text-column title --text-column text --id-column id --truth-column category
	$(BIN)/broadsheet verify labels

# A GPU has one test at a time; all else shares two cores. Slurm's tests mostly wait, so they run beside the others.
test: $(VENV)/tested
	$(MAKE) --no-print-directory --jobs 2 test-all-but-slurm test-slurm
	$(BIN)/python -m pytest -m gpu

test-all-but-slurm: $(VENV)/tested
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not gpu" --ignore tests/test_slurm.py tests notebooks

test-slurm: $(VENV)/tested
	$(BIN)/python -m pytest -q tests/test_slurm.py

lint: $(VENV)/linted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Code lines by room. Fails above .ci/budget.
size:
	@$(PYTHON) .ci/size

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
	$(INSTALL) -e .
	@touch $@

$(VENV)/tested: pyproject.toml | $(VENV)/python
	$(INSTALL) -e '.[test]'
	$(NVRTC)
	@touch $@ $(VENV)/installed

$(VENV)/documented: pyproject.toml | $(VENV)/python
	$(INSTALL) -e '.[docs]'
	@touch $@ $(VENV)/installed

$(VENV)/lab: pyproject.toml | $(VENV)/python
	$(INSTALL) -e '.[notebook]'
	@touch $@ $(VENV)/installed

$(VENV)/linted: pyproject.toml | $(VENV)/python
	$(INSTALL) -e '.[dev]'
	$(NVRTC)
	@touch $@ $(VENV)/installed $(VENV)/tested
