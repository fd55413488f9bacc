"""Chains: numbers, the table, and what is said of chains that did not mix."""

import io
import warnings

import pytest
import torch
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning

from orbitwise.inference.sampling import Chains, effective_sample_size


def chains(count: int = 2000, width: int = 2, **options) -> Chains:
    generator = torch.Generator().manual_seed(0)
    return Chains(torch.randn(4, count, width, generator=generator, dtype=torch.float64), **options)


def test_moments_and_errors_are_those_of_the_pooled_samples():
    found = chains()
    pooled = found.samples.reshape(-1, 2)
    torch.testing.assert_close(found.pooled, pooled)
    torch.testing.assert_close(found.mean, pooled.mean(0))
    torch.testing.assert_close(found.deviation, pooled.std(0))
    torch.testing.assert_close(found.effective_sample_size, effective_sample_size(found.samples))
    torch.testing.assert_close(found.standard_error, pooled.std(0) / found.effective_sample_size.sqrt())
    assert bool((found.r_hat < 1.01).all())
    assert found.names == ("θ0", "θ1")


def test_a_table_has_a_line_for_every_name():
    table = chains(names=("lengthscale", "noise")).summary("posterior")
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()
    assert "posterior" in text
    for word in ("lengthscale", "noise", "effective", "R-hat"):
        assert word in text
    assert table.row_count == 2


def test_a_map_keeps_names_where_the_shape_stays():
    found = chains(names=("a", "b"), num_evaluations=7)
    assert found.map(torch.exp).names == ("a", "b")
    assert found.map(torch.exp, ["c", "d"]).names == ("c", "d")
    total = found.map(lambda samples: samples.sum(-1, keepdim=True))
    assert total.names == ("θ0",)
    assert total.num_evaluations == 7
    torch.testing.assert_close(found.map(torch.exp).mean, found.pooled.exp().mean(0))


def test_chains_that_mixed_are_silent():
    found = chains()
    assert found.problems() == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found.warn_if_unmixed() is found


def test_chains_that_did_not_mix_say_so():
    samples = chains(width=4).samples.clone()
    samples[0, :, 0] += 2
    samples[..., 1] = samples[..., 1].cumsum(1)
    samples[..., 2] = 3.0
    found = Chains(samples, ("apart", "slow", "fixed", "fine"), num_divergent=12)
    text = " ".join(found.problems())
    assert "fixed never changed" in text
    assert "disagree on apart, slow: R-hat" in text
    assert "changes slowly: 8,000 samples are worth" in text
    assert "12 of 8,000 trajectories diverged" in text
    assert "fine" not in text
    with pytest.warns(ConvergenceWarning, match="Do not trust averages"):
        found.warn_if_unmixed()


def test_thresholds_are_arguments():
    found = chains(count=50)
    assert any("changes slowly" in each for each in found.problems())
    assert found.problems(most_r_hat=1.2, fewest_effective=10) == []


def test_many_names_are_cut_short():
    found = Chains(torch.zeros(2, 10, 6))
    assert found.problems() == ["θ0, θ1, θ2 and 3 more never changed."]


def test_names_must_fit():
    with pytest.raises(ValueError, match="2 quantities need 2 names, not 1"):
        chains(names=("a",))
