"""Sparse inference with inducing variables: bounds, certificates, and conjugate gradients."""

__all__: list[str] = []
