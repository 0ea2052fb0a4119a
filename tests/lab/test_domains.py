"""Single-domain generalisation: the folders of PACS and VLCS, ERM++ against long-hand torch, and its two passes."""

from __future__ import annotations

import copy
import itertools
import math
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.data import Batches, augmentation, load
from lesam.lab.data.domains import PACS, VLCS, Collection
from lesam.lab.data.synthetic_domains import STYLES
from lesam.lab.recipes.domains import MADE_UP, SOURCES
from lesam.lab.recipes.published import DOMAIN_AVERAGES, FIGURES, published
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import RunFolder, find_runs
from lesam.lab.runs.repetitions import group
from lesam.lab.sweeps import search as sweep
from lesam.lab.tasks.ermpp import ErmPlusPlus, classifier
from lesam.lab.training import length as two_passes
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.interrupt import RunInterruptedError
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent
from lesam.lab.training.session import Session

COLLECTIONS = {"pacs": PACS, "vlcs": VLCS}


def smoke(method: str, *changes: str) -> RunConfig:
    return override(recipes.build("pacs-photo", method=method, scale="smoke"), ["system.accelerator=cpu", *changes])


def last_checkpoint(folder: RunFolder) -> checkpoints.Checkpoint:
    newest, complaints = checkpoints.newest_valid(folder.checkpoints)
    assert newest is not None
    assert not complaints
    return newest


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


# Folders


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both collections with five images a class, each domain in a shade of its own."""
    folder = tmp_path_factory.mktemp("domains")
    for collection in COLLECTIONS.values():
        write_images(folder, collection)
    return folder


def write_images(root: Path, collection: Collection, count: int = 5) -> None:
    pixels = np.random.RandomState(0)
    for shade, (domain, _) in enumerate(collection.domains.values()):
        for label, kind in enumerate(collection.classes):
            path = root / collection.folder / domain / kind
            path.mkdir(parents=True)
            for number in range(count):
                image = pixels.randint(0, 60, (20, 24, 3)) + 40 * shade
                image[label * 2 : label * 2 + 3] = 255
                Image.fromarray(image.astype(np.uint8)).save(path / f"{number}.png")


@pytest.mark.parametrize("name", COLLECTIONS)
def test_one_domain_is_the_source_and_the_others_are_targets(name: str, root: Path) -> None:
    collection = COLLECTIONS[name]
    images = 5 * len(collection.classes)
    for source in SOURCES[name]:
        with pytest.warns(UserWarning, match=f"{source} {images} \\(published: {collection.domains[source][1]}\\)"):
            splits = load(name, root, source=source, validation=0.2)
        others = [domain for domain in SOURCES[name] if domain != source]
        assert list(splits.targets) == others
        assert [len(split) for split in splits.targets.values()] == [images] * 3
        assert splits.test.paths == tuple(path for split in splits.targets.values() for path in split.paths)
        assert splits.classes == len(collection.classes)
        assert {Path(path).parts[-3] for path in splits.train.paths} == {collection.domains[source][0]}
        for path, label in zip(splits.test.paths, splits.test.labels.tolist(), strict=True):
            assert Path(path).parts[-2] == collection.classes[label]


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_the_held_out_part_is_domainbeds_for_every_run_seed(root: Path) -> None:
    everything = load("pacs", root, source="cartoon").train
    splits = load("pacs", root, source="cartoon", validation=0.2)
    keys = list(range(len(everything)))
    np.random.RandomState(42).shuffle(keys)
    held_out = {everything.paths[key] for key in keys[: int(0.2 * len(keys))]}
    assert splits.validation is not None
    assert set(splits.validation.paths) == held_out
    assert set(splits.train.paths) == set(everything.paths) - held_out
    assert load("pacs", root, source="cartoon").validation is None


def test_the_published_numbers_of_images_are_no_warning(tmp_path: Path) -> None:
    tiny = Collection(folder="T", domains={"a": ("A", 6), "b": ("B", 6)}, classes=("x", "y"))
    write_images(tmp_path, tiny, count=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {name: len(images) for name, images in tiny.scan(tmp_path).items()} == {"a": 6, "b": 6}


def test_what_is_missing_is_named_with_the_layout(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing in .*: PACS/photo, .*expected .*PACS/\{photo,art_painting"):
        load("pacs", tmp_path)
    write_images(tmp_path, PACS, count=1)
    (tmp_path / "PACS" / "sketch" / "dog").rename(tmp_path / "PACS" / "sketch" / "hound")
    with pytest.raises(FileNotFoundError, match=r"missing in .*: PACS/sketch/dog; expected .*\{dog,elephant,"):
        load("pacs", tmp_path)
    (tmp_path / "PACS" / "sketch" / "dog").mkdir()
    with pytest.raises(ValueError, match=r"not classes of PACS: PACS/sketch/hound"):
        load("pacs", tmp_path)


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_unknown_domains_and_options_suggest_the_nearest(root: Path) -> None:
    with pytest.raises(ValueError, match="unknown domain of vlcs 'VOC2007'; did you mean 'voc2007'"):
        load("vlcs", root, source="VOC2007")
    with pytest.raises(ValueError, match="unknown option of pacs 'sources'; did you mean 'source'"):
        load("pacs", root, sources="photo")
    with pytest.raises(ValueError, match="validation must lie in"):
        load("pacs", root, validation=1.0)


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_truncated_files_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    write_images(tmp_path, PACS, count=1)
    path = tmp_path / "PACS" / "photo" / "dog" / "0.png"
    noise = np.random.RandomState(0).randint(0, 255, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    splits = load("pacs", tmp_path)
    assert splits.train.decode(splits.train.paths.index(str(path))).size == (64, 64)


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_an_image_drawn_twice_is_augmented_anew_and_exactly_so_after_a_stop(root: Path) -> None:
    split = load("pacs", root).train.subset(torch.tensor([3]))
    augment = augmentation("domains", size=16)
    made = Batches(split, 2, augment, device="cpu", seed=0, workers=0, weights=torch.ones(1), draws=6)
    images = torch.cat([batch for batch, _ in made.epoch(0)])
    for one, other in itertools.combinations(images, 2):
        assert not torch.equal(one, other)
    assert torch.equal(torch.cat([batch for batch, _ in made.epoch(0, start=1)]), images[2:])


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_folders_can_be_trained_on_in_the_processes_of_a_sweep(root: Path, tmp_path: Path) -> None:
    changes = ["schedule.steps=2", "task.check_every=1", "task.average_from=2", "task.warm_start=1"]
    changes += [f"data.root={root}", "data.augment_options.size=8", "model.options.width=8", "data.batch_size=8"]

    def build(setting: Any, seed: int) -> RunConfig:
        config = recipes.build("vlcs-sun09", method="sam", scale="small", seed=seed)
        return override(config, [*changes, "system.accelerator=cpu", *setting])

    (outcome,) = sweep.grid(build, [("optimizer.rho=0.1",)], [0], runs=tmp_path, jobs=1)
    assert outcome.summary is not None, outcome.error
    row = outcome.summary["last"]
    targets = [row[f"test_{name}_accuracy"] for name in ("voc2007", "labelme", "caltech101")]
    assert row["test_accuracy"] == pytest.approx(sum(targets) / 3)


# ERM++, one step after another

EXACT = (
    *("system.precision=64-true", "system.channels_last=off", "data.augment=none", "data.augment_options.padding=0"),
    *("record.steps_every=1", "task.two_passes=false", "task.check_every=4", "schedule.steps=12"),
    *("task.warm_start=3", "task.average_from=6", "optimizer.lr=0.01", "task.warm_start_lr=0.02"),
)


class Adam:
    """Kingma and Ba's algorithm 1."""

    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        self.parameters, self.lr, self.time = parameters, lr, 0
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        self.time += 1
        for p, g, m, v in zip(self.parameters, gradients, self.m, self.v, strict=True):
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g * g)
            p.sub_(self.lr * (m / (1 - 0.9**self.time)) / ((v / (1 - 0.999**self.time)).sqrt() + 1e-8))


def long_hand(session: Session, budget: Any = None) -> list[dict[str, Tensor]]:
    """Weights after each step, from the weights and batches of a session that has not trained yet."""
    config, task = session.config, session.config.task
    model = copy.deepcopy(session.module).train()
    head = list(classifier(model).parameters())
    body = [p for p in model.parameters() if not any(p is q for q in head)]
    warm, main = Adam(head, task.warm_start_lr), Adam(list(model.parameters()), config.optimizer.lr)
    leaked = [torch.zeros_like(p) for p in body]
    trajectory = [copy.deepcopy(model.state_dict())]
    for step in range(session.times.steps):
        epoch, number = divmod(step, task.check_every)
        images, labels = next(session.data.train.epoch(epoch, start=number))

        def gradients(images: Tensor = images, labels: Tensor = labels) -> dict[Tensor, Tensor]:
            loss = functional.cross_entropy(model(images), labels)
            return dict(zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True))

        found = gradients()
        if step < task.warm_start:
            warm.step([found[p] for p in head])
            leaked = [total + found[p] for total, p in zip(leaked, body, strict=True)]
        else:
            if step == task.warm_start and task.leak_gradients:
                found |= {p: found[p] + total for p, total in zip(body, leaked, strict=True)}
            if budget is not None:
                buffers = {name: value.clone() for name, value in model.named_buffers()}
                kept = [p.detach().clone() for p in model.parameters()]
                norm = math.sqrt(sum(float((g * g).sum()) for g in found.values()))
                rho = min(budget(step) / (norm + config.optimizer.varrho), config.optimizer.rho_max or math.inf)
                with torch.no_grad():
                    for p, g in found.items():
                        p.add_(rho / norm * g)
                found = gradients()
                with torch.no_grad():
                    for p, w in zip(model.parameters(), kept, strict=True):
                        p.copy_(w)
                    for name, value in model.named_buffers():
                        value.copy_(buffers[name])
            main.step([found[p] for p in model.parameters()])
        trajectory.append(copy.deepcopy(model.state_dict()))
    return trajectory


def session_of(config: RunConfig) -> Session:
    session = Session(config, make_fabric(config.system))
    session.model.train()
    return session


def walk(session: Session) -> Any:
    """Train step by step; yields the number of steps taken."""
    while not session.finished:
        for batch in session.batches():
            session.advance(batch)
            yield session.step
        session.end_epoch()


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, tensor in found.items():
        torch.testing.assert_close(
            tensor, expected[name], rtol=1e-9, atol=1e-11, msg=lambda text, n=name: f"{n} {text}"
        )


@pytest.mark.parametrize("leak", [False, True])
@pytest.mark.parametrize("method", ["adam", "lesam"])
@pytest.mark.parametrize("batch_norm", ["forward", "average"])
def test_every_step_and_every_average_against_long_hand(method: str, leak: bool, batch_norm: str) -> None:
    """The mean of w_5..w_t from step 6 on; the warm start moves the classifier alone and leaks only when told to."""
    changes = [f"task.leak_gradients={leak}", f"task.average_batch_norm={batch_norm}"]
    budget = None
    if method == "lesam":  # annealed in the middle of an epoch, counted over warm start and main phase
        changes += ["schedule.budget_anneal_start=6", "optimizer.sigma=0.3", "optimizer.rho_max=none"]

        def budget(step: int) -> float:
            return 0.3 if step < 6 else 0.15 * (1 + math.cos(math.pi * (step - 6) / 5))

    session = session_of(smoke(method, *EXACT, *changes))
    task = session.task
    assert isinstance(task, ErmPlusPlus)
    expected = long_hand(session, budget)
    names = [name for name, _ in session.module.named_parameters()]
    statistics: Any = None
    for steps in walk(session):
        assert_close(dict(session.module.state_dict()), expected[steps])
        ours = task.average.network.state_dict()
        if steps < 6:
            assert_equal(dict(ours), dict(session.module.state_dict()))
            statistics = copy.deepcopy(session.module)
            continue
        averaged = expected[5 : steps + 1]
        means = {name: torch.stack([weights[name] for weights in averaged]).mean(0) for name in names}
        assert_close({name: ours[name] for name in names}, means)
        if batch_norm == "average":
            running = [name for name in ours if "running" in name]
            assert running
            means = {name: torch.stack([weights[name] for weights in averaged]).mean(0) for name in running}
            assert_close({name: ours[name] for name in running}, means)
        else:  # the network with the mean's weights sees this batch in training mode
            statistics.load_state_dict(means, strict=False)
            epoch, number = divmod(steps - 1, 4)
            statistics.train()(next(session.data.train.epoch(epoch, start=number))[0])
            assert_close(dict(ours), statistics.state_dict())
    assert steps == 12


def test_the_warm_start_touches_the_classifier_alone_while_batch_norm_moves() -> None:
    session = session_of(smoke("lesam", *EXACT))
    before = copy.deepcopy(session.module.state_dict())
    for steps in walk(session):
        if steps == 3:
            break
    moved = {name for name, value in session.module.state_dict().items() if not torch.equal(value, before[name])}
    assert moved - {name for name, _ in session.module.named_buffers()} == {"fc.weight", "fc.bias"}
    assert {name for name, _ in session.module.named_buffers()} <= moved
    assert all(parameter.grad is None for parameter in session.module.parameters())
    assert not session.optimizer.state


def test_budgets_and_switches_count_from_the_start_of_the_run(tmp_path: Path) -> None:
    def sigmas(*changes: str) -> list[float | None]:
        config = smoke("lesam", *EXACT, "optimizer.sigma=0.2", *changes)
        train(config, runs=tmp_path, report=Silent())
        return [row["sigma"] for row in RunFolder.of(config, tmp_path).steps()]

    warm = [None] * 3
    by_step = [0.2 if step < 8 else 0.1 * (1 + math.cos(math.pi * (step - 8) / 3)) for step in range(3, 12)]
    assert sigmas("schedule.budget_anneal_start=8") == warm + [pytest.approx(value, abs=1e-7) for value in by_step]
    by_epoch = [0.2, *[0.2] * 4, *[0.0] * 4]  # three epochs of four steps, annealed from the last one on
    found = sigmas("schedule.budget_anneal_start=2", "schedule.budget_per=epoch")
    assert found == warm + [pytest.approx(value, abs=1e-7) for value in by_epoch]
    late = sigmas("schedule.switch_at=2")
    assert late == [None] * 8 + [pytest.approx(0.2)] * 4


def test_without_a_warm_start_the_main_optimizer_takes_every_step() -> None:
    session = session_of(smoke("adam", *EXACT, "task.warm_start=0"))
    expected = long_hand(session)
    for steps in walk(session):
        assert_close(dict(session.module.state_dict()), expected[steps])


# Two passes

# Held-out images are all right in the middle of the first pass already, so it is not the last check that is chosen.
TWO = ("schedule.steps=40", "task.check_every=8", "task.average_from=16")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path, dict[str, Any]]:
    runs = tmp_path_factory.mktemp("pair")
    config = smoke("adam", *TWO)
    return config, runs, train(config, runs=runs, report=Silent())


def test_the_first_pass_chooses_the_best_check(pair: Any) -> None:
    config, runs, summary = pair
    folder = RunFolder.of(config, runs)
    first = RunFolder(folder.path / summary["first_pass"]["run"])
    rows = first.metrics()
    assert [row["step"] for row in rows] == [8, 16, 24, 32, 40]
    accuracies = [row["validation_accuracy"] for row in rows]
    steps = summary["first_pass"]["steps"]
    assert steps == rows[accuracies.index(max(accuracies))]["step"]
    assert 8 < steps < 40, "the case must tell a choice from the first and the last check"
    assert summary["first_pass"]["validation_accuracy"] == max(accuracies)
    assert first.config().data.options["validation"] == 0.2
    assert summary["last"]["step"] == steps


def test_the_second_pass_is_a_fresh_run_on_all_images_for_so_many_steps(pair: Any, tmp_path: Path) -> None:
    config, runs, summary = pair
    steps = summary["first_pass"]["steps"]
    alone = override(config, ["task.two_passes=false", f"schedule.steps={steps}"])
    assert len(session_of(alone).data.train.weights) == 60  # all of them: a first pass has 48
    train(alone, runs=tmp_path, report=Silent())
    ours, theirs = (last_checkpoint(RunFolder.of(one, where)) for one, where in ((config, runs), (alone, tmp_path)))
    assert_equal(ours.weights(), theirs.weights())
    assert_equal(ours.state()["task"]["average"], theirs.state()["task"]["average"])


def test_a_finished_pair_is_left_alone_and_counts_as_one_run(pair: Any) -> None:
    config, runs, summary = pair
    assert train(config, runs=runs, report=Silent()) == summary
    folder = RunFolder.of(config, runs)
    first = RunFolder(folder.path / summary["first_pass"]["run"])
    assert len(folder.environments()) == len(first.environments()) == 1
    assert [run.path for run in find_runs([runs])] == [folder.path]
    assert [run.path for run in find_runs([first.path])] == [first.path]
    (only,) = group(find_runs([runs]))
    assert only.label == "Adam"
    assert group([first])[0].finished == ()  # nothing was tested in it


def test_targets_are_scored_once_with_the_averaged_network(pair: Any) -> None:
    config, runs, summary = pair
    session = session_of(config)
    session.restore(last_checkpoint(RunFolder.of(config, runs)))
    accuracies = []
    for name, split in session.task.parts.splits.targets.items():
        images = augmentation("none", normalisation="half")(split.images, torch.Generator())
        network = copy.deepcopy(session.module).eval()
        raw = functional.cross_entropy(network(images), split.labels).item()
        network.load_state_dict(session.task.average.network.state_dict())
        logits = network(images)
        loss = functional.cross_entropy(logits, split.labels).item()
        assert summary["last"][f"test_{name}_loss"] == pytest.approx(loss, rel=1e-5)
        assert abs(loss - raw) > 1e-3 * loss
        accuracies.append(float((logits.argmax(1) == split.labels).double().mean()))
        assert summary["last"][f"test_{name}_accuracy"] == pytest.approx(accuracies[-1])
    assert len(accuracies) == 3
    assert summary["last"]["test_accuracy"] == pytest.approx(sum(accuracies) / 3)


def test_targets_have_no_part_in_the_choice(pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, runs, summary = pair
    first = RunFolder(RunFolder.of(config, runs).path / summary["first_pass"]["run"])
    assert not any(name.startswith("test_") for row in first.metrics() for name in row)
    for name in list(STYLES)[1:]:
        monkeypatch.setitem(STYLES, name, lambda image: -3 * image)
    other = train(config, runs=tmp_path, report=Silent())
    assert other["first_pass"] == summary["first_pass"]
    assert other["last"]["test_loss"] != summary["last"]["test_loss"]
    ours, theirs = (last_checkpoint(RunFolder.of(config, where)).weights() for where in (runs, tmp_path))
    assert_equal(ours, theirs)


def test_held_out_images_of_the_users_own_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.options\.validation would keep images from the second pass"):
        train(smoke("adam", "data.options.validation=0.1"), runs=tmp_path, report=Silent())
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="length of a classification run"):
        two_passes.first_pass(recipes.build("digits", scale="smoke"))


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_missing_images_or_weights_leave_no_folder_behind(root: Path, tmp_path: Path) -> None:
    config = recipes.build("pacs-photo", method="lesam", scale="paper")
    with pytest.raises(FileNotFoundError, match=r"expected .*PACS"):
        train(override(config, [f"data.root={tmp_path}"]), runs=tmp_path / "runs", report=Silent())
    changes = [f"data.root={root}", "model.options.weights=nowhere.pth"]
    with pytest.raises(ValueError, match="neither a file nor one of torchvision's"):
        train(override(config, changes), runs=tmp_path / "runs", report=Silent())
    assert not (tmp_path / "runs").exists()


class StopAfter(Silent):
    """Asks the process to stop after a number of steps, as a scheduler would."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self) -> None:
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(("method", "leak"), [("lesam", False), ("sam", True)])
def test_stopped_anywhere_both_passes_end_in_the_same_bits(method: str, leak: bool, tmp_path: Path) -> None:
    config = smoke(method, *TWO, f"task.leak_gradients={leak}", "record.steps_every=1")
    whole = train(config, runs=tmp_path / "whole", report=Silent())
    # The first pass stops after 1 step (in the warm start), 4 (at its end), 5 (after the first full one) and 17 (in the
    # average), the second pass after 4 and 17.
    for steps in (1, 3, 1, 12, (40 - 17) + 4, 13):
        with pytest.raises(RunInterruptedError):
            train(config, runs=tmp_path / "broken", report=StopAfter(steps))
    folder = RunFolder.of(config, tmp_path / "broken")
    stops = [len(RunFolder(path).environments()) for path in (folder.path, folder.path / whole["first_pass"]["run"])]
    assert stops == [6, 5], "not stopped where it was meant to be"
    broken = train(config, runs=tmp_path / "broken", report=Silent())
    assert broken["first_pass"] == whole["first_pass"]
    folders = [RunFolder.of(config, tmp_path / where) for where in ("whole", "broken")]
    for name in ("", whole["first_pass"]["run"]):
        one, other = (RunFolder(folder.path / name) for folder in folders)
        ours, theirs = last_checkpoint(one), last_checkpoint(other)
        assert_equal(ours.weights(), theirs.weights())
        assert_equal(ours.state()["task"]["average"], theirs.state()["task"]["average"])
        clocks = ("images_per_second", "seconds", "elapsed")
        for mine, its in zip([*one.metrics(), *one.steps()], [*other.metrics(), *other.steps()], strict=True):
            assert {k: v for k, v in mine.items() if k not in clocks} == {
                k: v for k, v in its.items() if k not in clocks
            }


# Recipes


@pytest.mark.parametrize(
    ("recipe", "method"),
    [
        ("pacs-photo", "sam"),
        ("pacs-sketch", "lesam"),
        ("vlcs-caltech101", "adam"),
        ("vlcs-sun09", "esam"),
        ("pacs-cartoon", "sgd"),
    ],
)
def test_smoke(recipe: str, method: str, tmp_path: Path) -> None:
    config = recipes.build(recipe, method=method, scale="smoke")
    summary = train(config, runs=tmp_path, report=Silent())
    assert summary["last"]["step"] == summary["first_pass"]["steps"] <= 24
    assert 0.0 <= summary["last"]["test_accuracy"] <= 1.0
    assert all(tensor.isfinite().all() for tensor in last_checkpoint(RunFolder.of(config, tmp_path)).weights().values())


def test_recipes_name_the_domains_that_exist() -> None:
    assert {name: tuple(collection.domains) for name, collection in COLLECTIONS.items()} == SOURCES
    assert tuple(STYLES) == MADE_UP
    assert {f"{name}-{source}" for name, sources in SOURCES.items() for source in sources} <= set(recipes.NAMES)
    published_sizes = {name: sum(n for _, n in one.domains.values()) for name, one in COLLECTIONS.items()}
    assert published_sizes == {"pacs": 9991, "vlcs": 10_729}


@pytest.mark.parametrize("method", recipes.METHODS)
def test_the_paper_scale_is_erm_plus_plus(method: str) -> None:
    for recipe, weights in (("pacs-sketch", "IMAGENET1K_V1"), ("vlcs-labelme", None)):
        config: Any = recipes.build(recipe, method=method, scale="paper")
        assert config.model.name == "imagenet_resnet18"
        assert config.model.options.get("weights") == weights
        assert config.optimizer.base == ("adam" if method not in ("sgd", "adamw") else method)
        assert (config.optimizer.lr == 5e-5) == (method != "sgd")
        assert config.optimizer.weight_decay == 0.0
        assert (config.data.batch_size, config.data.augment, config.schedule.lr) == (32, "domains", "constant")
        assert config.schedule.steps == 5000
        assert config.schedule.epochs * config.task.check_every >= 20_000  # room for the longer training
        # Steps 0 to 500 warm up; the average begins with the weights after 599 steps.
        task = config.task
        assert (task.warm_start, task.average_from, task.check_every, task.validation) == (501, 600, 300, 0.2)
        assert (task.two_passes, task.leak_gradients) == (True, False)


def test_the_papers_columns_average_to_its_last_one() -> None:
    for name, averages in DOMAIN_AVERAGES.items():
        for method, average in averages.items():
            columns = [FIGURES[f"{name}-{source}"][method][0] for source in SOURCES[name]]
            assert sum(columns) / 4 == pytest.approx(average, abs=0.0051)
    assert published(recipes.build("pacs-sketch", method="lesam", scale="paper")) == (41.71, None)


@pytest.mark.parametrize(
    "change", ["task.validation=1", "task.check_every=0", "task.average_from=0", "task.warm_start=-1"]
)
def test_settings_without_a_meaning_are_errors(change: str) -> None:
    with pytest.raises(ValueError, match=change.partition("=")[0].replace(".", r"\.")):
        smoke("adam", change)
