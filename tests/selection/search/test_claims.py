"""Claims: which are tried, where they start, and what they make of f."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from orbitwise.inference.exact import sample_prior
from orbitwise.kernels.spelling import parse_expression
from orbitwise.process import Process
from orbitwise.selection.search.hypotheses import (
    Claim,
    best_mirror,
    claims_of,
    functional_of_claims,
    in_input_columns,
    in_process_columns,
    learned_claims,
    with_starting_value,
)


def texts(names, num_dims: int) -> list[str]:
    return [str(claim) for claim in claims_of(names, num_dims)]


def test_which_claims_are_tried():
    assert texts(None, 2) == []
    assert texts("auto", 1) == ["mirror[0]", "odd[0]", "period[0]"]
    assert texts("auto", 2) == [
        *("mirror[0]", "mirror[1]", "odd[0]", "odd[1]", "swap[0,1]", "period[0]", "period[1]")
    ]
    assert "permutation" in texts("auto", 3)
    assert "permutation" in texts("auto", 4)
    # an orbit of 120 points for every row would be too many
    assert "permutation" not in texts("auto", 5)
    assert "permutation" in texts(["permutation"], 5)
    assert texts("auto", 7) == []
    assert texts(["mirror[1](centre=2.5)", "swap"], 2) == ["mirror[1](centre=2.5)", "swap[0,1]"]
    assert claims_of(["mirror[1](centre=2.5)"], 2) == [Claim("mirror", (1,), 2.5, True)]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("mirror", "'auto', None or a list"),
        (["miror"], "Unknown invariance 'miror'.*Did you mean 'mirror'"),
        (["mirror[2]"], "names a column that inputs of 2 columns do not have"),
        (["swap[0]"], "needs two columns"),
        (["period[0,1]"], "belongs to one column"),
    ],
)
def test_unknown_claims(names, problem: str):
    with pytest.raises(ValueError, match=problem):
        claims_of(names, 2)


X = np.random.default_rng(0).uniform(0, 6, (80, 1))


def test_a_mirror_starts_where_the_data_are_symmetric():
    even, odd = np.cos(3 * (X[:, 0] - 2.2)), np.sin(3 * (X[:, 0] - 2.2))
    assert best_mirror(X[:, 0], even * np.exp(-0.2 * (X[:, 0] - 2.2) ** 2), False) == pytest.approx(
        2.2, abs=0.1
    )
    assert best_mirror(X[:, 0], odd * np.exp(-0.2 * (X[:, 0] - 2.2) ** 2), True) == pytest.approx(
        2.2, abs=0.1
    )
    assert best_mirror(np.ones(4), np.ones(4), False) == 1.0
    claim = with_starting_value(Claim("mirror", (0,)), X, even, seed=3)
    assert claim.value is not None
    assert claim == with_starting_value(Claim("mirror", (0,)), X, even, seed=3)


def test_a_period_starts_at_the_strongest_line():
    y = np.sin(2 * np.pi * X[:, 0] / 1.3)
    assert with_starting_value(Claim("period", (0,)), X, y, None).value == pytest.approx(1.3, rel=0.03)
    given = Claim("period", (0,), 2.0, True)
    assert with_starting_value(given, X, y, None) is given
    swap = Claim("swap", (0, 1))
    assert with_starting_value(swap, X, y, None) is swap


@pytest.mark.parametrize(
    ("claim", "move", "sign"),
    [
        (Claim("mirror", (1,), 0.4), lambda x: torch.stack([x[:, 0], 0.8 - x[:, 1]], 1), 1),
        (Claim("odd", (0,), 0.4), lambda x: torch.stack([0.8 - x[:, 0], x[:, 1]], 1), -1),
        (Claim("swap", (0, 1)), lambda x: x.flip(1), 1),
        (Claim("permutation"), lambda x: x.flip(1), 1),
        (Claim("period", (1,), 0.7), lambda x: x + torch.tensor([0.0, 1.4]).double(), 1),
    ],
)
def test_claims_hold(claim: Claim, move, sign: int):
    x = torch.rand(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = functional_of_claims([claim], 2).double().atoms(torch.cat([x, move(x)]))
    with torch.no_grad():
        f = sample_prior(Process(None, RBFKernel().double()), rows, 2, torch.Generator().manual_seed(0))
    torch.testing.assert_close(f[:5], sign * f[5:], rtol=0, atol=1e-5)
    assert float(f.abs().max()) > 0.1


def test_two_claims_hold_together_and_their_values_are_read_back():
    claims = [Claim("period", (0,), 1.5), Claim("mirror", (0,), 0.25)]
    functional = functional_of_claims(claims, 1).double()
    x = torch.rand(4, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = functional.atoms(torch.cat([x, 0.5 - x, x + 1.5]))
    with torch.no_grad():
        f = sample_prior(Process(None, RBFKernel().double()), rows, 2, torch.Generator().manual_seed(0))
    torch.testing.assert_close(f[:4], f[4:8], rtol=0, atol=1e-5)
    torch.testing.assert_close(f[:4], f[8:], rtol=0, atol=1e-5)
    with torch.no_grad():
        for parameter in functional.parameters():
            parameter += 0.1
    values = [claim.value for claim in learned_claims(claims, functional)]
    assert values == pytest.approx([1.5 * np.exp(0.1), 0.35])


def test_columns_move_around_a_wrapped_one():
    expression = parse_expression("rbf[0]*rq[1] + rbf[0,2](ard) + linear")
    claims = [Claim("period", (1,), 1.0)]
    moved, width = in_process_columns(expression, claims, 3)
    assert (str(moved), width) == ("rbf[0]*rq[1,2] + rbf[0,3](ard) + linear", 4)
    assert in_input_columns(moved, claims) == expression
    assert in_process_columns(expression, [], 3) == (expression, 3)
    assert in_input_columns(expression, []) is expression


def test_numbers_that_are_learned():
    counts = [claim.num_parameters for claim in claims_of(["mirror", "swap", "period[0](period=2)"], 2)]
    assert counts == [1, 1, 0, 0]
    assert Claim("mirror", (0,), 3.0).structure == Claim("mirror", (0,))
    assert Claim("mirror", (0,), 3.0, True).structure.value == 3.0
