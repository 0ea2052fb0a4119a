"""Batches: a pure function of (seed, epoch, position, rank), with nothing lost and nothing twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lesam.lab.data import PADDING_LABEL, Batches, TensorSet, augmentation


def numbered(count: int) -> TensorSet:
    """Images of one pixel value each; the label is the image's own position."""
    images = torch.arange(count).remainder(256).to(torch.uint8).view(-1, 1, 1, 1).expand(count, 3, 8, 8)
    return TensorSet(images.contiguous(), torch.arange(count))


def batches(split: TensorSet, size: int, preset: str = "none", **changes) -> Batches:
    settings = {"device": "cpu", "seed": 0, **changes}
    return Batches(split, size, augmentation(preset, normalisation="unit"), **settings)


def labels(made: Batches, epoch: int = 0) -> list[int]:
    return torch.cat([y for _, y in made.epoch(epoch)]).tolist()


def equal(one: list[tuple[Tensor, Tensor]], other: list[tuple[Tensor, Tensor]]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(one, other, strict=True)
    )


def test_an_epoch_holds_every_image_once_with_its_label() -> None:
    made = batches(numbered(53), 10)
    assert len(made) == 6
    seen = list(made.epoch(0))
    assert [len(y) for _, y in seen] == [10, 10, 10, 10, 10, 3]
    assert sorted(labels(made)) == list(range(53))
    for x, y in seen:
        assert torch.equal((x[:, 0, 0, 0] * 255).round().long(), y)


def test_drop_last_leaves_out_only_what_is_not_full() -> None:
    made = batches(numbered(53), 10, drop_last=True)
    assert len(made) == 5
    assert [len(y) for _, y in made.epoch(0)] == [10] * 5
    assert len(batches(numbered(50), 10, drop_last=True)) == 5


def test_order_changes_with_epoch_and_seed_and_not_without_shuffle() -> None:
    split = numbered(64)
    made = batches(split, 16)
    assert labels(made, 0) == labels(made, 0)
    assert labels(made, 0) != labels(made, 1)
    assert labels(made, 0) != labels(batches(split, 16, seed=1), 0)
    assert labels(batches(split, 16, shuffle=False), 3) == list(range(64))


@pytest.mark.parametrize("start", [0, 1, 4, 7])
def test_resuming_at_any_batch_is_exact(start: int) -> None:
    split = numbered(64)
    whole = list(batches(split, 10, "basic_cutout").epoch(2))
    again = batches(split, 10, "basic_cutout")
    list(again.epoch(5))  # what was read before must not matter
    assert equal(list(again.epoch(2, start=start)), whole[start:])


def test_interleaved_epochs_do_not_disturb_each_other_or_the_global_generator() -> None:
    split = numbered(40)
    made = batches(split, 10, "basic")
    alone = [list(made.epoch(e)) for e in (0, 1)]
    torch.manual_seed(0)
    state = torch.get_rng_state()
    pairs = list(zip(made.epoch(0), made.epoch(1), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    for e in (0, 1):
        assert equal([pair[e] for pair in pairs], alone[e])


def test_augmentation_differs_between_epochs_batches_and_ranks() -> None:
    same = TensorSet(
        torch.arange(64).to(torch.uint8).view(1, 1, 8, 8).repeat(40, 3, 1, 1),
        torch.zeros(40, dtype=torch.int64),
    )

    def content(epoch: int, number: int, **settings) -> Tensor:
        return list(batches(same, 10, "basic", **settings).epoch(epoch))[number][0]

    reference = content(0, 0)
    others = [content(1, 0), content(0, 1), content(0, 0, seed=1), content(0, 0, world=2, rank=1)]
    assert not any(torch.equal(reference, other) for other in others)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_ranks_share_one_permutation_in_equal_disjoint_parts(world: int) -> None:
    split = numbered(53)
    parts = [labels(batches(split, 4, world=world, rank=rank)) for rank in range(world)]
    assert {len(part) for part in parts} == {53 // world}
    together = [label for part in parts for label in part]
    assert len(set(together)) == len(together) == 53 // world * world
    assert len({len(batches(split, 4, world=world, rank=rank)) for rank in range(world)}) == 1


def test_the_global_batch_does_not_depend_on_the_number_of_ranks() -> None:
    split = numbered(48)
    one = [set(y.tolist()) for _, y in batches(split, 12).epoch(0)]
    three = [batches(split, 4, world=3, rank=r).epoch(0) for r in range(3)]
    assert one == [set(torch.cat([y for _, y in b]).tolist()) for b in zip(*three, strict=True)]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_evaluation_on_several_ranks_sees_every_image_exactly_once(world: int) -> None:
    split = numbered(10)
    parts = [labels(batches(split, 2, world=world, rank=r, shuffle=False)) for r in range(world)]
    assert len({len(part) for part in parts}) == 1
    together = sorted(label for part in parts for label in part if label != PADDING_LABEL)
    assert together == list(range(10))


def test_left_out_images_change_from_epoch_to_epoch() -> None:
    split = numbered(11)
    seen = [
        {label for r in range(2) for label in labels(batches(split, 5, world=2, rank=r), epoch)} for epoch in range(10)
    ]
    assert len({tuple(sorted(s)) for s in seen}) > 1


@pytest.mark.parametrize(
    "settings",
    [
        {"size": 0},
        {"rank": 2, "world": 2},
        {"rank": -1},
        {"size": 11, "drop_last": True},
        {"world": 11, "rank": 0},
    ],
)
def test_batches_that_cannot_be_made_are_errors(settings: dict) -> None:
    with pytest.raises(ValueError, match="|".join(str(value) for value in settings.values())):
        batches(numbered(10), settings.pop("size", 2), **settings)


def test_epochs_and_starts_out_of_range_are_errors_at_the_call() -> None:
    made = batches(numbered(10), 2)
    for epoch, start in ((-1, 0), (0, -1), (0, 6)):
        with pytest.raises(ValueError, match="start"):
            made.epoch(epoch, start)
    assert list(made.epoch(0, start=5)) == []


def test_an_augmentation_of_the_other_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="image folders imagenet"):
        Batches(numbered(10), 2, augmentation("imagenet"), device="cpu", seed=0)
