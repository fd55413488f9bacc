from collections.abc import Callable

import pytest
from torch import Tensor

from orbitwise.process import double_sums, process


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of kernel evaluations of every tile that is computed, on either path."""
    calls: list[int] = []
    evaluate = process.jet

    def counted(*arguments, **options):
        found = evaluate(*arguments, **options)
        calls.append(found.value.numel())
        return found

    def counting(computed: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def counted(*arguments):
            found = computed(*arguments)
            calls.append(found.numel())
            return found

        return counted

    monkeypatch.setattr(process, "jet", counted)
    monkeypatch.setattr(double_sums._Side, "exponents", counting(double_sums._Side.exponents))
    monkeypatch.setattr(double_sums, "_own_exponents", counting(double_sums._own_exponents))
    return calls
