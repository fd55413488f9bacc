"""Whether the parts of a loaded estimator agree: inputs, outputs, classes, precision, and what is predicted.

Each part was checked by its recipe. Parts that make sense alone may still belong to different models, so
widths and numbers of outputs are compared, and two rows are predicted.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.averages import OrbitAverage, OrbitSum
from orbitwise.functionals.functional import Combination, Composition, Functional
from orbitwise.inference.exact import ExactPosterior
from orbitwise.inference.sparse.iterative import IterativePosterior
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.likelihoods.bernoulli import Bernoulli
from orbitwise.likelihoods.dirichlet import Dirichlet
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.likelihoods.softmax import Softmax
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import DrawnOrbit
from orbitwise.process.process import as_blocks
from orbitwise.selection.search.hypotheses import KINDS
from orbitwise.storage.machines import check_machine_of
from orbitwise.storage.recipes import is_plain_numbers, require
from orbitwise.storage.support_vectors import check_support_vectors_of

ENGINES = ("exact", "collapsed", "variational")
MOST_POINTS = 2**20
MOST_PAIRS = 2**26
"""Pairs of points of two rows, which are held at once: half a gigabyte of numbers."""
PAIRS_PER_NUMBER = 2**12
"""Pairs that one prediction compares, tile by tile, for each number of the file: more rows take longer."""
STEPS = {"structure": str, "score": (int, float), "log_likelihood": (int, float), "num_parameters": int}


def check_agreement(model: Any, num_numbers: int = 0) -> None:
    """Raise a ValueError where an estimator's parts are those of different models.

    A prediction may take work in proportion to `num_numbers`, those that its file holds.
    """
    _check_inputs(model)
    if hasattr(model, "classes_"):
        _check_classes(model.classes_)
    if hasattr(model, "machine_"):
        check_machine_of(model)
    elif hasattr(model, "svc_"):
        check_support_vectors_of(model)
    else:
        _check_process_model(model, num_numbers)
    if hasattr(model, "spelling_"):
        _check_search(model)


def _check_inputs(model: Any) -> None:
    shape, width = getattr(model, "_image_shape", None), model.n_features_in_
    names = getattr(model, "feature_names_in_", None)
    require(shape is None or (len(shape) in (2, 3) and math.prod(shape) == width), "images of another shape")
    own = getattr(model, "_input_shape", None)
    require(own is None or (len(own) == 2 and math.prod(own) == width), "inputs of another shape")
    channels = getattr(model, "channels_", None)
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
    parts = [getattr(model, name) for name in ("_stream",) if hasattr(model, name)]
    parts += [model.model_.latent] if hasattr(model, "model_") else []
    for functional in (*(part.functional for part in parts), model.functional_):
        _check_atoms(functional, posterior, num_numbers)
        rows = functional.atoms(probes, torch.Generator(probes.device).manual_seed(0))
        require(rows.num_rows == 2 and rows.points.shape[-1] == _width(posterior), "rows of another width")
        require(is_plain_numbers(rows.points) and is_plain_numbers(rows.weights), "rows that are not finite")
    with torch.no_grad():
        moments, mean = posterior.row_moments(rows), posterior.row_mean(rows)
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
        return sum(most_atoms(part) for part in functional.parts)  # pyright: ignore
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
        width = model.model_.observations[0].x.shape[1]
        require(width == model.n_features_in_, "a model of other inputs")
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
