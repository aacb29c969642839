"""What tests share: seeded random models, AG News where you have it, and the command as a user runs it."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.config
import numpy as np
import pytest
from commands import start
from distributed import Client
from hypothesis import HealthCheck, settings
from jobs import Processes
from s3 import KEYS, proxy, s3, s3_server  # noqa: F401 - fixtures

from broadsheet.cluster import connect
from broadsheet.pipeline.cli import main
from broadsheet.pipeline.model.alphabet import PUBLISHED, Alphabet
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import layer_table
from broadsheet.pipeline.processes.child import FORKS, METHOD, OF_WORKERS

ROOT = Path(__file__).resolve().parent.parent
AG_NEWS = ["--columns", "class,title,description", "--text-column", "title", "--text-column", "description"]

# Tests start some hundreds of processes. If this variable stayed set, each of them would compile the project anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# If a shell starts the tests in the background, they and the commands that they start ignore Ctrl-C. Undo that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A session's cluster keeps the environment that it started with, so set the keys here. No test sees the user's own
# keys.
for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
    del os.environ[name]
os.environ |= {**KEYS, "AWS_REGION": "us-east-1"}

BEGAN_WITH = dict(os.environ)
"""The environment in which the session's processes start."""

ALL = bool(os.environ.get("BROADSHEET_TEST_ALL"))
"""Whether to run every example, as `.ci/tests --all` asks."""

MOST_CASES = int(os.environ.get("BROADSHEET_TEST_CASES", "0"))
"""The largest number of cases of a parametrised test to run, or 0 for all. `.ci/tests` sets it."""

NOT_OF_TESTS = {
    *("KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR", "_RJEM_MALLOC_CONF"),  # scikit-learn, PyTorch, Polars
    *("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED", "__DASK_PARENT_PID"),  # Dask
    *OF_WORKERS,
    "PYTEST_CURRENT_TEST",
}
"""Variables that libraries set in this process, and that do not count as changes by a test."""

Command = Callable[..., subprocess.CompletedProcess[str]]
CommandHere = Callable[..., tuple[int, str]]


@pytest.hookimpl(trylast=True)  # after the markers have selected tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep MOST_CASES cases of each parametrised test: the first, the last, and others evenly spaced between them."""
    if not MOST_CASES:
        return
    cases_of_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases_of_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for cases in cases_of_test.values():
        if len(cases) > MOST_CASES:
            left_out |= {*cases} - {cases[round(at)] for at in np.linspace(0, len(cases) - 1, MOST_CASES)}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    gc.freeze()  # spares the garbage collector the modules of all tests


def examples(count: int) -> int:
    """Return how many examples of a property to run. The default is a tenth of `count`, drawn anew in each run."""
    return count if ALL else max(count // 10, 5)


# No test depends on a clock. A run of all tests draws the same examples each time, so that a failure in CI repeats
# locally.
settings.register_profile(
    "broadsheet",
    deadline=None,
    derandomize=ALL,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("broadsheet")


def random_model(seed: int = 0, symbols: str = PUBLISHED, length: int = 1014, classes: int = 4) -> Model:
    """Return a model whose weights keep activations near one, so that scores differ between articles."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in layer_table(len(symbols), length, classes):
        for name, shape in layer.shapes.items():
            values = rng.standard_normal(shape, np.float32)
            if name.startswith("norm"):
                tensors[name] = values * np.float32(0.2) + np.float32(name.endswith("weight"))
            else:
                fan_in = 25 if len(shape) == 1 else np.prod(shape[1:]) / (20 if layer.name == "conv1" else 2)
                tensors[name] = values / np.float32(np.sqrt(fan_in))
    return Model(Alphabet(symbols), tuple(f"class {i}" for i in range(classes)), length, tensors)


@pytest.fixture(scope="session")
def model() -> Model:
    """A model in the published frame: 70 symbols, 1,014 characters, 4 classes."""
    return random_model()


@pytest.fixture(scope="session")
def small_model() -> Model:
    """A model with the shortest possible network, for tests that are not about the network."""
    return random_model(seed=1, length=123)


@pytest.fixture(scope="session")
def small_model_file(small_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.safetensors"
    small_model.save(path)
    return path


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """An embedded cluster of two worker processes."""
    with connect(workers=2) as found:
        yield found


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Processes of a cluster that the test starts."""
    found = Processes()
    yield found
    found.end()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless browser, driven by Playwright."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on the PATH (on Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def ag_news() -> Path:
    folder = Path(os.environ.get("BROADSHEET_DATA", ROOT.parent / "shared" / "data")) / "ag_news"
    if not (folder / "test.csv").is_file():
        pytest.skip(f"AG News is not redistributed with the project and not at {folder}; set BROADSHEET_DATA")
    return folder


@pytest.fixture(scope="session")
def broadsheet() -> Command:
    """A function that runs the installed command in a process of its own."""

    def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        process = start("broadsheet", *arguments, **options)
        try:
            output, errors = process.communicate(timeout=240)
        finally:
            process.kill()
        assert process.returncode is not None
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    return run


@pytest.fixture
def broadsheet_in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """A function that runs the command in this process, where everything is already imported.

    It takes the same arguments as `broadsheet`, and returns the same result.
    """
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGUSR1)]

    def run(*arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None):
        command = ["broadsheet", *map(str, arguments)]
        capsys.readouterr()
        with dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}), monkeypatch.context() as changed:
            changed.setattr(sys, "argv", command)
            changed.setattr(FORKS, "variables", {})  # from here on no worker is a fork, until a command sets this again
            for name, value in (env or {}).items():
                changed.setenv(name, value)
            if any(os.environ.get(name) != BEGAN_WITH.get(name) for name in {*os.environ, *BEGAN_WITH} - NOT_OF_TESTS):
                changed.setenv(METHOD, "spawn")  # forks start ten times as fast, but with the session's environment
            if cwd is not None:
                changed.chdir(cwd)
            with pytest.raises(SystemExit) as ended:
                main()
        return subprocess.CompletedProcess(command, int(ended.value.code or 0), *capsys.readouterr())

    yield run
    for number, handler in handlers:
        signal.signal(number, handler)


@pytest.fixture
def broadsheet_here(broadsheet_in_process: Command) -> CommandHere:
    """A function that runs the command in this process, and returns its exit code and all that it printed."""

    def run(*arguments: object) -> tuple[int, str]:
        completed = broadsheet_in_process(*arguments)
        return completed.returncode, completed.stdout + completed.stderr

    return run
