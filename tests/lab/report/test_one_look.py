"""Names, colours and summaries come from one place each: `optimizer.title`, `report.style`, `runs.statistics`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.colors import to_hex

import lesam.lab
from lesam.lab.config.optimizer import methods, title
from lesam.lab.paper import find
from lesam.lab.paper.experiment import Cell, Request
from lesam.lab.report.style import colour
from lesam.lab.runs.statistics import Spread
from tests.lab.running import smoke, trained

LAB = Path(lesam.lab.__file__).parent
NAMES_THEM = {"config/optimizer.py"}
COLOURS_THEM = {"report/style.py"}
SUMMARISES_THEM = {"runs/statistics.py"}
TITLE = re.compile(r"(?<![\w-])(" + "|".join(re.escape(title(method)) for method in methods()) + r")(?![\w+-])")


def files() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(LAB.rglob("*.py")):
        yield file.relative_to(LAB).as_posix(), ast.parse(file.read_text())


def texts(node: ast.AST) -> list[str]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def labels(tree: ast.Module) -> Iterator[str]:
    """Strings that can become a name in a table or figure: keys, members of lists, parts of f-strings, names alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield from (text for key in node.keys if key is not None for text in texts(key))
        elif isinstance(node, ast.List | ast.Tuple):
            yield from (text for each in node.elts if isinstance(each, ast.Constant) for text in texts(each))
        elif isinstance(node, ast.JoinedStr):
            yield from texts(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and TITLE.fullmatch(node.value):
            yield node.value


def test_no_file_names_a_method_by_itself() -> None:
    # Sentences may speak of methods.
    found = {(file, text) for file, tree in files() for text in labels(tree) if TITLE.search(text) and ". " not in text}
    assert {each for each in found if each[0] not in NAMES_THEM} == set()


def test_no_file_has_colours_or_dashes_of_its_own() -> None:
    found = set()
    for file, tree in files():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            given = {word.arg: texts(word.value) for word in call.keywords if word.arg in ("color", "linestyle", "fc")}
            # Black and dotted are for marks, which belong to no method.
            found |= {(file, text) for of in given.values() for text in of if text not in ("black", ":")}
        found |= {(file, text) for text in texts(tree) if re.fullmatch(r"#[0-9a-fA-F]{6}|C\d|tab:\w+", text)}
    assert {each for each in found if each[0] not in COLOURS_THEM} == set()


def test_no_file_has_means_or_deviations_of_its_own() -> None:
    found = set()
    for file, tree in files():
        if file.startswith("tasks/"):  # sums over images and domains, inside a run
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                named = f"{node.value.id}.{node.attr}"
                if re.fullmatch(r"(np|numpy|statistics)\.(nan)?(f?mean|average|p?stdev|p?variance|std|var)", named):
                    found.add((file, named))
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                over = [ast.unparse(side).partition("(")[0] for side in (node.left, node.right)]
                if over[0] in ("sum", "math.fsum") and over[1] == "len":
                    found.add((file, ast.unparse(node)))
    assert {each for each in found if each[0] not in SUMMARISES_THEM} == set()


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    """SAM and LE-SAM with two seeds each, at the smoke scale."""
    runs, found = tmp_path_factory.mktemp("runs"), []
    for method in ("sam", "lesam"):
        config = smoke("digits", "record.keep_epochs=1,2", method=method)
        configs = (config, replace(config, seed=1))
        of = tuple(trained(each, runs) for each in configs)
        found.append(Cell(row=title(method), column="digits", configs=configs, runs=of))
    return found


def test_flatness_and_mechanism_are_drawn_in_the_colours_of_the_methods(cells: list[Cell]) -> None:
    request = Request(scale="smoke", seeds=(0, 1), runs=cells[0].runs[0].path.parent, progress=lambda words: None)
    flatness = find("flatness").report(request, cells)
    expected = {title(method): colour(method) for method in ("sam", "lesam")}
    *lines, bars = flatness.figures["low-pass"].axes[0].containers
    assert bars.get_label() == "± one standard deviation"
    assert {str(line.get_label()): to_hex(line[0].get_color()) for line in lines} == expected
    terms = find("mechanism").report(request, cells)
    shares = terms.figures["terms"].axes[1].lines
    assert {str(line.get_label()): to_hex(line.get_color()) for line in shares} == expected
    illustrated = {to_hex(line.get_color()) for line in terms.figures["illustration"].axes[0].lines}
    assert not illustrated & {colour(method) for method in methods()}  # epochs, which are no method


def test_the_curve_over_seeds_is_that_of_the_tables(cells: list[Cell]) -> None:
    request = Request(scale="smoke", seeds=(0, 1), runs=cells[0].runs[0].path.parent, progress=lambda words: None)
    report = find("flatness").report(request, cells)
    (row,) = (row for row in report.rows if row["row"] == "SAM")
    container = next(each for each in report.figures["low-pass"].axes[0].containers if each.get_label() == "SAM")
    drawn = dict(container[0].get_xydata())
    spreads = {epoch: Spread.of(values) for epoch, values in row["low_pass"].items()}
    assert drawn == pytest.approx({epoch: spread.mean for epoch, spread in spreads.items()})
    segments = {segment[0, 0]: segment[:, 1] for segment in container[2][0].get_segments()}
    for epoch, spread in spreads.items():
        assert segments[epoch] == pytest.approx([spread.mean - spread.std, spread.mean + spread.std])
