"""InvariantGPClassifier: Gaussian-process classification that learns what it should not care about."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal, final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from orbitwise.declarations import NUMBER, REPORTED, REPORTED_ARRAY, TEXT, Field, Stored
from orbitwise.estimators.engines import Engine, Tilts, check_engine, engine_for
from orbitwise.estimators.estimator import EngineEstimator, answering, learning
from orbitwise.estimators.forms import Channels, input_shape
from orbitwise.estimators.invariances import Invariance, functional_of
from orbitwise.estimators.likelihoods import LabelCoding, class_likelihood, class_probabilities
from orbitwise.estimators.machines.machine import warn_of_one_class
from orbitwise.estimators.regression_model import RegressionModel, TargetScale
from orbitwise.estimators.validation import (
    check_data,
    check_inputs,
    check_search,
    flatten_images,
    set_layout,
)
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.calibration import (
    cautious_scale,
    cross_entropy,
    held_out_loss,
    least_noise,
    two_columns,
)
from orbitwise.inference.defaults import default_kernel
from orbitwise.inference.fit_result import FitResult
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.process.process import Process

ROWS_AT_ONCE = 512
GIVE = "Scale the columns of X, take another kernel or invariance, or label more rows"
"""What to do where one class is predicted for all rows."""


@final
class InvariantGPClassifier(EngineEstimator, ClassifierMixin, BaseEstimator):
    """Classification by a Gaussian process f(x) = L_x g whose invariance is learned by the evidence.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel, default=None
        Kernel of the base process g; None takes a scaled RBF kernel that starts at the scale of the data.
    invariance : None, str, Orbit or Functional, default=None
        What f should not care about. Names of images ("rotation", "affine", "deformation",
        "affine+deformation", "translation", …) need `image_shape` unless X has image dimensions.
    likelihood : {"one_hot", "stick_breaking", "dirichlet", "softmax"} or Likelihood, default="one_hot"
        How labels are observed: Gaussian noise on one-hot codes, with probabilities from a softmax whose
        scale leave-one-out sets; Pólya-Gamma logits of sticks (for two classes, logistic regression);
        Dirichlet; or a softmax of one f per class, whose bound averages a drawn orbit over fixed nodes. An
        instance is copied.
    noise : {"evidence", "leave_one_out"}, default="evidence"
        How the noise variance of one-hot codes is chosen in the end; labels are not Gaussian, so
        leave-one-out on the training set often predicts better.
    image_shape : tuple of int, default=None
        (height, width), or three sizes in the order of `channels`, of an image in a row of X.
    channels : {"auto", "first", "last"}, default="auto"
        Where images [n, …], and three sizes of `image_shape`, have their channels. "auto" takes the axis of
        1, 3 or 4 at either end and refuses what could be both. Orbits, functionals and kernels always see
        rows with the channels first.
    inference : {"auto", "exact", "collapsed", "variational"}, default="auto"
        By size: exact to 1,500 rows, collapsed to 5,000, then stochastic.
    num_nodes, max_nodes, max_seconds : int, int, float, default=None
        Exact inference averages a drawn orbit over fixed nodes, the same for every seed. They double until
        neither the evidence nor the ranges would move on others, or `max_nodes` are used (None takes as many
        as one evaluation can do in some seconds), or `max_seconds` have passed; the best so far is then kept.
        `num_nodes` takes that many in the end. Collapsed inference takes `num_nodes`, 16 by default.
    num_inducing, max_iterations, num_restarts, num_steps, batch_size : int
        Inducing points; iterations at most (None takes 200, or 40 for each ascent where nodes are used) and
        additional starts; stochastic steps (None takes them until bound, kernel and ranges stand still,
        3,400 at most) and rows per step.
    tilts : {"remembered", "recognition"}, default="remembered"
        Where stochastic inference with likelihood="stick_breaking" takes the free parameter of each label's
        Pólya-Gamma bound from: earlier visits of that label, or a recognition network of input and label
        that is trained with the bound.
    random_state, device, verbose, callback, warm_start
        Seed (exact inference draws nothing but additional starts); where to compute; whether to print; a
        function of (step, bound); whether `fit` goes on from the last fit.
    checkpoint : str, default=None
        A folder where `fit` keeps its progress. The same fit to the same data, by the same seed, goes on from
        there after it was killed, and ends with the same bits, if as many threads work on it: with another
        number it warns, and ends with the same result up to rounding.

    Attributes
    ----------
    classes_, kernel_, noise_, functional_, orbit_, inference_, history_, converged_ : what was learned, how.
    channels_ : "first" or "last", where images had their channels; None where there are none.
    orbit_errors_, orbit_intervals_ : the standard error of every learned range, and the interval that holds
        its upper end with 95 %.
    search_, stopped_by_ : what was tried on each number of nodes, where nodes were used, and why that ended.
    log_evidence_, evidence_kind_, log_evidence_error_, leave_one_out_log_loss_ : how well it explains y, and
        how far that may be off by the choice of nodes; the last with likelihood="one_hot" only. A lower bound
        is that of the average over the whole orbit, estimated from fresh draws without bias, with its
        standard error.
    """

    stored = Stored(
        fitted={
            "classes_": REPORTED_ARRAY,
            "inference_": TEXT,
            "model_": Field((RegressionModel,)),
            "scale_": NUMBER,
        },
        sometimes={"leave_one_out_log_loss_": REPORTED, "noise_": NUMBER},
    )

    def __init__(
        self,
        kernel: Kernel | None = None,
        invariance: Invariance = None,
        *,
        likelihood: LabelCoding | Likelihood = "one_hot",
        noise: Literal["evidence", "leave_one_out"] = "evidence",
        image_shape: Sequence[int] | None = None,
        channels: Channels = "auto",
        inference: Engine = "auto",
        num_inducing: int = 500,
        num_nodes: int | None = None,
        max_nodes: int | None = None,
        max_seconds: float | None = None,
        max_iterations: int | None = None,
        num_restarts: int = 0,
        num_steps: int | None = None,
        batch_size: int = 256,
        tilts: Tilts = "remembered",
        random_state: int | np.random.RandomState | None = None,
        device: str = "cpu",
        verbose: bool = False,
        callback: Callable[[int, float], None] | None = None,
        warm_start: bool = False,
        checkpoint: str | None = None,
    ) -> None:
        self.kernel = kernel
        self.invariance = invariance
        self.likelihood = likelihood
        self.noise = noise
        self.image_shape = image_shape
        self.channels: Channels = channels
        self.inference: Engine = inference
        self.num_inducing = num_inducing
        self.num_nodes = num_nodes
        self.max_nodes = max_nodes
        self.max_seconds = max_seconds
        self.max_iterations = max_iterations
        self.num_restarts = num_restarts
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.tilts: Tilts = tilts
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.callback = callback
        self.warm_start = warm_start
        self.checkpoint = checkpoint

    @learning("log_evidence_", "noise_")
    def fit(self, X: ArrayLike, y: ArrayLike) -> InvariantGPClassifier:
        """Learn kernel, orbit and noise by the evidence of the training labels."""
        flat, layout = flatten_images(self, X)
        x, labels = check_data(self, flat, y, ensure_min_samples=1)
        check_classification_targets(labels)
        x = set_layout(self, layout, x)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                "Classification needs at least two classes, but the labels hold one class only: "
                f"{self.classes_.tolist()[0]!r}."
            )
        if self.noise not in ("evidence", "leave_one_out"):
            raise ValueError(f"noise must be 'evidence' or 'leave_one_out', not {self.noise!r}.")
        check_search(self)
        seed = int(check_random_state(self.random_state).randint(2**31))
        generator = torch.Generator(self.device).manual_seed(seed)
        self.model_ = self._prepared(x, torch.from_numpy(codes))
        model, (rows,) = self.model_.latent, self.model_.observations
        if self.noise == "leave_one_out" and not isinstance(model.likelihood, Gaussian):
            raise ValueError("noise='leave_one_out' goes with likelihood='one_hot' only.")
        check_engine(self.inference, model.likelihood)
        auto = engine_for(len(rows), isinstance(model.likelihood, Gaussian))
        engine = auto if self.inference == "auto" else self.inference
        if self.tilts != "remembered" and (engine != "variational" or not model.likelihood.needs_tilt):
            raise ValueError(
                f"tilts={self.tilts!r} is for stochastic inference of sticks: use "
                "likelihood='stick_breaking' with inference='variational', or leave tilts out."
            )
        self.inference_ = engine
        self._store(self._run(model, self.model_.observations, generator), torch.from_numpy(codes))
        said = self._probabilities(*self._row_moments(rows.x)).argmax(1).cpu()
        has_no_label = torch.zeros_like(said, dtype=torch.bool)
        name, given = type(self).__name__, torch.from_numpy(codes)
        warn_of_one_class(name, self.classes_, said, has_no_label, given, GIVE)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of every row."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]

    @answering
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of every class, in the order of `classes_`."""
        return self._probabilities(*self.moments(X)).cpu().numpy()

    def _probabilities(self, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return class_probabilities(self.likelihood_, mean, variance, self.scale_)

    @property
    def likelihood_(self) -> Likelihood:
        """The likelihood with its learned parameters."""
        check_is_fitted(self)
        return self.model_.latent.likelihood

    def moments(self, X: ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
        """The posterior mean and variance of f for every row and output, as tensors."""
        check_is_fitted(self)
        return self._row_moments(check_inputs(self, X).to(self.device) - self.form_.background)

    def _row_moments(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            parts = [self.posterior_.moments(self.functional_, part) for part in x.split(ROWS_AT_ONCE)]
        mean = torch.cat([part.mean for part in parts])
        variance = torch.cat(
            [part.variance if part.variance.dim() > 1 else part.variance[:, None] for part in parts]
        )
        return mean, variance.expand_as(mean)

    def _prepared(self, x: NDArray[np.float64], codes: torch.Tensor) -> RegressionModel:
        """The model to be learned, and codes of the labels as its targets."""
        likelihood = class_likelihood(self.likelihood, len(self.classes_))
        targets = likelihood.encode_labels(codes, len(self.classes_))
        previous = getattr(self, "model_", None) if self.warm_start else None
        if previous is not None and previous.observations[0].x.shape[1] == x.shape[1]:
            self._set_orbit(previous.latent.functional, x)
            latent = previous.latent
            rows = self._rows(x)
        else:
            functional = copy.deepcopy(functional_of(self.invariance, x.shape[1], input_shape(self)))
            functional = functional.double().to(self.device)
            self._set_orbit(functional, x)
            rows = self._rows(x)
            base = default_kernel(rows, functional.is_identity and x.shape[1] <= 20)
            process = Process(None, base if self.kernel is None else copy.deepcopy(self.kernel).double())
            latent = LatentModel(process, functional, likelihood)
        unit = torch.ones(targets.shape[1], dtype=torch.float64)
        rows = Observations(Evaluation(), rows, targets.to(self.device))
        return RegressionModel(latent.to(self.device), (rows,), TargetScale(torch.zeros_like(unit), unit))

    def _rows(self, x: NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy(np.array(x)).to(self.device) - self.form_.background

    def _store(self, result: FitResult, codes: torch.Tensor) -> None:
        """Remember the fit; for one-hot codes also the scale of the softmax and the noise asked for."""
        vars(self).pop("noise_", None)
        vars(self).pop("leave_one_out_log_loss_", None)
        self.scale_ = 1.0
        if result.noise is not None:
            codes, noise = codes.to(self.device), result.noise
            if self.noise == "leave_one_out":
                noise = least_noise(
                    lambda value: held_out_loss(result.at_noise(value).held_out_means(), codes), 4 * noise
                )
            result = result.at_noise(noise)
            scores = two_columns(result.held_out_means())
            self.noise_ = noise
            self.scale_ = cautious_scale(scores, codes)
            self.leave_one_out_log_loss_ = cross_entropy(scores, codes, self.scale_)
        self._set_result(result, self.model_.latent.process)
