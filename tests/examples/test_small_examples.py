"""Examples without options: each runs in seconds, and asserts its own numbers."""

import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OTHERS = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
"""Examples that have a test file of their own."""
SMALL = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in OTHERS)
SLOW = {"botorch_invariant_kernel", "a_tie", "intervals_on_real_data", "outliers", "shifted_signals"} | {
    "structure_in_words",
    "wide_convolutions",
}
"""Those that take longer than a second or two; and that which changes settings of GPyTorch."""
pytestmark = pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in SMALL]
)
def test_an_example_shows_what_it_says(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name])
    plt.switch_backend("agg")
    with plt.rc_context():
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    plt.close("all")


def test_there_are_enough_and_all_are_in_the_order_of_the_gallery():
    listed = (EXAMPLES.parent / "docs" / "gallery_order.txt").read_text(encoding="utf-8").split()
    found = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert len(found) >= 25
    assert sorted(listed) == found
    assert set(SMALL) > SLOW


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_asserts_its_own_numbers(path):
    assert any(line.lstrip().startswith("assert ") for line in path.read_text(encoding="utf-8").splitlines())
