"""Does the search find the structure that generated the data? Ten synthetic problems, and CO2 at Mauna Loa.

`python -m orbitwise.experiments.kernel_search --out results/kernel_search.json`; a run that was stopped
resumes with the next problem. Every problem draws one function from a kernel of two or three components, some
of them with a hidden symmetry, and adds noise. A structure is found if its normal form is that of
the generating one: products multiplied out, the order of sums and products ignored, an rbf of all columns
read as the product of those of each, and the same claims of invariance. The generating structure is also
fitted, from its own values and from the data: where its score is below that of what was found, the data say
otherwise. `--shift` draws all problems anew. For CO2, the evidence of all rows from 1958 to 2003 under the
kernel that the search found is compared with that under the lecture's hand-built kernel, which is learned
from the lecture's values and from the starts of a search. The evidence of a structure integrates its
hyperparameters out (Laplace) or counts them (BIC).

The record has "problems", each with the generating structure, the one that was found, whether they are the
same, and both scores. "found" is the number of problems that were solved, of all "of" problems. "co2"
compares the two kernels of carbon dioxide.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch

from orbitwise import datasets
from orbitwise.experiments import mauna_loa
from orbitwise.experiments.records import Record, command_line
from orbitwise.inference.exact import sample_prior
from orbitwise.kernels.spelling import (
    Product,
    add,
    build,
    expression_of,
    multiply,
    parse_expression,
    summands,
)
from orbitwise.process.process import Process
from orbitwise.selection.search.auto import AutoGPRegressor, Scaling
from orbitwise.selection.search.greedy import SearchData, fit
from orbitwise.selection.search.hypotheses import Hypothesis, claims_of, functional_of_claims, start_from_data

Score = Literal["bic", "laplace"]


@final
@dataclass(frozen=True)
class Synthetic:
    """A problem: the kernel from which a function is drawn, its invariances, and the data."""

    name: str
    kernel: str
    claims: tuple[str, ...] = ()
    num_dims: int = 1
    num_rows: int = 120
    noise: float = 0.1
    seed: int = 0

    @property
    def hypothesis(self) -> Hypothesis:
        """The structure to be found, with its values."""
        return Hypothesis(
            parse_expression(self.kernel, self.num_dims), tuple(claims_of(self.claims, self.num_dims))
        )

    def is_found(self, hypothesis: Hypothesis) -> bool:
        """Whether a hypothesis has the generating structure."""
        truth = self.hypothesis
        claims = tuple(replace(claim, is_given=False) for claim in truth.claims)
        wanted = replace(truth, claims=claims)
        return hypothesis.structure(self.num_dims) == wanted.structure(self.num_dims)

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs, uniform between 0 and 10, and noisy values of one function.

        Components are drawn separately, and each is scaled to its variance under the kernel, so that none is
        too small to be found by chance. Lines have nine times the variance of the other components, because a
        weaker line is hard to distinguish from a smooth component, and the structure without it then has more
        evidence.
        """
        random = np.random.default_rng(self.seed)
        x = random.uniform(0, 10, (self.num_rows, self.num_dims))
        truth, generator = self.hypothesis, torch.Generator().manual_seed(self.seed)
        rows = functional_of_claims(truth.claims, self.num_dims).double().atoms(torch.from_numpy(x))
        f = np.zeros(len(x))
        for part in summands(truth.expression):
            with torch.no_grad():
                process = Process(None, build(part, self.num_dims))
                drawn = sample_prior(process, rows, 1, generator)[:, 0].numpy()
            share = part.factor if isinstance(part, Product) else None
            f += drawn / drawn.std() * (1.0 if share is None else share) ** 0.5
        return x, f + self.noise * random.standard_normal(len(x))


PROBLEMS = (
    Synthetic("trend and cycle", "rbf(lengthscale=3) + periodic(period=1.5)", seed=1),
    Synthetic("line and cycle", "9*linear(centre=5) + periodic(period=2)", seed=2),
    Synthetic("drifting cycle", "rbf(lengthscale=4)*periodic(period=1)", seed=3),
    Synthetic("growing cycle", "linear(centre=0)*periodic(period=1.7)", seed=4),
    Synthetic(
        "line and drifting cycle", "9*linear(centre=5) + rbf(lengthscale=4)*periodic(period=1)", seed=5
    ),
    Synthetic(
        "line and two cycles", "9*linear(centre=5) + periodic(period=2.3) + periodic(period=0.9)", seed=6
    ),
    Synthetic("columns added", "rbf[0](lengthscale=2) + periodic[1](period=3)", num_dims=2, seed=7),
    Synthetic("columns multiplied", "rbf[0](lengthscale=2)*linear[1](centre=2)", num_dims=2, seed=8),
    Synthetic(
        "trend and cycle in a mirror",
        "rbf(lengthscale=1.5) + periodic(period=0.8)",
        ("mirror[0](centre=4)",),
        seed=9,
    ),
    Synthetic(
        "exchangeable columns",
        "rbf[0](lengthscale=2)*rbf[1](lengthscale=2)",
        ("swap[0,1]",),
        num_dims=2,
        seed=10,
    ),
)
CO2 = "co2"
CO2_BASES = ("rbf", "periodic", "rq")
"""The base kernels of the lecture."""
DEPTH = 6
SEARCH_ROWS = 250


def main() -> None:
    """Run the missing problems, and write each result as soon as it is known."""
    parser = command_line(__doc__, "results/kernel_search.json")
    parser.add_argument("--scoring", choices=("bic", "laplace"), default="bic")
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--only", nargs="*", default=None, help="names of problems, or co2")
    parser.add_argument("--shift", type=int, default=0, help="added to the seeds of the problems")
    arguments = parser.parse_args()
    run(arguments.out, arguments.scoring, arguments.n_jobs, arguments.only, arguments.shift)


def run(
    out: Path,
    scoring: Score = "bic",
    n_jobs: int | None = None,
    only: Sequence[str] | None = None,
    shift: int = 0,
) -> dict[str, Any]:
    """Run all problems or `only` some; problems that the file has under the same settings are skipped."""
    known = [*(problem.name for problem in PROBLEMS), CO2]
    if unknown := [name for name in only or () if name not in known]:
        raise ValueError(f"Unknown problem {unknown[0]!r}; known are {', '.join(known)}.")
    wanted = set(known if only is None else only)
    record = Record(out, {})
    if (record.values.get("scoring"), record.values.get("shift")) != (scoring, shift):
        record.values = {"scoring": scoring, "shift": shift, "problems": {}}
    problems = record.values["problems"]
    for problem in (each for each in PROBLEMS if each.name in wanted):
        drawn = replace(problem, seed=problem.seed + shift)
        record.fill(problems, problem.name, partial(solve, drawn, scoring, n_jobs))
    record.write(found=sum(each["found"] for each in problems.values()), of=len(problems))
    if CO2 in wanted:
        record.fill(record.values, CO2, partial(carbon_dioxide, scoring, n_jobs))
    return record.values


def solve(problem: Synthetic, scoring: Score = "bic", n_jobs: int | None = None) -> dict[str, Any]:
    """Search on one synthetic problem."""
    x, y = problem.draw()
    began, busy = time.perf_counter(), time.process_time()
    model = AutoGPRegressor(scoring=scoring, random_state=problem.seed, n_jobs=n_jobs, verbose=False)
    model.fit(x, y)
    seconds, processor_seconds = time.perf_counter() - began, time.process_time() - busy
    found = Hypothesis(
        parse_expression(model.spelling_, problem.num_dims),
        tuple(
            claims_of((model.invariance_ or "").split(" | ") if model.invariance_ else None, problem.num_dims)
        ),
    )
    return {
        "truth": str(problem.hypothesis),
        "searched": str(found),
        "found": problem.is_found(found),
        "log_evidence": model.log_evidence_,
        "score": model.score_,
        "score_of_truth": score_of_truth(problem, x, y, scoring),
        "fits": len(model.history_),
        "seconds": seconds,
        # of this process alone
        "processor_seconds": processor_seconds if n_jobs in (None, 1) else None,
        "seed": problem.seed,
        "rows": problem.num_rows,
        "description": model.describe(),
    }


def score_of_truth(problem: Synthetic, x: np.ndarray, y: np.ndarray, scoring: Score) -> float:
    """The score of the generating structure, fitted from the values that made the data and from the data."""
    scaling = Scaling.of(x, ["rbf"])
    truth = replace(problem.hypothesis, noise=problem.noise**2)
    truth = replace(truth, claims=tuple(replace(claim, is_given=False) for claim in truth.claims))
    scaled = SearchData(scaling.apply(x), y, scoring)
    found = [fit([start], scaled, max_iterations=150) for start in starts_of(truth, scaling, x, y)]
    return max(each.score for each in found if each is not None)


def starts_of(hypothesis: Hypothesis, scaling: Scaling, x: np.ndarray, y: np.ndarray) -> list[Hypothesis]:
    """Starts for scaled inputs and standardised targets: given values, and those of a search."""
    variance = float(np.var(y))
    own = scaling.inverse.undo(hypothesis)
    parts = [multiply(part, factor=1 / variance) for part in summands(own.expression)]
    own = replace(own, expression=add(*parts), noise=(own.noise or 0.0) / variance)
    return [own, *(start_from_data(own, scaling.apply(x), y, seed) for seed in (None, 1, 2))]


def carbon_dioxide(scoring: Score = "bic", n_jobs: int | None = None) -> dict[str, Any]:
    """The evidence of CO2 from 1958 to 2003 under the kernel of the search and under that of the lecture."""
    x, y = lecture_data()
    began = time.perf_counter()
    settings = {"scoring": scoring, "n_jobs": n_jobs, "random_state": 0, "num_restarts": 1, "verbose": False}
    settings |= {"max_depth": DEPTH, "search_rows": SEARCH_ROWS, "base_kernels": CO2_BASES}
    model = AutoGPRegressor(invariances=None, **settings).fit(x, y)
    seconds = time.perf_counter() - began
    scaling, searched = Scaling.of(x, ["rbf"]), expression_of(model.kernel_, values=True, digits=17)
    noise = model.noise_ / float(model.target_scale_.scale[0]) ** 2
    found = evidences(scaling, [scaling.inverse.undo(Hypothesis(searched, (), noise))], x, y)
    lecture = Hypothesis(parse_expression(mauna_loa.spelling_of(mauna_loa.LECTURE)), (), 0.04)
    hand = evidences(scaling, starts_of(lecture, scaling, x, y), x, y)
    return {
        "rows": len(x),
        "search_rows": SEARCH_ROWS,
        "max_depth": DEPTH,
        "searched": model.spelling_,
        "searched_evidence": found,
        "lecture": str(lecture),
        "lecture_evidence": hand,
        "reached": {name: found[name] >= hand[name] for name in ("bic", "laplace")},
        "seconds": seconds,
        "description": model.describe("years"),
    }


def lecture_data() -> tuple[np.ndarray, np.ndarray]:
    """Monthly means to the end of 2003."""
    data = datasets.load("co2_mauna_loa")
    is_train = data.x < 2004
    return data.x[is_train, None], data.y[is_train]


def evidences(
    scaling: Scaling, starts: Sequence[Hypothesis], x: np.ndarray, y: np.ndarray
) -> dict[str, float]:
    """The greatest log likelihood, BIC and Laplace evidence of a structure over several starts."""
    problem = SearchData(scaling.apply(x), y, "laplace")
    found = [each for start in starts if (each := fit([start], problem, max_iterations=200)) is not None]
    return {
        "log_likelihood": max(each.log_likelihood for each in found),
        "bic": max(each.log_likelihood - 0.5 * each.num_parameters * math.log(len(y)) for each in found),
        "laplace": max(each.score for each in found),
    }


if __name__ == "__main__":
    main()
