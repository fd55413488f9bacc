"""Positive hyperparameters held as logarithms."""

import pytest
import torch

from orbitwise.kernels.bases import log_positive


@pytest.mark.parametrize("value", [1e-12, 1.0, 3e9])
def test_values_of_any_scale_are_their_logarithms(value: float):
    constraint = log_positive()
    raw = constraint.inverse_transform(torch.tensor(value, dtype=torch.float64))
    assert raw.item() == pytest.approx(torch.tensor(value).double().log().item())
    assert constraint.transform(raw).item() == pytest.approx(value, rel=1e-12)
