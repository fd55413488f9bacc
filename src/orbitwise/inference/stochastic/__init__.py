"""Stochastic variational inference: the trainer, its bound, polishing, and other likelihoods."""

__all__: list[str] = []
