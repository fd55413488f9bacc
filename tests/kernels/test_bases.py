"""The table of base kernels, their constraints, and where learning starts."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.kernels import parse, start
from orbitwise.kernels.bases import ALIASES, BASES, log_positive, name_of

RANDOM = np.random.default_rng(7)
X = RANDOM.uniform(1960, 2000, 150)
Y = 20 * np.sin(2 * np.pi * X / 3.0) + 5 * np.sin(2 * np.pi * X / 0.9) + 3


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("is_ard", [False, True])
def test_every_base_is_positive_semidefinite_and_knows_its_name(name: str, is_ard: bool):
    base = BASES[name]
    width = 1 if name == "cosine" else 2
    kernel = base.make(width, is_ard, None, None).double()
    x = torch.rand(20, width, dtype=torch.float64)
    with torch.no_grad():
        gram = kernel(x).to_dense()
    assert gram.shape == (20, 20)
    assert float(torch.linalg.eigvalsh(gram)[0]) > -1e-8 * float(gram.diagonal().max())
    assert name_of(kernel) == (name, None if base.option is None else base.option[1])
    assert {f"raw_{each}" for each in base.positive} <= dict(kernel.named_parameters()).keys()
    for each in base.positive:
        constraint = getattr(kernel, f"raw_{each}_constraint")
        assert constraint.transform(torch.tensor(-2.0)).item() == pytest.approx(
            torch.tensor(-2.0).exp().item()
        )


def test_aliases_lead_to_names():
    assert set(ALIASES.values()) <= set(BASES)
    assert not set(ALIASES) & set(BASES)


def test_kernels_that_are_not_in_the_table_are_named():
    with pytest.raises(ValueError, match="ScaleKernel has no spelling; known are arc"):
        name_of(ScaleKernel(RBFKernel()))


@pytest.mark.parametrize("value", [1e-12, 1.0, 3e9])
def test_values_of_any_scale_are_their_logarithms(value: float):
    constraint = log_positive()
    raw = constraint.inverse_transform(torch.tensor(value, dtype=torch.float64))
    assert raw.item() == pytest.approx(torch.tensor(value).double().log().item())
    assert constraint.transform(raw).item() == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("seed", [None, 3])
def test_every_base_gets_a_finite_start_of_the_size_of_the_targets(name: str, seed: int | None):
    inputs = RANDOM.uniform(0, 1, (40, 1))
    kernel = start(parse(name, num_dims=1), inputs, Y[:40], seed=seed)
    with torch.no_grad():
        diagonal = kernel(torch.from_numpy(inputs)).to_dense().diagonal()
    assert bool(diagonal.isfinite().all())
    assert 0.05 < float(diagonal.mean()) < 20


def test_lengthscales_periods_and_centres_come_from_the_data():
    kernel = start(parse("rbf + rbf + periodic + periodic + cosine + linear", 1), X, Y, normalize_y=False)
    one, two, first, second, wave, line = kernel.kernels
    assert one.base_kernel.lengthscale.item() == pytest.approx(X.std())
    assert two.base_kernel.lengthscale.item() == pytest.approx(0.2 * X.std())
    assert first.base_kernel.period_length.item() == pytest.approx(3.0, rel=0.01)
    assert second.base_kernel.period_length.item() == pytest.approx(0.9, rel=0.01)
    # cos(π τ / p) repeats itself after 2p
    assert wave.base_kernel.period_length.item() == pytest.approx(1.5, rel=0.01)
    assert line.centre.item() == pytest.approx(X.mean())
    assert one.outputscale.item() == pytest.approx(Y.var() / 6)


def test_seeds_draw_starts_and_columns_have_their_own():
    inputs = np.stack([X, 0.01 * RANDOM.standard_normal(len(X))], 1)
    kernel = start(parse("rbf[1]*periodic[0]", 2), inputs, Y)
    factors = kernel.base_kernel.kernels
    assert factors[0].lengthscale.item() == pytest.approx(inputs[:, 1].std())
    assert factors[1].period_length.item() == pytest.approx(3.0, rel=0.01)
    values = [
        start(parse("rbf", 1), X, Y, seed=seed).base_kernel.lengthscale.item() for seed in (None, 1, 1, 2)
    ]
    assert values[1] == values[2] != values[3]
    assert values[0] == pytest.approx(X.std())


def test_what_is_not_learned_stays():
    kernel = parse("linear*linear", 1)
    start(kernel, X, Y)
    assert kernel.kernels[1].variance.item() == pytest.approx(1.0)
    assert kernel.kernels[0].variance.item() != pytest.approx(1.0)
