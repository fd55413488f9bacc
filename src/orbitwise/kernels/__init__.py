"""Base kernels that GPyTorch lacks, and a readable spelling of sums and products of kernels."""

from orbitwise.kernels.bases import ALIASES, BASES
from orbitwise.kernels.basis import BasisKernel, BumpBasis, FourierBasis, PolynomialBasis
from orbitwise.kernels.constraints import log_positive
from orbitwise.kernels.linear import CentredLinearKernel
from orbitwise.kernels.spectrum import spectral_mixture
from orbitwise.kernels.spelling import parse, spell
from orbitwise.kernels.starts import start
from orbitwise.kernels.tokens import SpellingError
from orbitwise.kernels.wide_convolution import WideConvolutionKernel
from orbitwise.kernels.wide_network import WideNetworkKernel

__all__ = [
    "ALIASES",
    "BASES",
    "BasisKernel",
    "BumpBasis",
    "CentredLinearKernel",
    "FourierBasis",
    "PolynomialBasis",
    "SpellingError",
    "WideConvolutionKernel",
    "WideNetworkKernel",
    "log_positive",
    "parse",
    "spectral_mixture",
    "spell",
    "start",
]
