"""One run as a few short tables: what it is, what it reached, how it got there."""

from __future__ import annotations

from lesam.lab.config.optimizer import title
from lesam.lab.report.page.charts import thinned
from lesam.lab.report.page.entries import Member, number
from lesam.lab.report.page.kept import answers_of
from lesam.lab.report.page.quantities import QUANTITIES
from lesam.lab.report.page.tables import ended, last_start
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.repetitions import settings

Rows = list[tuple[str, ...]]

MOST_EPOCHS = 12
COLUMNS = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "rho", "sigma", "capped", "seconds")


def tables(run: RunFolder) -> dict[str, Rows]:
    """The tables by their titles, headings first."""
    member = Member(run)
    found = {"Run": _about(member), "Settings": _settings(member)}
    epochs = _epochs(member)
    return found | ({"Epochs": epochs} if len(epochs) > 1 else {})


def _about(member: Member) -> Rows:
    config = member.config
    rows: Rows = [
        ("", "this run"),
        ("folder", str(member.run.path)),
        ("method", title(config.method)),
        ("recipe", config.recipe),
        ("scale", config.scale),
        ("seed", str(config.seed)),
        ("status", ended(member)),
    ]
    for quantity in QUANTITIES:
        value = quantity.of(member)
        if value is not None:
            rows.append((quantity.title, f"{value * 100:.2f}" if quantity.percent else f"{value:.4g}"))
    rows += [("measured", words) for words in _measured(member)]
    names = ("started (UTC)", "commit", "versions", "machine", "command")
    return rows + [(name, words) for name, words in zip(names, last_start(member), strict=True) if words]


def _measured(member: Member) -> list[str]:
    """Measures and attacks kept in the folder, and at which epochs."""
    epochs: dict[str, set[int]] = {}
    for measure, answer in answers_of(member):
        epochs.setdefault(measure, set()).add(answer.epoch)
    return [f"{measure} after epoch {', '.join(map(str, sorted(of)))}" for measure, of in epochs.items()]


def _epochs(member: Member) -> Rows:
    """Evenly spaced rows of the metrics, in the columns that the run has."""
    columns = [name for name in COLUMNS if member.series(name)]
    picked = thinned(range(len(member.rows)), most=MOST_EPOCHS)
    found: Rows = [("epoch", *(name.replace("_", " ") for name in columns))]
    for index in picked:
        values = (number(member.rows[index].get(name)) for name in columns)
        found.append(
            (str(member.rows[index]["epoch"] + 1), *("" if value is None else f"{value:.4g}" for value in values))
        )
    return found


def _settings(member: Member) -> Rows:
    """Everything that makes the run what it is."""
    return [("setting", "value"), *((path, str(value)) for path, value in settings(member.config).items())]
