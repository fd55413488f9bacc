import pytest

from orbitwise.process import double_sums, process


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of kernel evaluations of every tile that is computed, on either path."""
    calls: list[int] = []
    evaluate, multiply = process.jet, double_sums._Side.exponents

    def counted(*arguments, **options):
        found = evaluate(*arguments, **options)
        calls.append(found.value.numel())
        return found

    def counted_tile(*arguments):
        found = multiply(*arguments)
        calls.append(found.numel())
        return found

    monkeypatch.setattr(process, "jet", counted)
    monkeypatch.setattr(double_sums._Side, "exponents", counted_tile)
    return calls
