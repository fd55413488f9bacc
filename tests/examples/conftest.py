"""Scripts leave their figures open, so that the gallery can show them: here they are closed."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(scope="module", autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")
