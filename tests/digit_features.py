"""Real features for tests of protocols: the pixels of scikit-learn's digits."""

import numpy as np
from sklearn.datasets import load_digits

from vitlab.evaluation.labeled_features import Array


def digits() -> tuple[Array, Array, Array, Array]:
    """Training features [1000, 64] and labels, test features [797, 64] and labels."""
    x, y = map(np.asarray, load_digits(return_X_y=True))
    return x[:1000], y[:1000], x[1000:], y[1000:]
