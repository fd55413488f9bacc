"""Base kernels that GPyTorch lacks, and a readable spelling of sums and products of kernels."""

from orbitwise.kernels.bases import ALIASES, BASES, CentredLinearKernel, log_positive, spectral_mixture, start
from orbitwise.kernels.basis import BasisKernel, BumpBasis, FourierBasis, PolynomialBasis
from orbitwise.kernels.scaled_columns import ScaledColumnsKernel
from orbitwise.kernels.spelling import SpellingError, parse, spell
from orbitwise.kernels.wide_networks import WideConvolutionKernel, WideNetworkKernel

__all__ = [
    "ALIASES",
    "BASES",
    "BasisKernel",
    "BumpBasis",
    "CentredLinearKernel",
    "FourierBasis",
    "PolynomialBasis",
    "ScaledColumnsKernel",
    "SpellingError",
    "WideConvolutionKernel",
    "WideNetworkKernel",
    "log_positive",
    "parse",
    "spectral_mixture",
    "spell",
    "start",
]
