"""The price: methods that save a pass of sharpness-aware training, and what they keep of its gain."""

from __future__ import annotations

from lesam.lab.paper.study.experiment import Contested
from lesam.lab.paper.study.price import PRICE
from lesam.lab.paper.study.price_figures import figures
from lesam.lab.paper.study.price_tables import tables

EXPERIMENT = Contested(
    contest=PRICE,
    title="What methods of one pass a step to two keep of the gain, on five stages",
    tables=tables,
    figures=figures,
)
