"""
Probabilities of classes that can be trusted
============================================

A classifier should know when it does not know. Ten digits from 200 images: the Gaussian process sets the
scale of its probabilities by leave-one-out on the training labels, so no data are held back. How well they
are calibrated shows in the log loss, which a single prediction that is wrong and sure makes large, and in a
reliability diagram.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.svm import SVC

from orbitwise import InvariantGPClassifier

images, labels = load_digits(return_X_y=True)
images = images / 16
order = np.random.default_rng(0).permutation(len(images))
train, new = order[:200], order[200:]

# %%
# Three classifiers
# -----------------
# The support vector machine has no probabilities of its own; scikit-learn adds them by folds.

models = {
    "Gaussian process": InvariantGPClassifier(),
    "support vectors, sigmoids by folds": CalibratedClassifierCV(SVC(), method="sigmoid"),
    "support vectors, isotonic by folds": CalibratedClassifierCV(SVC(), method="isotonic"),
}
probabilities = {
    name: model.fit(images[train], labels[train]).predict_proba(images[new]) for name, model in models.items()
}
losses = {name: log_loss(labels[new], each) for name, each in probabilities.items()}
for name, each in probabilities.items():
    error = 100 * np.mean(each.argmax(axis=1) != labels[new])
    print(f"{name:36s} error {error:4.1f} %   log loss {losses[name]:.3f}")

# %%
# Reliability
# -----------
# Of all predictions made with some probability, which share was right? Dots on the diagonal are calibrated.

figure, axis = plt.subplots(figsize=(5, 4.6), layout="constrained")
for (name, each), marker in zip(probabilities.items(), "os^", strict=True):
    sure, right = each.max(axis=1), each.argmax(axis=1) == labels[new]
    places = np.digitize(sure, [0.5, 0.7, 0.9])
    groups = [places == place for place in range(4) if (places == place).sum() > 10]
    axis.plot(
        [sure[group].mean() for group in groups],
        [right[group].mean() for group in groups],
        marker + "-",
        label=name,
    )
axis.plot([0.3, 1], [0.3, 1], color="grey", linestyle=":")
axis.set(xlabel="probability of the predicted class", ylabel="share that was right")
axis.legend(frameon=False)

# %%
assert losses["Gaussian process"] < min(loss for name, loss in losses.items() if name != "Gaussian process")
plt.show()
