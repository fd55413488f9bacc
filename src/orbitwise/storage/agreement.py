"""Whether what a file holds makes sense: each part alone, and the parts of an estimator together.

Types, shapes and bounds of the arguments of each object were checked before. Here is what these cannot say:
Cholesky factors that can be solved with, solutions that solve their systems, parameters that are positive.
Parts that make sense alone may still belong to different models, so widths and numbers of outputs are
compared, and two rows are predicted.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from torch import Tensor

from orbitwise.declarations import LARGEST, SMALLEST
from orbitwise.estimators.regression_model import RegressionModel
from orbitwise.estimators.sparse_regressor import Stream
from orbitwise.functionals.averages import OrbitAverage, OrbitSum
from orbitwise.functionals.functional import (
    Atoms,
    Combination,
    Composition,
    Evaluation,
    Functional,
    Gradients,
)
from orbitwise.functionals.points import Wrap
from orbitwise.inference.defaults import LinearTrend
from orbitwise.inference.exact import ExactPosterior
from orbitwise.inference.linear_algebra import solve_lower
from orbitwise.inference.model import Observations
from orbitwise.inference.risk.machines import Machine, basis_rows
from orbitwise.inference.sparse.certificate import REASONS, Certificate
from orbitwise.inference.sparse.iterative import IterativePosterior
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.sparse.whitened import Whitened, WhitenedFactor
from orbitwise.likelihoods.bernoulli import Bernoulli
from orbitwise.likelihoods.dirichlet import Dirichlet
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.laplace import Laplace
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.likelihoods.softmax import Softmax
from orbitwise.likelihoods.student import StudentT
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import DrawnOrbit, FrozenOrbit, Symmetry
from orbitwise.process.process import as_blocks
from orbitwise.selection.search.hypotheses import KINDS
from orbitwise.storage.recipes import is_plain_numbers, require

ENGINES = ("exact", "collapsed", "variational")
MOST_POINTS = 2**20
MOST_PAIRS = 2**26
"""Pairs of points of two rows, which are held at once: half a gigabyte of numbers."""
PAIRS_PER_NUMBER = 2**12
"""Pairs that one prediction compares, tile by tile, for each number of the file: more rows take longer."""
STEPS = {"structure": str, "score": (int, float), "log_likelihood": (int, float), "num_parameters": int}


LONGEST = 1e12
"""Ranges are no longer, in whatever unit."""
DIVISORS = ("lengthscale", "period_length", "alpha", "ratio")
"""Parameters of kernels that something is divided by."""
ROWS_AT_ONCE = 1024
TOLERANCE = 1e-6
"""The residual of a solve in parts of what it is made of: far more than rounding, far less than damage."""


def _check_atom_rows(rows: Atoms) -> None:
    shape = rows.points.shape
    require(rows.points.dim() == 3 and min(shape) > 0, "points that are not [n, s, d]")
    require(bool(((rows.order == 0) | (rows.order == 1)).all()), "orders other than 0 and 1")
    require(rows.tangents is not None or not bool(rows.order.any()), "slopes without tangents")
    require(not bool(rows.draw.any()), "draws that are not there")
    require(rows.blur is None or bool((rows.blur >= 0).all()), "a negative blur")
    _check_symmetry(rows.symmetry, shape[1])


def _check_gradients(rows: Gradients) -> None:
    require(rows.num_rows > 0 and rows.points.numel() > 0, "no rows")
    _check_symmetry(rows.symmetry, rows.points.shape[1])


def _check_symmetry(symmetry: Symmetry | None, atoms: int) -> None:
    require(
        symmetry is None or (symmetry.size > 0 and atoms % symmetry.size == 0), "a symmetry of other rows"
    )


def _num_rows(blocks: list[Atoms | Gradients]) -> int:
    """The number of rows of blocks of the same width."""
    require(len({block.points.shape[-1] for block in blocks}) == 1, "rows of different widths")
    return sum(block.num_rows for block in blocks)


def _check_exact(posterior: ExactPosterior) -> None:
    count = _num_rows(as_blocks(posterior.rows))
    require(len(posterior.targets) == count, "targets of other rows")
    require(posterior.targets.shape[1] > 0, "no targets")
    check_factor(posterior.lower)
    with torch.no_grad():
        # (K+Σ)⁻¹(y-m)
        residual = posterior.targets - posterior.process.mean(posterior.rows)[:, None]
    check_solution(posterior.lower, posterior.weights, residual)


def _check_sparse(posterior: SparsePosterior) -> None:
    inducing, size = posterior.inducing, posterior.lower.shape[-1]
    count = inducing.num_rows if isinstance(inducing, Atoms) else len(inducing)
    require(isinstance(inducing, Atoms) or inducing.dim() == 2, "inducing points that are not [u, d]")
    require(posterior.lower.shape == (count, count), "a factor of other inducing points")
    require(len(posterior.q.mean) == size, "a q of other inducing points")
    check_factor(posterior.lower)


def _check_whitened(q: Whitened) -> None:
    size, outputs = q.shift.shape
    require(min(q.shift.shape) > 0, "a shift of another shape")
    require(q.precision.shape in ((size, size), (outputs, size, size)), "a precision of another shape")
    require(q.lower.shape == q.precision.shape and q.mean.shape == q.shift.shape, "a mean of another shape")
    check_factor(q.lower)
    # S⁻¹m = h
    mean, shift = (q.mean, q.shift) if q.is_shared else (each.T[..., None] for each in (q.mean, q.shift))
    check_solution(q.lower, mean, shift)


def _check_whitened_factor(q: WhitenedFactor) -> None:
    with torch.no_grad():
        diagonal = q.factor.diagonal(dim1=-1, dim2=-2)
    require(is_plain_numbers(diagonal, SMALLEST), "a factor whose diagonal is out of range")


def _check_noise(likelihood: Gaussian) -> None:
    least = 0.0 if likelihood.is_fixed else SMALLEST
    require(is_plain_numbers(likelihood.noise.detach(), least), "noise out of range")


def _check_scale(likelihood: Laplace | StudentT) -> None:
    numbers = [parameter.detach().exp() for parameter in likelihood.parameters()]
    require(all(is_plain_numbers(each, SMALLEST) for each in numbers), "noise out of range")


def _check_regression_model(model: RegressionModel) -> None:
    require(is_plain_numbers(model.target_scale.scale, SMALLEST), "a scale that is not positive")
    if isinstance(likelihood := model.latent.likelihood, Gaussian):
        require(is_plain_numbers(likelihood.noise.detach(), 0.0), "noise out of range")


def _check_stream(stream: Stream) -> None:
    size, totals = len(stream.lower), stream.totals
    inducing = stream.inducing
    count = inducing.num_rows if isinstance(inducing, Atoms) else len(inducing)
    require(stream.lower.shape == (count, count), "a factor of other inducing variables")
    require(totals is not None or stream.q is not None, "neither totals nor q")
    if totals is not None:
        require(totals.gram.shape == (size, size) == (len(totals.product),) * 2, "totals of other variables")
        require(bool(totals.gram.diagonal().ge(0).all()), "totals that no rows have")
    if stream.q is not None:
        require(len(stream.q.mean) == size, "a q of other inducing variables")
    check_factor(stream.lower)


def _check_observations(rows: Observations) -> None:
    require(min(*rows.x.shape, *rows.targets.shape) > 0, "no rows")
    weight = rows.weight
    require(weight is None or is_plain_numbers(weight, SMALLEST), "weights that are not positive")


def _check_iterative(posterior: IterativePosterior) -> None:
    require(posterior.solution.vectors.shape == posterior.rows.targets.shape, "a solution of other rows")
    require(is_plain_numbers(posterior.noise, SMALLEST), "noise out of range")
    outputs = posterior.solution.vectors.shape[1]
    require(posterior.sparse.q.mean.shape[1] == outputs, "a solution of other outputs")


def _check_machine(machine: Machine) -> None:
    count = _num_rows(machine.rows)
    require(len(machine.coefficients) == count, "coefficients of other rows")
    width = basis_rows([machine.rows[0].rows(slice(0, 1))], machine.basis).shape[1]
    require(machine.beta.shape == (width, machine.coefficients.shape[1]), "coefficients of another basis")


def _check_ranges(orbit: Any) -> None:
    for part in ("bounds", "widths"):
        ranges = getattr(orbit, part, None)
        if ranges is not None:
            ends = [end for interval in ranges.intervals().values() for end in interval]
            require(all(abs(end) <= LONGEST for end in ends), "a range that is not finite, or absurdly long")
            half = ranges.half_width if part == "bounds" else ranges.values
            require(is_plain_numbers(half.detach(), 0.0), "a range of negative length")
            require(len(ranges.natural) == len(ranges.names), "natural sizes of other ranges")


def _check_finite(orbit: FiniteOrbit) -> None:
    shape = orbit.image_shape
    if shape is not None:
        require(len(shape) == 3, "images of another shape than channels, height and width")
        # raises an error where the elements move rows of another width
        orbit.transform.check(torch.zeros(1, math.prod(shape), dtype=torch.float64))


def _check_frozen(orbit: FrozenOrbit) -> None:
    if orbit.nodes.shape[1] != orbit.source.num_noise:
        raise ValueError("nodes of another width than the orbit's noise")


def _check_kernel(kernel: Any) -> None:
    names = [name.removeprefix("raw_") for name in kernel._parameters if name.startswith("raw_")]
    for name in names:
        # a column that does not matter may have any lengthscale: what is divided by it is then zero
        least, most = (SMALLEST, sys.float_info.max) if name == "lengthscale" else (-LARGEST, LARGEST)
        least = SMALLEST if name in DIVISORS else least
        with torch.no_grad():
            value = getattr(kernel, name)
        require(value.shape == getattr(kernel, f"raw_{name}").shape, f"a {name} of another shape")
        require(is_plain_numbers(value, least, most), f"a {name} out of range")


def _check_constraint(constraint: Interval) -> None:
    lower, upper = constraint.lower_bound, constraint.upper_bound
    require(lower.shape == upper.shape, "bounds of different shapes")
    require(bool((lower < upper).all()), "the lower bound is not below the upper one")


def _check_trend(mean: LinearTrend) -> None:
    require(is_plain_numbers(mean.spread, SMALLEST), "a spread that is not positive")


def _check_period(wrap: Wrap) -> None:
    require(SMALLEST <= wrap.period.item() <= LARGEST, "a period out of range")


def _check_token(symmetry: Symmetry) -> None:
    require(getattr(symmetry.token, "size", None) == symmetry.size, "a symmetry of another orbit")


def _check_certificate(certificate: Certificate) -> None:
    require(certificate.stopped in REASONS, "an unknown reason")


CHECKS: dict[type, Callable[[Any], None]] = {
    Atoms: _check_atom_rows,
    Certificate: _check_certificate,
    DrawnOrbit: _check_ranges,
    ExactPosterior: _check_exact,
    FiniteOrbit: _check_finite,
    FrozenOrbit: _check_frozen,
    Gaussian: _check_noise,
    Gradients: _check_gradients,
    Interval: _check_constraint,
    IterativePosterior: _check_iterative,
    Kernel: _check_kernel,
    Laplace: _check_scale,
    LinearTrend: _check_trend,
    Machine: _check_machine,
    Observations: _check_observations,
    RegressionModel: _check_regression_model,
    SparsePosterior: _check_sparse,
    Stream: _check_stream,
    StudentT: _check_scale,
    Symmetry: _check_token,
    Whitened: _check_whitened,
    WhitenedFactor: _check_whitened_factor,
    Wrap: _check_period,
}
"""What must hold of objects of these classes, beyond types, shapes and bounds."""


def check_part(built: Any) -> None:
    """Raise a ValueError where an object makes no sense."""
    for base in type(built).__mro__:
        if base in CHECKS:
            CHECKS[base](built)


def check_factor(lower: Tensor) -> None:
    """Raise a ValueError unless this is a lower Cholesky factor [*c, n, n] that can be solved with."""
    size = lower.shape[-1]
    require(lower.dim() in (2, 3) and lower.shape[-2] == size > 0, "a factor that is not square")
    require(is_plain_numbers(lower.diagonal(dim1=-2, dim2=-1), SMALLEST), "a diagonal that is not positive")
    for start in range(0, size, ROWS_AT_ONCE):
        above = lower[..., start : start + ROWS_AT_ONCE, start:].triu(1)
        require(not bool(above.any()), "a factor that is not triangular")
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(size, 2, generator=generator, dtype=lower.dtype)
    probes = torch.cat([torch.ones(size, 1, dtype=lower.dtype), probes], -1).to(lower)
    solved = solve_lower(lower, probes.expand(*lower.shape[:-2], -1, -1))
    require(is_plain_numbers(solved, -LARGEST, LARGEST), "a factor that cannot be solved with")


def check_solution(lower: Tensor, solution: Tensor, right: Tensor) -> None:
    """Raise a ValueError unless L Lᵀ x = b, up to rounding: |L Lᵀ x - b| ≤ ε (|L| |L|ᵀ |x| + max |b|).

    Each row is compared with its own terms, since a large entry elsewhere says nothing of it. What solves a
    system has terms about as large as b, so that sums which overflow are never those of a solution.
    """
    residual = lower @ (lower.mT @ solution) - right
    half = torch.zeros_like(residual)
    for rows in _bands(lower):
        half += lower[..., rows, :].abs().mT @ solution[..., rows, :].abs()
    whole = torch.cat([lower[..., rows, :].abs() @ half for rows in _bands(lower)], dim=-2)
    whole = whole + right.abs().amax(-2, keepdim=True)
    # false for NaN
    is_solved = (residual.abs() <= TOLERANCE * whole) & whole.isfinite()
    require(bool(is_solved.all()), "numbers that do not solve what they should")


def _bands(lower: Tensor) -> list[slice]:
    """The rows of a factor, some at a time, so that it is not held twice."""
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, lower.shape[-1], ROWS_AT_ONCE)]


def check_agreement(model: Any, num_numbers: int = 0) -> None:
    """Raise a ValueError where an estimator's parts are those of different models.

    A prediction may take work in proportion to `num_numbers`, those that its file holds.
    """
    _check_inputs(model)
    if hasattr(model, "classes_"):
        _check_classes(model.classes_)
    if hasattr(model, "machine_"):
        _check_machine_model(model)
    elif hasattr(model, "svc_"):
        _check_support_vectors(model)
    else:
        _check_process_model(model, num_numbers)
    if hasattr(model, "spelling_"):
        _check_search(model)


def _check_inputs(model: Any) -> None:
    shape, width = model.form_.image_shape, model.n_features_in_
    names = getattr(model, "feature_names_in_", None)
    require(shape is None or (len(shape) in (2, 3) and math.prod(shape) == width), "images of another shape")
    own = model.form_.input_shape
    require(own is None or (len(own) in (2, 3) and math.prod(own) == width), "inputs of another shape")
    channels = model.form_.channels
    require(channels in (None, "first", "last"), "channels that are neither first nor last")
    require(channels is None or (shape is not None and len(shape) == 3), "channels of images that have none")
    if names is not None:
        require(names.shape == (width,), "other names of features than it has features")
        require(all(isinstance(each, str) for each in names), "names of features that are no text")


def _check_classes(classes: Any) -> None:
    require(classes.ndim == 1 and len(classes) >= 2, "classes that are no list of labels")
    labels = classes.tolist()
    is_text = isinstance(labels[0], str)
    kinds = str if is_text else (bool, int, float)
    require(all(isinstance(each, kinds) for each in labels), "classes of several kinds")
    # false for NaN, and for classes that come twice
    require(all(a < b for a, b in itertools.pairwise(labels)), "classes that are not in order")


def _check_process_model(model: Any, num_numbers: int) -> None:
    posterior, width = model.posterior_, model.n_features_in_
    outputs = num_outputs(posterior)
    for module in (model.functional_, posterior.process):
        tensors = [*module.parameters(), *module.buffers()]
        require(all(each.dtype != torch.float32 for each in tensors), "parts of different precision")
    if hasattr(model, "target_scale_"):
        _check_regression(model, outputs)
    else:
        _check_classification(model, outputs)
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(2, width, generator=generator, dtype=torch.float64).to(_device(posterior))
    # those that predictions, or a later fit, lower inputs by
    parts = [model._stream] if hasattr(model, "_stream") else []
    parts += [model.model_.latent] if hasattr(model, "model_") else []
    lowered = []
    for functional in (*(part.functional for part in parts), model.functional_):
        _check_atoms(functional, posterior, num_numbers)
        rows = functional.atoms(probes, torch.Generator(probes.device).manual_seed(0))
        lowered.append(rows)
        require(rows.num_rows == 2 and rows.points.shape[-1] == _width(posterior), "rows of another width")
        require(is_plain_numbers(rows.points) and is_plain_numbers(rows.weights), "rows that are not finite")
    with torch.no_grad():
        moments, mean = posterior.row_moments(lowered[-1]), posterior.row_mean(lowered[-1])
    require(moments.mean.shape == mean.shape == (2, outputs), "predictions of another shape")
    whole = (mean, moments.mean, moments.variance)
    require(all(is_plain_numbers(each) for each in whole), "predictions that are not finite")
    orbit = getattr(model, "orbit_", None)
    if isinstance(orbit, DrawnOrbit):
        with torch.no_grad():
            noise = orbit.noise((2, 1), torch.Generator(probes.device).manual_seed(0), probes)
            require(orbit.move(probes, noise).shape == (2, 1, width), "an orbit of other inputs")
    elif orbit is not None:
        require(orbit.size is None or orbit.size <= MOST_POINTS, "an orbit of far too many points")
        require(orbit.points(probes[:1]).points.shape[-1] == width, "an orbit of other inputs")


def _check_atoms(functional: Functional, posterior: Any, num_numbers: int) -> None:
    """Refuse a few elements composed with a few more, again and again, before they are all made.

    A prediction compares each point that a row is moved to with the others, and with those of the posterior,
    unless a group of moves leaves the kernel as it is. Two rows are compared at once, so that their pairs
    take memory; those with all rows of the posterior take time alone, and more in a file that holds more.
    """
    orbit = getattr(getattr(functional, "average", functional), "orbit", None)
    is_one_sided = isinstance(orbit, FiniteOrbit) and orbit.symmetry is not None
    rows = as_blocks(posterior.rows) if isinstance(posterior, ExactPosterior) else []
    held = sum(math.prod(each.points.shape[:2]) for each in rows)
    moved = most_atoms(functional)
    most = MOST_POINTS if is_one_sided else math.isqrt(MOST_PAIRS)
    require(
        moved <= most,
        f"a functional of far too many points: it moves a row to {moved:,}, and {most:,} are allowed",
    )
    widest = max((each.points.shape[1] for each in rows), default=0)
    fits = moved * widest <= MOST_PAIRS and moved * held <= MOST_PAIRS + PAIRS_PER_NUMBER * num_numbers
    require(
        is_one_sided or fits,
        f"far too many pairs of points: {moved:,} of every new row with {held:,} of the posterior",
    )


def most_atoms(functional: Functional) -> int:
    """A number of points that a functional moves a row to at most."""
    if isinstance(functional, Composition):
        return most_atoms(functional.outer) * most_atoms(functional.inner)
    if isinstance(functional, Combination):
        return sum(most_atoms(part) for part in functional.parts)  # pyright: ignore[reportArgumentType]
    if isinstance(functional, OrbitAverage | OrbitSum):
        orbit: Any = functional.orbit if isinstance(functional, OrbitAverage) else functional.average.orbit
        return max(1, orbit.num_samples if orbit.is_drawn else orbit.size)
    return 3


def _check_regression(model: Any, outputs: int) -> None:
    to = model.target_scale_
    require(to.scale.shape == to.shift.shape == (outputs,), "a scale of other outputs")
    require(outputs == 1 or not to.is_vector, "several outputs in place of one")
    likelihood = model._stream.likelihood if hasattr(model, "_stream") else model.model_.latent.likelihood
    if isinstance(likelihood, Gaussian):
        noise = likelihood.noise.detach()
        require(noise.dim() == 1 and len(noise) in (1, outputs), "noise of other outputs")
        require(is_plain_numbers(noise, 0.0), "noise out of range")
        told = np.asarray(getattr(model, "noise_", None))
        require(told.dtype.kind in "fiu" and told.shape in ((), (1,), (outputs,)), "noise of other outputs")
    stream = getattr(model, "_stream", None)
    if stream is not None:
        of = stream.q.mean if stream.totals is None else stream.totals.product
        require(of.shape[1] == outputs, "totals of other outputs")
    if hasattr(model, "model_"):
        require(model.model_.width == model.n_features_in_, "a model of other inputs")
        require(model.model_.target_scale.scale.shape == (outputs,), "a model of other outputs")


def _check_classification(model: Any, outputs: int) -> None:
    count, (problem,) = len(model.classes_), model.model_.observations
    likelihood = model.model_.latent.likelihood
    kind = type(likelihood)
    columns = {Gaussian: 1 if count == 2 else count, Bernoulli: count - 1, Dirichlet: count, Softmax: count}
    codings = {"one_hot": Gaussian, "stick_breaking": Bernoulli, "dirichlet": Dirichlet, "softmax": Softmax}
    coding = model.likelihood
    told = type(coding) if isinstance(coding, Likelihood) else codings.get(str(coding))
    require(told is not None and kind in columns, "an unknown likelihood")
    require(told is kind and outputs == columns[kind], "outputs of other classes")
    if isinstance(likelihood, Softmax):
        require(likelihood.nodes.shape[1] == count, "nodes of other classes")
    require(problem.x.shape[1] == model.n_features_in_, "a problem of other inputs")
    require(problem.targets.shape[1] == outputs, "a problem of other outputs")
    require(model.inference_ in ENGINES, "an unknown kind of inference")


def _check_search(model: Any) -> None:
    width = model.n_features_in_
    for claim in model._claims:
        kind, columns, value, is_given = claim
        require(isinstance(kind, str) and kind in KINDS and isinstance(is_given, bool), "an unknown claim")
        require(
            isinstance(columns, tuple | list)
            and all(type(each) is int and 0 <= each < width for each in columns),
            "a claim about other columns",
        )
        require(value is None or math.isfinite(value), "a claim that is not finite")
    extents = model._extents
    require(extents.shape == (width,) and extents.dtype == np.float64, "extents of other inputs")
    for row in model.history_:
        fits = all(isinstance(row.get(key), kind) for key, kind in STEPS.items())
        require(fits and "step" in row, "a history that cannot be told")
    # what it found can be put into words
    model.summary()


def _check_machine_model(model: Any) -> None:
    machine, classes = model.machine_, getattr(model, "classes_", None)
    require(machine.rows[0].points.shape[-1] == model.n_features_in_, "a machine of other inputs")
    outputs = machine.coefficients.shape[1]
    if classes is not None:
        require(outputs == (1 if len(classes) == 2 else len(classes)), "a machine of other classes")
    require(outputs > 0 and (outputs == 1 or not getattr(model, "_is_vector", False)), "other outputs")
    for each in ("gap_", "n_iter_", "objective_"):
        array = getattr(model, each)
        require(array.dtype.kind in "iuf" and array.ndim <= 1, f"{each} that are no numbers")
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(2, model.n_features_in_, generator=generator, dtype=torch.float64)
    values = machine.values(Evaluation(), probes)
    require(is_plain_numbers(values), "a machine whose values are not finite")


def _check_support_vectors(model: Any) -> None:
    require(model.svc_.support_vectors_.shape[1] == model.n_features_in_, "support vectors of other inputs")
    require(np.array_equal(model.svc_.classes_, model.classes_), "support vectors of other classes")


def num_outputs(posterior: Any) -> int:
    """How many functions a posterior is of."""
    if isinstance(posterior, ExactPosterior):
        return posterior.targets.shape[1]
    sparse = posterior.sparse if isinstance(posterior, IterativePosterior) else posterior
    require(isinstance(sparse, SparsePosterior), "an unknown posterior")
    return sparse.q.mean.shape[1]


def _width(posterior: Any) -> int:
    """How many columns the inputs of g have."""
    if isinstance(posterior, ExactPosterior):
        return as_blocks(posterior.rows)[0].points.shape[-1]
    sparse = posterior.sparse if isinstance(posterior, IterativePosterior) else posterior
    inducing = sparse.inducing
    return (inducing.points if isinstance(inducing, Atoms) else inducing).shape[-1]


def _device(posterior: Any) -> torch.device:
    return next((each.device for each in posterior.process.parameters()), torch.device("cpu"))
