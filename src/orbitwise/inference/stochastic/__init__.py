"""Stochastic variational inference: trainer, bounds on batches and on all rows, and other likelihoods."""

__all__: list[str] = []
