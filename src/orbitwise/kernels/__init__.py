"""Base kernels that GPyTorch lacks, and a readable spelling of sums and products of kernels."""

from orbitwise.kernels.bases import ALIASES, BASES
from orbitwise.kernels.constraints import log_positive
from orbitwise.kernels.linear import CentredLinearKernel
from orbitwise.kernels.spectrum import spectral_mixture
from orbitwise.kernels.spelling import parse, spell
from orbitwise.kernels.starts import start
from orbitwise.kernels.tokens import SpellingError

__all__ = [
    "ALIASES",
    "BASES",
    "CentredLinearKernel",
    "SpellingError",
    "log_positive",
    "parse",
    "spectral_mixture",
    "spell",
    "start",
]
