"""Input for which a curvature has no meaning is refused, and the message says why."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lesam.flatness import HessianOperator, landscape, low_pass_filter

from .problems import cnn, mlp

MEASURES = [HessianOperator, low_pass_filter, landscape]


@pytest.mark.parametrize("measure", MEASURES)
def test_active_dropout(measure) -> None:
    problem = mlp()
    with pytest.raises(ValueError, match=r"loss is random.*Dropout.*mode=\"eval\""):
        measure(problem.model, problem.loss_fn, problem.data, mode="train")
    problem.model.train()
    with pytest.raises(ValueError, match="loss is random"):
        measure(problem.model, problem.loss_fn, problem.data, mode="current")


def test_dropout_the_mode_does_not_reach() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(self.linear(x))

    problem = mlp()
    with pytest.raises(ValueError, match=r"loss is random.*F\.dropout"):
        HessianOperator(Careless().double(), problem.loss_fn, problem.data)


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda out, y: F.cross_entropy(out, y, reduction="sum"),
        lambda out, y: F.cross_entropy(out, y, weight=torch.tensor([1.0, 5.0, 0.2]).double()),
        lambda out, y: F.cross_entropy(out, y, ignore_index=1),
        lambda out, y: F.cross_entropy(out, y, reduction="sum") / 128,
    ],
    ids=["sum", "class weights", "ignored targets", "divided by a fixed batch size"],
)
@pytest.mark.parametrize("measure", MEASURES)
def test_loss_that_is_no_mean(loss_fn, measure) -> None:
    problem = mlp()
    with pytest.raises(ValueError, match="not a mean over samples"):
        measure(problem.model, loss_fn, problem.data)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_sums_are_seen_with_batch_statistics_and_single_samples(mode) -> None:
    problem = cnn()

    def summed(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, y, reduction="sum")

    with pytest.raises(ValueError, match="not a mean"):
        HessianOperator(problem.model, summed, problem.data, mode=mode)
    with pytest.raises(ValueError, match="not a mean"):
        HessianOperator(problem.model.eval(), summed, (problem.inputs, problem.targets), batch_size=1)


def test_loss_of_each_sample() -> None:
    problem = mlp()
    with pytest.raises(ValueError, match=r"0-d tensor.*\[5\]"):
        HessianOperator(problem.model, lambda out, y: F.cross_entropy(out, y, reduction="none"), problem.data)


@pytest.mark.parametrize("measure", MEASURES)
def test_shuffling_loader(measure) -> None:
    problem = mlp()
    loader = DataLoader(TensorDataset(problem.inputs, problem.targets), batch_size=4, shuffle=True)
    with pytest.raises(ValueError, match=r"changes between passes.*shuffle=False.*list\(loader\)"):
        measure(problem.model, problem.loss_fn, loader)


def test_mirrored_images_are_seen() -> None:
    problem = cnn()

    class Mirroring:
        passes = 0

        def __iter__(self):
            self.passes += 1
            x = problem.inputs.flip(3) if self.passes % 2 else problem.inputs
            return iter([(x, problem.targets)])

    with pytest.raises(ValueError, match="changes between passes"):
        HessianOperator(problem.model, problem.loss_fn, Mirroring())


def test_change_during_the_measurement() -> None:
    problem = mlp()
    data = problem.data
    operator = HessianOperator(problem.model, problem.loss_fn, data)
    v = torch.ones(operator.size).double()
    operator @ v
    data.append(data[0])
    with pytest.raises(ValueError, match="changes between passes"):
        operator @ v
    data.pop()
    data.pop()
    with pytest.raises(ValueError, match="2 batches instead of the 3"):
        operator @ v


def test_an_iterator_is_read_once_and_kept() -> None:
    problem = mlp()
    operator = HessianOperator(problem.model, problem.loss_fn, iter(problem.data))
    torch.testing.assert_close(operator.to_dense(), problem.dense(), rtol=1e-9, atol=1e-11)


def test_a_steady_loader_is_accepted() -> None:
    problem = mlp()
    loader = DataLoader(TensorDataset(problem.inputs, problem.targets), batch_size=4)
    operator = HessianOperator(problem.model, problem.loss_fn, loader)
    torch.testing.assert_close(operator.to_dense(), problem.dense(), rtol=1e-9, atol=1e-11)


def test_weights_that_move_later() -> None:
    problem = mlp()
    operator = HessianOperator(problem.model, problem.loss_fn, problem.data)
    with torch.no_grad():
        problem.model[0].weight.add_(1e-3)
    with pytest.raises(RuntimeError, match="weights changed"):
        operator @ torch.ones(operator.size).double()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("batch", [0, 2])
def test_losses_that_are_no_numbers(bad: float, measure, batch: int) -> None:
    problem = mlp()
    data = problem.data
    data[batch] = (torch.full_like(data[batch][0], bad), data[batch][1])
    with pytest.raises(ValueError, match=r"loss is (nan|inf)"):
        measure(problem.model, problem.loss_fn, data)


def test_second_derivative_that_is_no_number() -> None:
    """exp(80) fits into single precision; its derivatives times 1e10 do not."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 8e-9)
    x = torch.full((2, 1), 1e10)
    operator = HessianOperator(model, lambda out, _: out.exp().mean(), [(x, x)])
    with pytest.raises(RuntimeError, match="not finite"):
        operator @ torch.ones(1)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("data", "message"),
    [([], "empty"), ([torch.zeros(3, 4)], "pairs"), ([("a", "b")], "tensor"), ([(torch.zeros(0, 4),) * 2], "empty")],
)
def test_data_of_the_wrong_form(measure, data, message: str) -> None:
    problem = mlp()
    with pytest.raises(ValueError, match=message):
        measure(problem.model, problem.loss_fn, data)


def test_options_of_the_wrong_form() -> None:
    problem = mlp()

    def build(**options):
        return HessianOperator(problem.model, problem.loss_fn, problem.data, **options)

    for options, message in [
        ({"mode": "test"}, "'test'"),
        ({"product": "magic"}, "'magic'"),
        ({"step": -1.0}, "-1.0"),
        ({"batch_size": 0}, "0"),
        ({"params": ["nothing"]}, "nothing"),
        ({"params": [torch.zeros(1)]}, "no parameter of the model"),
        ({"params": lambda name, p: False}, "no parameters"),
    ]:
        with pytest.raises(ValueError, match=message):
            build(**options)
