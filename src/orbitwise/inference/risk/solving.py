"""Which solver a problem gets, and warm starts along a path of strengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from orbitwise.inference.risk.coordinates import coordinate_descent
from orbitwise.inference.risk.grams import DenseGram
from orbitwise.inference.risk.iterative import lbfgs, newton_cg
from orbitwise.inference.risk.newton import newton
from orbitwise.inference.risk.problem import Problem, Solution
from orbitwise.inference.risk.stochastic import stochastic

SOLVERS = ("auto", "newton", "lbfgs", "newton_cg", "random", "steepest", "stochastic")


def solve(
    problem: Problem,
    solver: str = "auto",
    start: Solution | None = None,
    tolerance: float = 1e-8,
    generator: torch.Generator | None = None,
) -> Solution:
    """The least risk. "auto" is Newton's method where the Gram matrix is held whole, else L-BFGS.

    Newton's method is quickest by far on whole matrices; of those that take products alone, L-BFGS in
    function space needs the fewest. "random" and "steepest" grow a set of coordinates, "stochastic" is for
    more rows than products of all of them can be afforded. `start` warms the batch solvers.
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, not {solver!r}.")
    if solver == "auto":
        whole = isinstance(problem.gram, DenseGram) and not problem.is_coupled
        solver = "newton" if whole else "lbfgs"
    if solver == "newton":
        return newton(problem, start, tolerance)
    if solver == "lbfgs":
        return lbfgs(problem, start, tolerance)
    if solver == "newton_cg":
        return newton_cg(problem, start, tolerance)
    if solver == "stochastic":
        return stochastic(problem, tolerance=tolerance, generator=generator)
    order = "steepest" if solver == "steepest" else "random"
    return coordinate_descent(problem, order, tolerance=tolerance, generator=generator)


def path(
    problem: Callable[[float], Problem],
    strengths: Iterable[float],
    solver: str = "auto",
    tolerance: float = 1e-8,
) -> Iterator[Solution]:
    """The solutions for one strength after the other, each from where the last one ended."""
    solution = None
    for strength in strengths:
        solution = solve(problem(strength), solver, solution, tolerance)
        yield solution
