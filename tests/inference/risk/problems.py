"""Problems that the tests of solvers share."""

import torch

from orbitwise.inference.risk import DenseGram, Problem, ProductGram, Term
from orbitwise.losses import EpsilonInsensitive, Hinge, Logistic, Squared, SquaredHinge

PAIRS = [
    (Logistic(), Squared()),
    (Hinge(0.1), Squared()),
    (SquaredHinge(), EpsilonInsensitive(0.1)),
    (Squared(), EpsilonInsensitive(0.0, 0.05)),
]


def random_problem(
    losses=PAIRS[0], num_labels=30, num_functionals=20, strength=1.0, basis=1, seed=0, structured=False
):
    """Labels by values of f, and differences of values that should be small, on the plane."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_labels, 2, generator=generator, dtype=torch.float64)
    ends = torch.randn(num_functionals, 2, 2, generator=generator, dtype=torch.float64)
    points = torch.cat([x, ends.flatten(0, 1)])
    kernel = torch.exp(-0.5 * torch.cdist(points, points).square())
    rows = torch.zeros(num_labels + num_functionals, len(points), dtype=torch.float64)
    rows[:num_labels, :num_labels] = torch.eye(num_labels)
    for j in range(num_functionals):
        rows[num_labels + j, num_labels + 2 * j] = 1.0
        rows[num_labels + j, num_labels + 2 * j + 1] = -1.0
    matrix = rows @ kernel @ rows.mT
    noise = 0.5 * torch.randn(num_labels, generator=generator, dtype=torch.float64)
    targets = torch.where(x[:, 0] + noise > 0.3, 1.0, -1.0).double()
    ones = torch.ones(num_labels, dtype=torch.float64)
    terms = [
        Term(losses[0], targets, strength * ones),
        Term(
            losses[1],
            torch.zeros(num_functionals, dtype=torch.float64),
            strength * torch.ones(num_functionals).double(),
        ),
    ]
    functions = torch.cat([torch.ones_like(points[:, :1]), points], -1)[:, :basis]
    gram = DenseGram(matrix)
    if structured:
        gram = ProductGram(lambda v: matrix @ v, lambda i: matrix[:, i], matrix.diagonal())
    return Problem(gram, terms, rows @ functions)
