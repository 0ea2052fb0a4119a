r"""Global and local mixture consistency with cumulative re-balancing, for long-tailed data.

In each step a batch of the training set is mixed with one that was drawn anew, as a whole and by a box, and both
mixtures go through a network with two classifiers and a projection. With ``a`` falling from 1 to 0 over training,

.. math:: L = a L_{conventional} + (1 - a) L_{rebalanced} + \gamma L_{similarity}.

Reference:
    Du et al., Global and Local Mixture Consistency Cumulative Learning for Long-tailed Visual Recognitions, CVPR 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from lesam.lab.config.task import GLMCConfig
from lesam.lab.data import TensorSet
from lesam.lab.data.seeds import generator, mix
from lesam.lab.device import widest_float
from lesam.lab.models.glmc import GLMCNet, Heads
from lesam.lab.tasks.classification import full_precision
from lesam.lab.tasks.mixing import Mixture
from lesam.lab.tasks.objective import Batch, Objective
from lesam.lab.tasks.task import Parts, Task, right_answers


class GLMC(Task):
    """GLMC on two loaders over the same images, each with two views of an image."""

    def __init__(self, parts: Parts) -> None:
        """Make the loaders: the run's own order, and images drawn with replacement by the size of their class."""
        if not isinstance(parts.module, GLMCNet):
            raise ValueError(
                f"the task glmc trains a network with its four heads, resnet32_glmc; got {parts.config.model.name}"
            )
        task = cast(GLMCConfig, parts.config.task)
        if task.ascent == "no_sim" and parts.config.method == "esam":
            raise ValueError("esam climbs the loss that it chooses samples by: set task.ascent=full")
        split, seed = parts.splits.train, parts.config.seed
        if isinstance(split, TensorSet):
            split = split.to(parts.fabric.device)  # once for all loaders
        weights = sampling_weights(parts.splits.train.labels, parts.class_counts, task.resampling_power)
        drawn = mix("drawn", seed)
        # All loaders have equal length: the drawn images never run out before the epoch does.
        self._loaders = (
            parts.data.train,
            parts.data.shuffled(split, seed=seed, view=1),
            parts.data.shuffled(split, seed=drawn, weights=weights),
            parts.data.shuffled(split, seed=drawn, weights=weights, view=1),
        )
        super().__init__(parts)

    @property
    def uniform_loss(self) -> float | None:
        """None: weights of the classes and of the similarity change over training."""
        return None

    def make_objective(self) -> Objective:
        """The cumulative loss of two mixtures."""
        return CumulativeLoss(self.parts)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Two views of a batch, two views of the drawn one, the drawn labels and the labels."""
        readers = [loader.epoch(epoch, start=start) for loader in self._loaders]
        for (first, labels), (second, _), (drawn_first, drawn_labels), (drawn_second, _) in zip(*readers, strict=True):
            yield first, second, drawn_first, drawn_second, drawn_labels, labels


class CumulativeLoss(Objective):
    """GLMC's loss of one step; every pass of the step sees the same mixtures."""

    def __init__(self, parts: Parts) -> None:
        """Bind the network and the weights of the classes."""
        super().__init__(parts.fabric)
        task = cast(GLMCConfig, parts.config.task)
        self.model, self.times, self.seed = parts.inner, parts.times, parts.config.seed
        self.gamma = task.gamma
        weights = class_weights(parts.class_counts, task.weight_power)
        self.class_weights = weights.to(parts.fabric.device, widest_float(parts.fabric.device))
        if task.ascent == "no_sim":
            self.ascent_loss = self.supervised_loss
        self.whole = self.boxed = self.targets = torch.empty(0)
        self.a = 1.0

    def take(self, batch: Batch, step: int) -> None:
        """Mix the batches of the coming step, by a draw that is a function of (seed, step)."""
        super().take(batch, step)
        first, second, drawn_first, drawn_second, drawn_labels, labels = batch
        height, width = first.shape[2:]
        # The same on every worker: one share for the whole batch.
        mixture = Mixture.draw(height, width, generator("mixture", self.seed, step))
        self.whole = mixture.whole(first, drawn_first)
        self.boxed = mixture.boxed(second, drawn_second)
        classes = len(self.class_weights)
        one_hot, drawn_one_hot = (functional.one_hot(each, classes).to(first.dtype) for each in (labels, drawn_labels))
        self.targets = mixture.whole(one_hot, drawn_one_hot)
        self.a = cumulative(step // self.times.steps_per_epoch, self.times.epochs)

    def sample_losses(self, indices: Tensor | None = None) -> Tensor:
        """Loss of each pair of mixtures, or of the chosen ones."""
        return self._losses(slice(None) if indices is None else indices, self.gamma)

    def loss(self) -> Tensor:
        """Mean loss of the batch."""
        return self.sample_losses().mean()

    def supervised_loss(self) -> Tensor:
        """Mean loss without the similarity; at weight 0 its heads still have a gradient, as workers expect."""
        return self._losses(slice(None), 0.0).mean()

    def _losses(self, chosen: slice | Tensor, gamma: float) -> Tensor:
        with self.fabric.autocast():
            heads = self.model(self.whole[chosen], self.boxed[chosen])
        g, l = (Heads(*map(full_precision, view)) for view in heads)  # noqa: E741 -- global and local
        targets = self.targets[chosen]
        if self.correct is None:
            self.correct = right_answers(g.rebalanced, targets.argmax(1))
        weighted = self.class_weights.to(targets.dtype) * targets
        conventional = soft_cross_entropy(g.logits, targets) + soft_cross_entropy(l.logits, targets)
        rebalanced = soft_cross_entropy(g.rebalanced, weighted) + soft_cross_entropy(l.rebalanced, weighted)
        similarity = -_cosine(g.prediction, l.projection) - _cosine(l.prediction, g.projection)
        return self.a * conventional + (1 - self.a) * rebalanced + gamma * similarity


def cumulative(epoch: int, epochs: int) -> float:
    """Weight ``a = 1 - (e / E)^2`` of the conventional loss in an epoch.

    >>> cumulative(0, 200), cumulative(100, 200)
    (1.0, 0.75)
    """
    return 1 - (epoch / epochs) ** 2


def class_weights(counts: Sequence[int], power: float) -> Tensor:
    """Weights ``n_c^-k`` of the classes in the re-balanced loss, with mean 1.

    >>> class_weights([100, 25], power=0.5)
    tensor([0.6667, 1.3333], dtype=torch.float64)
    """
    if 0 in counts:
        raise ValueError(f"GLMC weighs classes by their training images, and class {list(counts).index(0)} has none")
    weights = torch.tensor(counts, dtype=torch.float64) ** -power
    return weights * len(counts) / weights.sum()


def sampling_weights(labels: Tensor, counts: Sequence[int], power: float) -> Tensor:
    """Weight ``n_y^-r`` of each image in the second loader: 0 is uniform, 1 gives each class the same share.

    >>> sampling_weights(torch.tensor([0, 0, 1]), [2, 1], power=1.0)
    tensor([0.5000, 0.5000, 1.0000], dtype=torch.float64)
    """
    return (torch.tensor(counts, dtype=torch.float64) ** -power)[labels]


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """``-sum_c t_c log softmax(o)_c`` of each sample; targets need not sum to 1.

    >>> soft_cross_entropy(torch.zeros(1, 4), torch.tensor([[0.5, 0.5, 0.0, 0.0]]))
    tensor([1.3863])
    """
    return -(targets * functional.log_softmax(logits, 1)).sum(1)


def _cosine(prediction: Tensor, projection: Tensor) -> Tensor:
    """Cosine of the angle to the other view's projection, which is held fixed."""
    return functional.cosine_similarity(prediction, projection.detach(), dim=1)
