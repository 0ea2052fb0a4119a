"""Digits, synthetic images, image folders, and the choice of training images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits
from torchvision import transforms

from lesam.lab import data
from lesam.lab.data import NORMALISATIONS, PADDING_LABEL, Batches, TensorSet, augmentation, load
from lesam.lab.data.sampling import balanced_counts, corrupt_labels, pick_per_class


def test_digits_are_the_bundled_ones_each_exactly_once() -> None:
    made = load("digits")
    assert (len(made.train), len(made.test), made.classes) == (1200, 597, 10)
    assert torch.bincount(made.train.labels).tolist() == [120] * 10
    bunch = load_digits()
    images = torch.cat([made.train.images, made.test.images]).squeeze(1)
    assert images.min() == 0
    assert images.max() == 255
    labels = torch.cat([made.train.labels, made.test.labels])

    def rows(levels, targets) -> list[tuple[int, ...]]:
        return sorted((int(y), *map(int, x.flatten())) for x, y in zip(levels, targets, strict=True))

    assert rows((images.double() * 16 / 255).round(), labels) == rows(bunch.images, bunch.target)


def test_digits_constants_are_theirs() -> None:
    made = load("digits")
    pixels = torch.cat([made.train.images, made.test.images]).double() / 255
    mean, std = NORMALISATIONS["digits"]
    assert abs(pixels.mean() - mean[0]) < 1e-4
    assert abs(pixels.std() - std[0]) < 1e-4


def test_larger_digits_repeat_pixels() -> None:
    small, large = load("digits").train.images, load("digits", size=16).train.images
    assert large.shape[2:] == (16, 16)
    for dy in (0, 1):
        for dx in (0, 1):
            assert torch.equal(large[:, :, dy::2, dx::2], small)
    with pytest.raises(ValueError, match="multiples of 8"):
        load("digits", size=12)


def test_label_noise_is_exact_wrong_and_spread_and_spares_the_rest() -> None:
    clean, noisy = load("digits", validation=0.2), load("digits", validation=0.2, label_noise=0.25, seed=0)
    changed = clean.train.labels != noisy.train.labels
    assert int(changed.sum()) == round(0.25 * 960)
    assert torch.equal(clean.train.images, noisy.train.images)
    assert torch.equal(clean.test.labels, noisy.test.labels)
    assert torch.equal(clean.validation.labels, noisy.validation.labels)
    assert len(set(((noisy.train.labels - clean.train.labels)[changed] % 10).tolist())) == 9
    again = load("digits", validation=0.2, label_noise=0.25, seed=0)
    assert torch.equal(again.train.labels, noisy.train.labels)
    other = load("digits", validation=0.2, label_noise=0.25, seed=1)
    assert not torch.equal(other.train.labels, noisy.train.labels)


def key(split: TensorSet) -> set[bytes]:
    return {x.numpy().tobytes() for x in split.images}


def test_validation_is_disjoint_balanced_and_independent_of_the_training_size() -> None:
    whole = load("digits", validation=0.25)
    part = load("digits", validation=0.25, train_size=100, test_size=50)
    assert torch.equal(whole.validation.images, part.validation.images)
    assert torch.bincount(whole.validation.labels).tolist() == [30] * 10
    assert torch.bincount(part.train.labels).tolist() == [10] * 10
    assert (len(whole.train), len(part.train), len(part.test)) == (900, 100, 50)
    assert not key(whole.train) & key(whole.validation)
    assert key(part.train) <= key(whole.train)
    assert key(whole.train) | key(whole.validation) == key(load("digits").train)
    assert load("digits").validation is None


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    share=st.floats(0.01, 1.0),
)
def test_balanced_counts_are_as_even_as_possible(labels: list[int], share: float) -> None:
    tensor = torch.tensor(labels)
    total = max(1, int(share * len(labels)))
    counts = balanced_counts(tensor, 5, total)
    available = torch.bincount(tensor, minlength=5).tolist()
    assert sum(counts) == total
    assert all(c <= a for c, a in zip(counts, available, strict=True))
    # A class may have fewer than another only when it has no more, up to the remainder of one.
    unfilled = [c for c, a in zip(counts, available, strict=True) if c < a]
    assert not unfilled or max(counts) - min(unfilled) <= 1


@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=40), seed=st.integers(0, 5), data=st.data())
def test_picks_have_the_counts_asked_for_and_grow_with_them(labels: list[int], seed: int, data) -> None:
    tensor = torch.tensor(labels)
    available = torch.bincount(tensor, minlength=4).tolist()
    more = [data.draw(st.integers(0, a)) for a in available]
    fewer = [data.draw(st.integers(0, m)) for m in more]
    chosen = pick_per_class(tensor, more, seed)
    assert torch.bincount(tensor[chosen], minlength=4).tolist() == more
    assert len(set(chosen.tolist())) == len(chosen)
    assert set(pick_per_class(tensor, fewer, seed).tolist()) <= set(chosen.tolist())


@pytest.mark.parametrize(("text", "classes"), [("6-9", [6, 7, 8, 9]), ("9,0-1", [0, 1, 9]), (4, [4])])
def test_some_classes_are_numbered_anew_in_every_split(text: str | int, classes: list[int]) -> None:
    whole, some = load("digits", validation=0.2), load("digits", validation=0.2, only_classes=text)
    assert some.classes == len(classes)
    assert len(some.validation) == round(0.2 * (len(some.train) + len(some.validation)))
    for part, all_of_it in ((some.test, whole.test), (some.train.joined([some.validation]), None)):
        assert sorted(set(part.labels.tolist())) == list(range(len(classes)))
        if all_of_it is not None:
            chosen = torch.isin(all_of_it.labels, torch.tensor(classes))
            assert torch.equal(part.images, all_of_it.images[chosen])
            assert torch.equal(torch.tensor(classes)[part.labels], all_of_it.labels[chosen])


@pytest.mark.parametrize("text", ["3-1", "0-10", "1,1", "", "a", "1-2-3", -1])
def test_classes_that_are_not_there_are_refused(text: str | int) -> None:
    with pytest.raises(ValueError, match="only_classes"):
        load("digits", only_classes=text)


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_impossible_choices_are_errors(fraction: float) -> None:
    with pytest.raises(ValueError, match="label_noise"):
        corrupt_labels(torch.zeros(3, dtype=torch.int64), 2, fraction, 0)
    with pytest.raises(ValueError, match="validation"):
        load("digits", validation=fraction)
    with pytest.raises(ValueError, match="2000 images out of 1200"):
        load("digits", train_size=2000)
    with pytest.raises(ValueError, match="class 0 has 3 images, 4"):
        pick_per_class(torch.zeros(3, dtype=torch.int64), [4], 0)
    with pytest.raises(ValueError, match="fraction"):
        load("synthetic", train_size=10).train.split(fraction, 0)


def test_tensor_sets_split_without_loss_and_refuse_other_tensors() -> None:
    whole = TensorSet(torch.zeros(20, 1, 2, 2, dtype=torch.uint8), torch.arange(20))
    kept, held_out = whole.split(0.3, seed=1)
    assert (len(kept), len(held_out)) == (14, 6)
    assert sorted(kept.labels.tolist() + held_out.labels.tolist()) == list(range(20))
    assert held_out.labels.tolist() != whole.split(0.3, seed=2)[1].labels.tolist()
    assert whole.subset(torch.tensor([3, 1])).labels.tolist() == [3, 1]
    with pytest.raises(ValueError, match="uint8"):
        TensorSet(torch.zeros(2, 1, 2, 2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="labels"):
        TensorSet(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


def test_synthetic_images_can_be_learned_and_do_not_overlap() -> None:
    made = load("synthetic", image_size=16, classes=7, train_size=700, test_size=350)
    assert made.train.images.shape == (700, 3, 16, 16)
    assert made.classes == 7
    assert torch.bincount(made.test.labels).tolist() == [50] * 7
    means = torch.stack([made.train.images[made.train.labels == c].double().mean(0) for c in range(7)])
    distance = torch.cdist(made.test.images.double().flatten(1), means.flatten(1))
    assert (distance.argmin(1) == made.test.labels).double().mean() > 0.99
    assert not key(made.train) & key(made.test)


def test_synthetic_images_are_a_function_of_their_seed() -> None:
    one, same, other = (load("synthetic", train_size=20, seed=s).train.images for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    hard = load("synthetic", channels=1, image_size=8, noise=0.0, train_size=20).train
    assert torch.equal(hard.images[0], hard.images[10])  # same class, no noise
    with pytest.raises(ValueError, match="classes"):
        load("synthetic", classes=0)


def test_unknown_names_and_options_suggest_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'cifar100'"):
        load("cifra100")
    with pytest.raises(ValueError, match="did you mean 'label_noise'"):
        load("digits", label_noice=0.1)
    assert "download" in data.options("cifar10")
    assert "train_size" not in data.options("imagefolder")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two classes, five training and three test images each, of various sizes."""
    source = torch.Generator().manual_seed(0)
    for part, count in (("train", 5), ("val", 3)):
        for label in ("cat", "dog"):
            folder = tmp_path / part / label
            folder.mkdir(parents=True)
            for k in range(count):
                pixels = torch.randint(0, 256, (40 + 3 * k, 50, 3), generator=source, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(folder / f"{k}.png")
    return tmp_path


def folder_batches(split, preset: str = "imagenet", *, training: bool = True, **settings) -> Batches:
    augment = augmentation(preset, size=24, **({"evaluation_resize": 28} if preset == "imagenet" else {}))
    settings = {"device": "cpu", "seed": 0, "workers": 0, **settings}
    return Batches(split, 4, augment if training else augment.evaluation(), **settings)


def same(one, other) -> bool:
    return all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(one, other, strict=True))


@pytest.mark.parametrize("preset", ["imagenet", "domains"])
def test_folder_batches_are_exact_whatever_the_workers_start_and_ranks(tree: Path, preset: str) -> None:
    split = load("imagefolder", tree).train
    torch.manual_seed(0)
    state = torch.get_rng_state()
    whole = list(folder_batches(split, preset).epoch(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert [x.shape for x, _ in whole] == [(4, 3, 24, 24), (4, 3, 24, 24), (2, 3, 24, 24)]
    assert same(folder_batches(split, preset, workers=2).epoch(1), whole)
    assert same(folder_batches(split, preset).epoch(1, start=1), whole[1:])
    assert not same(folder_batches(split, preset).epoch(2), whole)
    assert not same(folder_batches(split, preset, seed=1).epoch(1), whole)
    everything = {x.numpy().tobytes() for batch, _ in whole for x in batch}
    assert len(everything) == 10
    for rank in range(2):
        part = folder_batches(split, preset, world=2, rank=rank).epoch(1)
        assert {x.numpy().tobytes() for batch, _ in part for x in batch} <= everything


@pytest.mark.parametrize("preset", ["imagenet", "domains"])
def test_folder_evaluation_is_torchvisions_pipeline(tree: Path, preset: str) -> None:
    split = load("imagefolder", tree).test
    steps = {
        "imagenet": [transforms.Resize(28), transforms.CenterCrop(24)],
        "domains": [transforms.Resize((24, 24))],
    }[preset]
    mean, std = NORMALISATIONS["imagenet"]
    peer = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(mean, std)])
    files = sorted((tree / "val").rglob("*.png"))
    expected = torch.stack([peer(Image.open(f).convert("RGB")) for f in files])
    made = list(folder_batches(split, preset, training=False, shuffle=False).epoch(0))
    assert torch.equal(torch.cat([x for x, _ in made]), expected)
    assert torch.cat([y for _, y in made]).tolist() == [0, 0, 0, 1, 1, 1]


def test_folder_evaluation_on_ranks_counts_each_image_once(tree: Path) -> None:
    split = load("imagefolder", tree).test
    parts = [folder_batches(split, training=False, shuffle=False, world=4, rank=r).epoch(0) for r in range(4)]
    labels = [y for part in parts for _, batch in part for y in batch.tolist()]
    assert sorted(labels) == [PADDING_LABEL] * 2 + [0] * 3 + [1] * 3


def test_a_damaged_image_is_named(tree: Path) -> None:
    victim = tree / "train" / "dog" / "3.png"
    victim.write_bytes(victim.read_bytes()[:500])
    split = load("imagefolder", tree).train
    with pytest.raises(RuntimeError, match=r"dog/3\.png cannot be decoded"):
        list(folder_batches(split).epoch(0))


def test_folders_that_do_not_fit_are_errors(tree: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent is missing; expected .*CLASS/IMAGE"):
        load("imagefolder", tree, train="absent")
    (tree / "val" / "dog").rename(tree / "val" / "wolf")
    with pytest.raises(ValueError, match="dog, wolf"):
        load("imagefolder", tree)


def test_folder_sets_can_be_cut(tree: Path) -> None:
    split = load("imagefolder", tree).train
    part = split.subset(torch.tensor([9, 0]))
    assert part.labels.tolist() == [1, 0]
    assert part.paths[1].endswith("cat/0.png")
