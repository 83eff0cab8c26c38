"""The Frechet distance of two sets of images: of the Gaussians with the means and covariances of their features.

    |m1 - m2|^2 + Tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2)

It is 0 for sets whose features have the same mean and covariance. With Inception's features it is known as FID; here
the features are those of a model of our own, and numbers compare only where model, data and count are the same. Few
images make it too large, real ones too: read it beside that of other real images.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.core.preprocess import Preprocess
from vitlab.evaluation.contract import EvaluationError, Subject
from vitlab.evaluation.subject import subject_from, subject_of
from vitlab.weights.load import load

PIXELS = "pixels"  # in the place of a model: the colours themselves, of the picture shrunk
SIDE = 8  # px, to which it is
COLLAPSED = 0.05  # a diversity below which made images are nearly all alike


@final
@dataclass(frozen=True)
class Gaussian:
    """What is kept of a set's features."""

    count: float
    mean: Float[Tensor, "d"]
    covariance: Float[Tensor, "d d"]  # the unbiased one


def title(features: str) -> str:
    """What the distance is called: never without the model whose features it is of."""
    whose = f"{SIDE} x {SIDE} pixels" if features == PIXELS else f"{features}'s features"
    return f"Frechet distance of {whose}"


def feature_subject(source: str, device: torch.device) -> Subject:
    """The trained model whose features are compared, or where it is named so no model but the pixels."""
    if source == PIXELS:
        how = Preprocess(size=(SIDE, SIDE))
        return subject_from(lambda images: images.flatten(1), name=PIXELS, preprocess=how, device=device)
    try:
        return subject_of(load(source), name=source, device=device)
    except Error as error:
        raise EvaluationError(f"The features of the Frechet distance: {error}") from error


def features_of(subject: Subject, pixels: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
    """The features of pictures of any size, on the subject's device."""
    pictures = list(pixels.permute(0, 2, 3, 1).cpu().numpy())
    return subject.features(subject.preprocess(pictures).to(subject.device))


def moments(features: Float[Tensor, "b d"]) -> Float[Tensor, "m"]:
    """Count, sums and sums of products, float64, in one row: they add up over batches and processes."""
    x = features.double()
    count = x.new_full((1,), len(x))
    return torch.cat([count, x.sum(dim=0), (x.T @ x).flatten()])


def gaussian(sums: Float[Tensor, "m"]) -> Gaussian:
    """The mean and the covariance of what `moments` gave."""
    sums = sums.double().cpu()
    width = round(((4 * len(sums) - 3) ** 0.5 - 1) / 2)  # 1 + d + d^2 numbers
    count, total, products = sums[0].item(), sums[1 : width + 1], sums[width + 1 :].view(width, width)
    mean = total / max(count, 1)
    covariance = (products - count * mean[:, None] * mean) / max(count - 1, 1)
    return Gaussian(count, mean, (covariance + covariance.T) / 2)


def frechet_distance(first: Gaussian, second: Gaussian) -> float:
    """In float64. The trace of the root is the sum of the singular values of C1^1/2 C2^1/2.

    Roots of covariances, which are symmetric, have no imaginary part to drop, and values that rounding made negative
    are 0: sets with fewer images than features are no exception.
    """
    roots = [_root(each.covariance) for each in (first, second)]
    overlap = torch.linalg.svdvals(roots[0] @ roots[1]).sum()
    traces = first.covariance.trace() + second.covariance.trace()
    apart = (first.mean - second.mean).square().sum()
    return max((apart + traces - 2 * overlap).item(), 0.0)


def diversity(made: Gaussian, real: Gaussian) -> float:
    """The variance of made images' features as a part of the real ones': 0 where all are the same."""
    return (made.covariance.trace() / real.covariance.trace().clamp(min=1e-300)).clamp(min=0).item()


def _root(covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    values, vectors = torch.linalg.eigh(covariance.double())
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T
