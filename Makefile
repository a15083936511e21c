# `make demo`: train, kill a rank, look at the account. `make test`: all tests but the slow ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test stress explore lint bench clean

$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: $(VENV)/installed lint
	$(BIN)/python -m pytest -q -m 'not slow'

stress: $(VENV)/installed
	$(BIN)/python -m pytest -q -m slow

# The tests take the same examples each time; this one plays other histories of jobs at each call.
explore: $(VENV)/installed
	$(BIN)/python -m pytest -q --hypothesis-profile=explore tests/launcher/test_host_properties.py

# mypy does not see through pip's plain editable installs: it gets the packages as a tree of links.
lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/types/ftrun
	ln -sfn ../../../launcher ../../../monitor ../../../healthchecks ../../../configs build/types/ftrun/
	$(BIN)/mypy -p ftrun.launcher -p ftrun.monitor -p ftrun.healthchecks

bench: $(VENV)/installed
	$(BIN)/python benchmarks/recovery.py --launchers torchrun,ft_launcher,ftrun --faults 2 --rounds 3

clean:
	rm -rf $(VENV) build *.egg-info
