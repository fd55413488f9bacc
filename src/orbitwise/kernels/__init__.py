"""Base kernels that GPyTorch lacks, and a readable spelling of sums and products of kernels."""

__all__: list[str] = []
