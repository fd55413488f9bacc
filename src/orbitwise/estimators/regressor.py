"""InvariantGPRegressor: Gaussian-process regression with an invariance in the prior."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Literal, final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from orbitwise.estimators.engines import nodes_for
from orbitwise.estimators.invariant import LearnedOrbit
from orbitwise.estimators.names import Invariance, functional_of
from orbitwise.estimators.regression_model import Observation, RegressionModel, constant_part, prepare
from orbitwise.estimators.validation import check_inputs, check_training
from orbitwise.functionals.freezing import freeze_functional
from orbitwise.functionals.functional import Block, Functional
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.training import Training, maximize

ROWS_AT_ONCE = 1024


@final
class InvariantGPRegressor(LearnedOrbit, RegressorMixin, MultiOutputMixin, BaseEstimator):
    """Exact Gaussian-process regression of a function f(x) = L_x g that is invariant by construction.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel, default=None
        Kernel of the base process g, for standardised targets if `normalize_y`; None takes a scaled RBF
        kernel that starts at the scale of the data. Its hyperparameters are learned by the evidence, its
        priors and constraints respected; `kernel` is not changed.
    invariance : None, str, Orbit or Functional, default=None
        What f should not care about: a name ("permutation", "sign", "negation", "cyclic", "flip",
        "quarter_turn", "flip+quarter_turn", or of learnable moves of images "rotation", "affine", …), an
        orbit to average over, or any functional of g. Drawn orbits are frozen to `num_nodes` fixed nodes.
    noise : float, default=None
        Noise variance in units of y squared; None learns it.
    mean : {"zero", "constant", "linear"}, default="zero"
        Mean function of g, learned with the kernel. With `normalize_y`, "zero" means the mean of the targets.
    image_shape : tuple of int, default=None
        (height, width) or (channels, height, width), for invariances of images when X has two dimensions.
    normalize_y : bool, default=True
        Standardise targets. The evidence is always that of the targets as given.
    one_sided : {"auto", True, False}, default="auto"
        Whether one side of a group average is enough, see `orbitwise.process.Process`.
    num_nodes : int, default=None
        Fixed nodes of a drawn orbit; None takes as many as the number of rows allows.
    max_iterations, num_restarts : int, default=200, 0
        L-BFGS iterations at most, and additional random starts.
    random_state : int, RandomState or None, default=None
        Seeds restarts and the nodes of a drawn orbit.

    Attributes
    ----------
    kernel_ : the learned kernel. noise_ : the learned noise variance. functional_ : L.
    observation_noise_ : the noise variance of each of the `observations`.
    log_evidence_, evidence_kind_ : log p(y) at the learned hyperparameters, hyperpriors not counted; "exact".
    evidence_terms_ : its "fit", "complexity" and "constant", which sum to it.
    jitter_ : what the factorisation needed, usually 0.
    converged_, history_ : of the best start. posterior_ : the posterior of g.
    """

    n_features_in_: int
    _image_shape: Sequence[int] | None
    _is_vector: bool

    def __init__(
        self,
        kernel: Kernel | None = None,
        invariance: Invariance = None,
        *,
        noise: float | None = None,
        mean: Literal["zero", "constant", "linear"] = "zero",
        image_shape: Sequence[int] | None = None,
        normalize_y: bool = True,
        one_sided: Literal["auto"] | bool = "auto",
        num_nodes: int | None = None,
        max_iterations: int = 200,
        num_restarts: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.invariance = invariance
        self.noise = noise
        self.mean = mean
        self.image_shape = image_shape
        self.normalize_y = normalize_y
        self.one_sided = one_sided
        self.num_nodes = num_nodes
        self.max_iterations = max_iterations
        self.num_restarts = num_restarts
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        observations: Sequence[Observation] = (),
    ) -> InvariantGPRegressor:
        """Learn kernel, noise and mean by the evidence of y.

        A sample weight counts repetitions of its row. `observations` adds observations of other functionals
        of f, as (functional, inputs, targets, noise variance or None to learn it): slopes, differences,
        averages. A functional of several rows an input, such as `Gradient()`, takes targets [n, rows], or
        [n, rows, outputs].
        """
        x, targets, weight = check_training(self, X, y, sample_weight)
        seed = int(check_random_state(self.random_state).randint(2**31))
        generator = torch.Generator().manual_seed(seed)
        functional = copy.deepcopy(functional_of(self.invariance, self.n_features_in_, self._image_shape))
        self._set_orbit(functional, x)
        num_nodes = nodes_for(len(x)) if self.num_nodes is None else self.num_nodes
        functional = freeze_functional(functional, num_nodes, generator)
        model = prepare(
            x - self._background,
            targets,
            weight,
            functional,
            self.kernel,
            self.noise,
            self.mean,
            self.normalize_y,
            self.one_sided,
            observations,
        )
        if self.max_iterations == 0:
            # The objective would only repeat the factorisation that conditioning needs.
            training = Training(np.nan, False, "no iterations asked for")
        else:
            training = maximize(
                model.objective,
                list(model.parameters()),
                self.max_iterations,
                self.num_restarts,
                generator=generator,
            )
        self._store(model)
        self._set_objective(model.objective, list(model.parameters()))
        self.converged_ = training.converged
        self.history_ = training.history
        return self

    def predict(
        self, X: ArrayLike, return_std: bool = False, return_cov: bool = False, include_noise: bool = False
    ) -> Any:
        """The posterior mean of f and its deviation or covariance; with `include_noise`, those of a new y."""
        if return_std and return_cov:
            raise ValueError("At most one of return_std and return_cov can be asked for.")
        return self._predict(Evaluation(), X, return_std, return_cov, include_noise)

    def predict_functional(
        self, functional: Functional, X: ArrayLike, return_std: bool = False, return_cov: bool = False
    ) -> Any:
        """The posterior mean of another functional of f, say its slopes `Gradient()`, and its deviation."""
        return self._predict(functional, X, return_std, return_cov, include_noise=False)

    def sample_y(
        self, X: ArrayLike, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> NDArray[np.float64]:
        """Joint posterior draws of f: [n, n_samples], or [n, outputs, n_samples] for several outputs."""
        x = self._inputs(X)
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31)))
        with torch.no_grad():
            rows = self.functional_.atoms(x)
            draws = self.posterior_.sample(rows, n_samples, generator)
            draws = draws * self._scale[None, :, None] + self._shift[None, :, None]
        return (draws[:, 0] if self._is_vector else draws).numpy()

    def _predict(
        self, functional: Functional, X: ArrayLike, return_std: bool, return_cov: bool, include_noise: bool
    ) -> Any:
        x = self._inputs(X, plain=functional.is_identity)
        with torch.no_grad():
            noise = self._scale.square() * (self._model.noise() if include_noise else 0.0)
            blocks = self._blocks(functional, x)
            shift = constant_part(functional, x)[:, None] * self._shift
            if return_std:
                parts = [self.posterior_.row_moments(block) for block in blocks]
                standardised = torch.cat([part.mean for part in parts])
            else:
                standardised = torch.cat([self.posterior_.row_mean(block) for block in blocks])
            mean = self._column(standardised * self._scale + shift)
            if return_cov:
                spread = self.posterior_.covariance((functional @ self.functional_).atoms(x))
                spread = spread[..., None] * self._scale.square()
                identity = torch.eye(len(spread), dtype=spread.dtype)[..., None]
                return mean, self._column(spread + noise * identity)
            if return_std:
                variance = torch.cat([part.variance for part in parts])
                return mean, self._column((variance[:, None] * self._scale.square() + noise).sqrt())
        return mean

    def _blocks(self, functional: Functional, x: torch.Tensor) -> Iterator[Block]:
        """The rows to predict, some at a time; functionals that belong to all of x are lowered at once."""
        if functional.is_identity:
            yield from (self.functional_.atoms(part) for part in x.split(ROWS_AT_ONCE))
            return
        rows = (functional @ self.functional_).atoms(x)
        step = max(1, ROWS_AT_ONCE * len(rows.points) // rows.num_rows)
        for start in range(0, len(rows.points), step):
            yield rows.rows(slice(start, start + step))

    def _inputs(self, X: ArrayLike, plain: bool = True) -> torch.Tensor:
        check_is_fitted(self)
        return check_inputs(self, X, plain) - self._background

    def _column(self, values: torch.Tensor) -> NDArray[np.float64]:
        return (values[..., 0] if self._is_vector else values).numpy()

    def _variance(self, standardised: torch.Tensor) -> float | NDArray[np.float64]:
        """A variance in units of the targets: a number, or one for each output when there are several."""
        variance = (standardised * self._scale.square()).numpy()
        return float(variance[0]) if len(variance) == 1 else variance

    def _store(self, model: RegressionModel) -> None:
        with torch.no_grad():
            self.posterior_ = model.posterior()
            terms = model.evidence(self.posterior_)
        self._model = model
        self.kernel_ = model.process.kernel
        self.functional_ = model.functional
        self._scale, self._shift = model.scale, model.shift
        with torch.no_grad():
            self.noise_, *self.observation_noise_ = (
                self._variance(noise) for noise in (model.noise(), *model.extra_noise())
            )
        self.log_evidence_ = terms.value
        self.evidence_terms_ = {"fit": terms.fit, "complexity": terms.complexity, "constant": terms.constant}
        self.evidence_kind_ = "exact"
        self.jitter_ = terms.jitter
