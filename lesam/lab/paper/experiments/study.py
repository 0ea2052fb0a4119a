"""The study: every method on small settings, searched with the same number of trials, with a verdict on every claim."""

from __future__ import annotations

from lesam.lab.paper.study.experiment import Contested
from lesam.lab.paper.study.figures import figures
from lesam.lab.paper.study.groups import STUDY
from lesam.lab.paper.study.tables import tables

EXPERIMENT = Contested(
    contest=STUDY,
    title="Every method on MNIST-1D and on CIFAR, with a verdict on every claim",
    tables=tables,
    figures=figures,
)
