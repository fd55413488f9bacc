"""A sparse Gaussian process: what is learned, its bound, its posterior, and, for Gaussian noise, its bracket.

This is the engine of every estimator with a collapsed bound. Quadratic terms of other likelihoods than
Gaussian noise are treated as rows with weights λ and targets η/λ (`orbitwise.inference.sparse.bounds`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.functionals.functional import Atoms
from orbitwise.inference.model import Observations, Posterior
from orbitwise.inference.optimise.training import log_prior
from orbitwise.inference.sparse import iterative
from orbitwise.inference.sparse.bounds import (
    BoundName,
    Bracket,
    Totals,
    best_q,
    collapsed_bound,
    common_bracket,
    gather_totals,
    quadratic_totals,
    safe_bracket,
)
from orbitwise.inference.sparse.held_rows import best_tilt, project_share
from orbitwise.inference.sparse.inducing import (
    Inducing,
    cluster_centres,
    first_of_equals,
    greedy_choice,
    inducing_factor,
    random_orbit_points,
)
from orbitwise.inference.sparse.iterative import NoisySystem
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.stored_rows import Inputs, StoredRows
from orbitwise.kernels.bases import typical_spread
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.process.process import Process

Selection = Literal["auto", "greedy", "kmeans", "random"]
Domain = Literal["f", "g"]
ITERATIVE_ROWS = 20_000
"""Conjugate gradients cost O(N²) per step: for more rows than this, brackets are computed without them."""
SEPARATION = 1e-8
CANDIDATE_NUMBERS = 2**25
"""The most numbers that greedy choice holds in memory: candidates times inducing variables."""
STRIDE = 2.0
"""The unit of learned inducing points, in deviations of the inputs, to match logarithmic hyperparameters."""
SOLVED = 1e-2
"""The total error of the quadratic form, in nats, that conjugate gradients may leave."""


class Selected(NamedTuple):
    """Points of g, or numbers of rows for values of f, and whether no other candidates are left."""

    inducing: Tensor
    is_complete: bool


@final
class SparseModel(nn.Module):
    """y given f = L g through inducing variables u, which are values of g or of f at chosen inputs.

    With `learns_inducing`, the points are learned together with the hyperparameters; values of f stay where
    the data are. Weights of rows divide Gaussian noise; for other likelihoods they are numbers of
    repetitions. `tilt` is the free parameter of likelihoods that need one. It is fixed while the rest is
    learned, see `improve_tilt`.
    """

    spread: Tensor
    centre: Tensor

    def __init__(
        self,
        process: Process,
        observations: Observations,
        likelihood: Likelihood,
        bound: BoundName = "tight",
        domain: Domain = "g",
        learns_inducing: bool = False,
        tilt: Tensor | None = None,
    ) -> None:
        super().__init__()
        if bound not in ("tight", "titsias", "cg"):
            raise ValueError(f"bound must be 'tight', 'titsias' or 'cg', not {bound!r}.")
        if bound == "cg" and not _has_one_noise(likelihood):
            raise ValueError(
                f"bound='cg' needs Gaussian noise, not {type(likelihood).__name__}: use 'tight'."
            )
        self.process = process
        self.functional = observations.functional
        self.likelihood = likelihood
        self.observations = observations
        self.bound_name: BoundName = bound
        self.domain: Domain = "g" if observations.functional.is_identity else domain
        self.learns_inducing = learns_inducing and self.domain == "g"
        self.tilt: Tensor | None = None
        if likelihood.needs_tilt:
            self.tilt = torch.ones_like(observations.targets) if tilt is None else tilt
        self.chosen: Tensor | None = None
        self.vectors: Tensor | None = None
        self.totals: Totals | None = None
        with torch.no_grad():
            # rows may be sorted, so take some from everywhere
            every = max(1, len(observations.x) // 2048)
            points = observations.take(slice(None, None, every)).atoms().points.flatten(0, -2)
            spread = typical_spread(points)
        self.register_buffer("centre", points.median(0).values)
        self.register_buffer("spread", STRIDE * spread)
        self.raw_inducing = nn.Parameter(points[:0], requires_grad=False)

    @property
    def noise(self) -> Float[Tensor, ""]:
        """σ² of a row of weight 1; for other likelihoods than Gaussian noise it is 1, and part of λ."""
        if isinstance(self.likelihood, Gaussian) and _has_one_noise(self.likelihood):
            return self.likelihood.noise[0]
        return self.observations.targets.new_ones(())

    @property
    def system(self) -> NoisySystem:
        """The linear system of all rows, for Gaussian noise."""
        return NoisySystem(self.process, self.observations, self.noise)

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.observations.x)

    @property
    def inducing(self) -> Inducing:
        """The inducing variables: points of g, or the atoms of rows of f, which a learned orbit moves."""
        if self.domain == "f":
            return self._values_of_f(self.rows_of_f)
        return self.points

    @property
    def points(self) -> Float[Tensor, "u d"]:
        """The inducing points of g."""
        return self.centre + self.spread * self.raw_inducing

    @property
    def rows_of_f(self) -> Tensor:
        """The numbers of the rows whose values of f are the inducing variables."""
        if self.chosen is None:
            raise ValueError("There are no inducing variables yet: call place_inducing first.")
        return self.chosen

    def _values_of_f(self, index: Tensor) -> Atoms:
        block = self.observations.take(index).atoms()
        return block if isinstance(block, Atoms) else block.expand()

    @property
    def num_inducing(self) -> int:
        """How many inducing variables there are."""
        return len(self.raw_inducing) if self.chosen is None else len(self.chosen)

    def place_inducing(self, inducing: Tensor) -> None:
        """Use these points of g, or, for values of f, these numbers of rows.

        Several processes use those of the first, although all choose, because choices may depend on rounding.
        """
        if not self.observations.processes.is_alone:
            inducing = self.observations.processes.from_first(inducing.cpu()).to(self.centre.device)
        if self.domain == "f":
            self.chosen = inducing
        else:
            raw = ((inducing - self.centre) / self.spread).detach()
            self.raw_inducing = nn.Parameter(raw, requires_grad=self.learns_inducing)

    def free_inducing(self) -> bool:
        """Let points of g be learned from now on; False if the inducing variables are not points of g."""
        self.learns_inducing = self.domain == "g"
        self.raw_inducing.requires_grad_(self.learns_inducing)
        return self.learns_inducing

    def held_inducing(self) -> Tensor:
        """The present inducing variables, in the form that `place_inducing` takes."""
        return self.rows_of_f if self.domain == "f" else self.points.detach()

    def bound(self) -> Float[Tensor, ""]:
        """The lower bound that is trained, at the present hyperparameters."""
        inducing = self.inducing
        lower = inducing_factor(self.process, inducing)
        tight = self.bound_name != "titsias"
        if self.bound_name != "cg":
            totals = self.totals_at(inducing, lower, tight)
            return collapsed_bound(totals, self.noise, tight) + self.merged_term()
        vectors = self.solve_again(inducing, lower)
        at = self.system.bracket(inducing, lower, vectors)
        return collapsed_bound(at.totals, self.noise, quadratic=at.upper) + self.merged_term()

    def totals_at(self, inducing: Inducing, lower: Float[Tensor, "u u"], tight: bool = True) -> Totals:
        """The sums over rows for bound and posterior, at the present hyperparameters and tilts."""
        rows = self.observations
        if _has_one_noise(self.likelihood):
            return gather_totals(self.process, rows, inducing, lower, self.noise, tight)
        quadratic = self.likelihood.quadratic(rows.targets, self.tilt).weighted(rows.weight)
        shared = self.likelihood.shares_curvature
        return quadratic_totals(
            self.process, self.functional, inducing, rows.x, quadratic, shared, lower, tight, rows.processes
        )

    @torch.no_grad()
    def improve_tilt(self) -> None:
        """Coordinate ascent of the tilts, if the likelihood has any; it never lowers the bound."""
        if self.tilt is None:
            return
        rows, processes = self.observations, self.observations.processes
        projected, mine = project_share(self.process, rows, self.inducing)
        start = self.tilt[processes.share(len(rows))]
        known = (projected, self.likelihood, mine.targets, start)
        self.tilt = processes.gather(best_tilt(*known, weight=mine.weight, processes=processes), len(rows))

    def merged_term(self) -> Float[Tensor, ""]:
        """The term that merging rows removed from the log likelihood."""
        return self.observations.merged_term(self.noise)

    def forward(self) -> Float[Tensor, ""]:
        """The bound plus hyperpriors: what training maximises."""
        return self.bound() + log_prior(self.process)

    @torch.no_grad()
    def solve_again(self, inducing: Inducing, lower: Tensor) -> Float[Tensor, "n c"]:
        """(K+Σ)⁻¹(y-m) at the present hyperparameters, starting from the last solution."""
        preconditioner = self.system.preconditioner(inducing, lower)
        solution = self.system.solve(preconditioner, SOLVED, 100, self.vectors)
        self.vectors = solution.vectors
        return self.vectors

    @torch.no_grad()
    def bracket(self, refine: bool | None = None) -> Bracket:
        """The tight bound and the upper bound; `refine` solves the quadratic form by conjugate gradients.

        By default this is done for up to `ITERATIVE_ROWS` rows, for which it costs little. The totals are
        kept. Both bounds allow for rounding, so lower ≤ upper always.
        """
        if not _has_one_noise(self.likelihood):
            raise ValueError(
                f"Upper bounds need Gaussian noise with one variance, not {type(self.likelihood).__name__}: "
                "bound() is a lower bound."
            )
        inducing = self.inducing
        lower = inducing_factor(self.process, inducing)
        totals = self.totals = gather_totals(self.process, self.observations, inducing, lower, self.noise)
        brackets = [safe_bracket(totals, self.noise)]
        if self.num_rows <= ITERATIVE_ROWS if refine is None else refine:
            vectors = self.solve_again(inducing, lower)
            at = self.system.bracket(inducing, lower, vectors)
            solved = self.system.safe_ends(vectors, at)
            brackets.append(safe_bracket(at.totals, self.noise, solved))
        return common_bracket(brackets, float(self.merged_term()), self.num_rows)

    @torch.no_grad()
    def posterior(self) -> Posterior:
        """g given y at the present hyperparameters; with the "cg" bound its mean is exact."""
        inducing = self.inducing
        if self.bound_name == "cg":
            return iterative.condition(
                self.process, self.observations, self.noise, inducing, "sparse", SOLVED, start=self.vectors
            )
        lower = inducing_factor(self.process, inducing)
        totals = self.totals_at(inducing, lower, tight=False)
        return SparsePosterior(self.process, inducing, best_q(totals, self.noise), lower)

    @torch.no_grad()
    def place_best(self, count: int, generator: torch.Generator) -> None:
        """Place `count` greedy points, cluster centres or random points, whichever give the best bound.

        Greedy points cover inputs of few dimensions best. Among images, greedy choice takes outliers, and
        cluster centres are better (bounds of 300 USPS digits with 150 points: random 528, greedy 486, centres
        744 nats).
        """
        found: list[tuple[float, Tensor]] = []
        for selection in ("greedy", "kmeans", "random"):
            chosen = self.choose(count, selection, generator)
            self.place_inducing(chosen.inducing)
            found.append((float(self.bound()), self.held_inducing()))
            if chosen.is_complete:
                break  # these are all points
        self.place_inducing(max(found, key=lambda each: each[0])[1])

    @torch.no_grad()
    def choose(
        self, count: int, selection: str, generator: torch.Generator, tolerance: float = 0.0
    ) -> Selected:
        """New inducing variables at the present hyperparameters, to be passed to `place_inducing`.

        Greedy choice stops when the residual variance is worth at most `tolerance` nats per row. "auto" takes
        cluster centres for points that are learned, because these start best where the data are dense.
        """
        if selection == "auto":
            selection = "kmeans" if self.learns_inducing else "greedy"
        rows = self.observations
        most = max(count, CANDIDATE_NUMBERS // count)
        index = None
        if self.domain == "f" or rows.functional.is_identity:
            index = _distinct_rows(rows.x, most, generator)
            points = rows.x[index]
        else:
            points = random_orbit_points(rows.functional, rows.x, min(most, 8 * count), generator)
        places = index if self.domain == "f" and index is not None else points
        if selection == "kmeans" and self.domain == "g":
            return Selected(cluster_centres(points, count, generator), len(points) <= count)
        if selection == "random" or selection == "kmeans":
            pick = torch.randperm(len(points), generator=generator, device=generator.device)[:count]
            pick = pick.to(rows.x.device)
        elif selection == "greedy":
            # ½ Σ r/σ² nats per row, for part of the rows
            enough = 2 * tolerance * len(points) * self.noise.item()
            candidates = points if self.domain == "g" else self._values_of_f(places)
            pick = greedy_choice(self.process, candidates, count, SEPARATION, enough).index
        else:
            raise ValueError(f"selection must be 'auto', 'greedy', 'kmeans' or 'random', not {selection!r}.")
        return Selected(places[pick], len(pick) < count or len(points) <= count)


def _distinct_rows(x: Inputs, most: int, generator: torch.Generator) -> Tensor:
    """The numbers of at most so many distinct rows; those of stored rows differ from each other only."""
    if isinstance(x, StoredRows):
        most, index = max(1, min(most, CANDIDATE_NUMBERS // x.width)), torch.arange(len(x))
        if len(x) > most:
            order = torch.randperm(len(x), generator=generator, device=generator.device)
            index = order[:most].cpu().sort().values
        return index[first_of_equals(x[index])]
    index = first_of_equals(x)
    if len(index) > most:
        order = torch.randperm(len(index), generator=generator, device=generator.device)
        index = index[order[:most].to(index.device).sort().values]
    return index


def _has_one_noise(likelihood: Likelihood) -> bool:
    """Whether the likelihood is Gaussian noise of one variance for all outputs, which brackets need."""
    return isinstance(likelihood, Gaussian) and likelihood.shares_curvature
