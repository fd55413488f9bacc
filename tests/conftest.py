"""What every test shares: a clean torch, a fixed random state, and the data sets where there are any."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ["MPLBACKEND"] = "Agg"

import hypothesis
import numpy as np
import pytest
import torch

from tests import checked_calls

checked_calls.install()

pytest.register_assert_rewrite("tests.contracts")

if "PYTEST_XDIST_WORKER" in os.environ:
    # as many threads as asked for (make test THREADS=4), and not all cores in every worker
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # jobs in the background of a shell ignore Ctrl-C, which some tests send
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("orbitwise", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("orbitwise")


@pytest.fixture(autouse=True)
def clean_torch() -> Iterator[None]:
    """Start each test from float32 and seed 0, and let nothing of its global state reach the next one."""
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_rng_state(torch_state)
    np.random.set_state(numpy_state)  # noqa: NPY002


def why_no_data(*names: str) -> str | None:
    """Return why the data sets called `names` cannot be read, or None where they can."""
    folder = os.environ.get("ORBITWISE_DATA")
    if not folder:
        return "ORBITWISE_DATA is not set: point it to the folder that holds the data sets"
    missing = [name for name in names if not (Path(folder) / f"{name}.npz").is_file()]
    if missing:
        return f"ORBITWISE_DATA has no {', '.join(name + '.npz' for name in missing)}"
    return None if Path(folder).is_dir() else "ORBITWISE_DATA names a folder that does not exist"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs data or a GPU where they are not there; check first calls again."""
    checked_calls.Test.number += 1
    for marker in item.iter_markers("requires_data"):
        if reason := why_no_data(*marker.args):
            pytest.skip(reason)
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA GPU here")


@pytest.fixture
def data() -> Path:
    """The folder named by ORBITWISE_DATA; a test that asks for it is skipped where there is none."""
    if reason := why_no_data():
        pytest.skip(reason)
    return Path(os.environ["ORBITWISE_DATA"])
