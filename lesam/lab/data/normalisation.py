"""Means and standard deviations of pixels in [0, 1], by name.

Papers differ in these constants, and each published number was made with its own.
"""

from __future__ import annotations

from typing import NamedTuple

from lesam.lab.config.suggest import unknown


class Normalisation(NamedTuple):
    """Per-channel mean and standard deviation; a single channel stands for any number of them."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


NORMALISATIONS = {
    # Inputs stay in [0, 1]; the model normalises (adversarial robustness).
    "unit": Normalisation((0.0,), (1.0,)),
    # Signals, which come standardised: what turns pixels into [0, 1] drops out.
    "as_is": Normalisation((0.0,), (1 / 255,)),
    # Inputs in [-1, 1], for synthetic images and others without statistics of their own.
    "half": Normalisation((0.5,), (0.5,)),
    # The bundled digits, computed over all 1,797 images.
    "digits": Normalisation((0.3053,), (0.3759,)),
    # ESAM, PyramidNet and the LE-SAM paper, for CIFAR-10 and CIFAR-100 alike.
    "esam": Normalisation((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    # Friendly-SAM, GLMC and LDAM, on CIFAR-100 too.
    "fsam": Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    # Eigen-SAM and ASAM on CIFAR-100.
    "eigensam_cifar100": Normalisation((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    # The data sets' own statistics.
    "cifar10": Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Normalisation((0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615)),
    # Standard training before PGD attacks (Zhang et al. 2024).
    "robust_cifar10": Normalisation((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    "robust_cifar100": Normalisation((0.507075, 0.486549, 0.440918), (0.267334, 0.256438, 0.276150)),
    "imagenet": Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def normalisation(name: str) -> Normalisation:
    """Look up the constants of a name.

    Example:
        >>> normalisation("imagenet").mean
        (0.485, 0.456, 0.406)
    """
    if name not in NORMALISATIONS:
        raise unknown("normalisation", name, NORMALISATIONS)
    return NORMALISATIONS[name]
