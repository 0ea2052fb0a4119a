"""Base optimizers: one or several, what they are given, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lesam

from .cases import network, sgd


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lesam.SAM(torch.optim.SGD), "instance"),
        (lambda: lesam.SAM(network().parameters()), "torch.optim.Optimizer"),
        (lambda: lesam.SAM(None), "None"),
        (lambda: lesam.SAM(torch.optim.LBFGS(network().parameters())), "LBFGS"),
        (lambda: lesam.SAM(lesam.LESAM(sgd())), "LESAM"),
        (
            lambda: lesam.SAM(torch.optim.SGD([nn.Parameter(torch.zeros(2, dtype=torch.complex64))], lr=1.0)),
            "complex64",
        ),
        (lambda: lesam.MSAM(torch.optim.SGD(network().parameters(), lr=0.1)), "momentum"),
        (lambda: lesam.MSAM(torch.optim.Adagrad(network().parameters())), "Adagrad"),
        (lambda: lesam.MSAM(torch.optim.RMSprop(network().parameters())), "momentum"),
        (
            lambda: lesam.MSAM(
                torch.optim.SGD(
                    [{"params": p, "momentum": 0.9 * i} for i, p in enumerate(network().parameters())], lr=1.0
                )
            ),
            "group 0",
        ),
    ],
)
def test_a_base_that_cannot_work_is_refused(make: Callable[[], Any], words: str):
    with pytest.raises(ValueError, match=words):
        make()


def test_msam_refuses_a_later_group_without_momentum():
    model = network()
    opt = lesam.MSAM(torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9))
    with pytest.raises(ValueError, match="momentum"):
        opt.add_param_group({"params": model[2].parameters(), "momentum": 0.0})
