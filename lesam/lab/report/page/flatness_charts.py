"""Figures of what was measured after training: spectra, low-pass filter, landscapes, attacks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from lesam.flatness import LayerCurvature
from lesam.lab.report.page.charts import Chart, line
from lesam.lab.report.page.entries import Entry, number, plain, spread
from lesam.lab.report.page.kept import LANDSCAPE, Answer, Kept, Settings
from lesam.lab.runs.statistics import Spread

MOST_LANDSCAPES = 8
"""A browser draws about this number of surfaces at a time."""


LAYERS: tuple[tuple[str, str, Callable[[LayerCurvature, int], float]], ...] = (
    ("layer-eigenvalues", "Largest eigenvalue", lambda found, index: found.eigenvalues[index][0]),
    ("layer-traces", "Trace", lambda found, index: found.traces[index]),
)
"""Figures of a layer's own block of the Hessian: name, quantity, and the number of the layer with an index."""


def spectra(entries: Sequence[Entry], kept: Kept) -> list[Chart]:
    """The largest eigenvalues by rank, and the density of all of them."""
    return [*_eigenvalues(entries, kept), *_density(entries, kept)]


def layers(entries: Sequence[Entry], kept: Kept) -> list[Chart]:
    """The largest eigenvalue and the trace of each layer's own block of the Hessian."""
    charts = []
    for id, quantity, of in LAYERS:
        bars = []
        for entry in entries:
            every = kept.final("layers", entry)
            answers = [answer for answer in every if answer.result.names == every[0].result.names]
            for index, name in enumerate(answers[0].result.names if answers else ()):
                found = Spread.of([of(answer.result, index) for answer in answers])
                bars.append({"group": entry.name, "category": name, "mean": found.mean, "sd": found.std, "n": found.n})
        heights = [bar["mean"] for bar in bars]
        wide = bool(heights) and min(heights) > 0 and max(heights) >= 100 * min(heights)
        head = {"id": id, "kind": "bars", "title": f"{quantity} of each layer's block", "x": "layer"}
        charts.append({**head, "y": quantity.lower(), "log": wide, "bars": bars})
    return [plain(chart) for chart in charts if chart["bars"]]


def low_pass(entries: Sequence[Entry], kept: Kept) -> list[Chart]:
    """The low-pass filter at every kept checkpoint."""
    lines = []
    for entry in entries:
        for ended, note in ((True, ""), (False, "unfinished")):
            epochs: dict[int, list[float]] = {}
            for answer in (answer for answer in kept.of("lpf", entry) if answer.ended is ended):
                epochs.setdefault(answer.epoch, []).append(answer.result.estimate)
            if len(epochs) > 1:
                order = sorted(epochs)
                xs = {"epoch": [float(epoch) for epoch in order]}
                lines.append(line(entry, xs, [Spread.of(epochs[epoch]) for epoch in order], 1.0, note))
    return _lines("lpf-checkpoints", "Loss under weight noise (LPF) at kept checkpoints", "loss", "epoch", lines)


def landscapes(entries: Sequence[Entry], kept: Kept) -> list[Chart]:
    """The loss around the weights, on common axes: of each group the run with the lowest seed."""
    found = []
    for entry in entries:
        planes = [answer for answer in kept.of(LANDSCAPE, entry) if answer.result.y is not None]
        if planes:
            found.append((entry, _lowest(planes)))
    found = found[:MOST_LANDSCAPES]
    if not found:
        return []
    finite = [answer.result.loss[answer.result.loss.isfinite()] for _, answer in found]
    planes_drawn = [
        {
            "group": entry.name,
            "seed": answer.member.seed,
            "epoch": answer.epoch,
            "x": answer.result.x.tolist(),
            "y": answer.result.y.tolist(),
            "loss": answer.result.loss.tolist(),
        }
        for entry, answer in found
    ]
    # Up to the highest loss of the flattest network, as `lesam landscape` draws them.
    limits = {"low": min(float(each.min()) for each in finite), "high": min(float(each.max()) for each in finite)}
    chart = {"id": "landscape", "kind": "landscapes", "title": "Loss around the weights", "planes": planes_drawn}
    return [plain(chart | limits)]


def attacks(entries: Sequence[Entry], kept: Kept) -> list[Chart]:
    """Accuracy on images as they are and on attacked ones, for every attack that was run."""
    asked = dict.fromkeys(answer.settings for answers in kept.attacks.values() for answer in answers)
    charts = []
    for settings, title in _titles(list(asked)).items():
        bars = []
        for entry in entries:
            answers = [answer for answer in kept.attacks.get(entry.name, ()) if answer.settings == settings]
            for part in ("clean", "attacked"):
                found = spread(answer.result[part] for answer in answers)
                if found is not None:
                    sd, n = found.std * 100, found.n
                    bars.append({"group": entry.name, "category": part, "mean": found.mean * 100, "sd": sd, "n": n})
        # By what was asked, not by its place in the list: a page that is brought up to date finds its figure by it.
        id = f"attack-{hashlib.sha256(repr(settings).encode()).hexdigest()[:10]}"
        charts.append({"id": id, "kind": "bars", "title": title, "y": "accuracy (%)", "bars": bars})
    return [plain(chart) for chart in charts]


def corruptions(entries: Sequence[Entry], kept: Kept) -> list[Chart]:
    """Accuracy on images as they are and on corrupted ones, of each corruption the mean over its severities."""
    bars = []
    for entry in entries:
        answers = kept.corruptions.get(entry.name, ())
        for category in answers[0].result if answers else ():
            found = Spread.of([answer.result[category] for answer in answers])
            sd, n = found.std * 100, found.n
            bars.append({"group": entry.name, "category": category, "mean": found.mean * 100, "sd": sd, "n": n})
    if not bars:
        return []
    title = "Common corruptions, means over five severities"
    return [plain({"id": "corruptions", "kind": "bars", "title": title, "y": "accuracy (%)", "bars": bars})]


def attack_words(settings: dict[str, Any]) -> str:
    """An attack in a few words."""
    radius, length = (_pixels(settings.get(name)) for name in ("eps", "step_size"))
    restarts = settings.get("restarts")
    return (
        f"{settings.get('norm')} attack, radius {radius}, {settings.get('steps')} steps of {length}, "
        f"{restarts} start{'' if restarts == 1 else 's'}, {settings.get('keep')} iterate, "
        f"{settings.get('samples') or 'all'} {settings.get('split')} images, seed {settings.get('seed')}"
    )


def _pixels(value: Any) -> str:
    return f"{value * 255:.3g}/255" if number(value) is not None else str(value)


def _titles(asked: Sequence[Settings]) -> dict[Settings, str]:
    """Each attack in words; those that the words do not tell apart carry the settings in which they differ."""
    said = {settings: attack_words(dict(settings)) for settings in asked}
    titles = {}
    for settings, words in said.items():
        alike = [set(other) for other in asked if said[other] == words]
        common = set.intersection(*alike)
        titles[settings] = ", ".join(
            [words, *(f"{name}={value}" for name, value in settings if (name, value) not in common)]
        )
    return titles


def _eigenvalues(entries: Sequence[Entry], kept: Kept) -> list[Chart]:
    lines = []
    for entry in entries:
        found = [answer.result.values.tolist() for answer in kept.final("eigenvalues", entry)]
        if found:
            ranks = range(max(map(len, found)))
            spreads = [Spread.of([values[rank] for values in found if rank < len(values)]) for rank in ranks]
            lines.append(line(entry, {"rank": [float(rank + 1) for rank in ranks]}, spreads, 1.0))
    return _lines("eigenvalues", "Largest Hessian eigenvalues, at the end", "eigenvalue", "rank", lines)


def _density(entries: Sequence[Entry], kept: Kept) -> list[Chart]:
    lines = []
    for entry in entries:
        found = kept.final("density", entry)
        if found:
            answer = _lowest(found)
            density, grid = answer.result.density, answer.result.grid
            # Below this are the tails of the smoothing: gaps in the spectrum.
            seen = (density > 1e-6 * density.max()).tolist()
            points = [(x, y) for x, y, shown in zip(grid.tolist(), density.tolist(), seen, strict=True) if shown][::2]
            xs = {"eigenvalue": [x for x, _ in points]}
            lines.append(line(entry, xs, [Spread.of([y]) for _, y in points], 1.0, f"seed {answer.member.seed}"))
    title = "Density of the whole Hessian spectrum, at the end, lowest seed"
    return _lines("density", title, "density", "eigenvalue", lines, log=True)


def _lines(id: str, title: str, y: str, x: str, lines: list[Chart], *, log: bool = False) -> list[Chart]:
    chart = {"id": id, "kind": "lines", "title": title, "y": y, "axes": {x: x}, "log": log, "lines": lines}
    return [plain(chart)] if lines else []


def _lowest(answers: Sequence[Answer]) -> Answer:
    """That of the last epoch of the run with the lowest seed, of an unfinished run only where no other has one."""
    order: Callable[[Answer], tuple[bool, int, int]] = lambda answer: (  # noqa: E731
        not answer.ended,
        answer.member.seed,
        -answer.epoch,
    )
    return min(answers, key=order)
