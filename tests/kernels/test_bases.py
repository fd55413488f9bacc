"""The table of base kernels: every entry can be made, named again, and stands for a covariance."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.kernels.bases import ALIASES, BASES, name_of


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
