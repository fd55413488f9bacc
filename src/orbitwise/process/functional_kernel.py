"""FunctionalKernel: the kernel of f as a GPyTorch kernel, for ExactGP, variational GPs and BoTorch models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from orbitwise.functionals.functional import Atoms, Functional
from orbitwise.process.process import Process


@final
class FunctionalKernel(Kernel):
    """k_f(x, y) = cov(L_x g, L_y g) for g with the given base kernel.

    Batch dimensions, ARD, active dimensions, priors and constraints are the base kernel's. `normalize` gives
    every f(x) unit prior variance (LIM-A eq. 2). Functionals whose rows are drawn at random are refused,
    because their Gram matrix is not positive definite.

    Parameters
    ----------
    base_kernel : gpytorch.kernels.Kernel
        k_g, the covariance of g.
    functional : Functional
        L, of one exact row per input: an average over a finite or frozen orbit, a slope, a feature map.
    normalize : bool, default=False
        Whether k_f(x, x) is scaled to 1.
    one_sided : "auto" or bool, default="auto"
        See `Process`.
    active_dims : sequence of int, default=None
        The columns that the functional sees.
    """

    has_lengthscale = False

    def __init__(
        self,
        base_kernel: Kernel,
        functional: Functional,
        normalize: bool = False,
        one_sided: Literal["auto"] | bool = "auto",
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims=None if active_dims is None else tuple(active_dims))
        self.base_kernel = base_kernel
        self.functional = functional
        self.normalize = normalize
        self.one_sided: Literal["auto"] | bool = one_sided
        self._kept: tuple[Process, ...] = ()

    @property
    def is_stationary(self) -> bool:
        """False, because an average over an orbit depends on its inputs, not only on their difference."""
        return False

    @property
    def batch_shape(self) -> torch.Size:
        """That of the base kernel."""
        return self.base_kernel.batch_shape

    @batch_shape.setter
    def batch_shape(self, val: torch.Size) -> None:
        """Ignored: GPyTorch sets it after expanding or indexing a kernel, and does so for the base kernel."""

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: object
    ) -> Tensor:
        """cov(L_x g, L_y g) of all pairs [*batch, n, m], or with `diag` of row i with row i [*batch, n]."""
        if last_dim_is_batch:
            raise ValueError(
                "FunctionalKernel moves whole inputs: last_dim_is_batch=True has no meaning for it."
            )
        process = self._process()
        left = self._lower(x1, process)
        if x1 is x2:
            return process.variance(left) if diag else process.covariance(left)
        right = self._lower(x2, process)
        return process.paired_covariance(left, right) if diag else process.covariance(left, right)

    def _process(self) -> Process:
        """The base process, kept so that an asserted invariance is checked once; a tuple hides modules."""
        if not self._kept or self._kept[0].kernel is not self.base_kernel:
            self._kept = (Process(None, self.base_kernel, self.one_sided),)
        return self._kept[0]

    def _lower(self, x: Tensor, process: Process) -> Atoms:
        atoms = self.functional.atoms(x.reshape(-1, x.shape[-1]))
        if not isinstance(atoms, Atoms):
            raise ValueError(
                "FunctionalKernel takes functionals with one row per input: DirectionalDerivative, not "
                "Gradient."
            )
        if atoms.is_drawn:
            raise ValueError(
                "This functional draws its rows at random, so its Gram matrix is not positive definite. "
                "Freeze the orbit first: orbit.freeze(num_nodes)."
            )
        atoms = atoms.batched(x.shape[:-2])
        return process.normalize(atoms) if self.normalize else atoms
