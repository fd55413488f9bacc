"""Learning: L-BFGS and box searches, hyperparameters and their priors, checkpoints, costs."""

__all__: list[str] = []
