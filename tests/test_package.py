"""The package says the same everywhere: one version, one list of checks, the Pythons that are tested."""

from __future__ import annotations

import re
import runpy
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import lesam

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="the checks are not part of an installed package")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A checkout that is ready to be published as 0.1.0."""
    (tmp_path / "lesam").mkdir()
    for file in ("lesam/__init__.py", "pyproject.toml", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / file, tmp_path / file)
    edit(tmp_path / "pyproject.toml", "https://example.org", "https://github.com/somebody")
    edit(tmp_path / "CHANGELOG.md", f"[{lesam.__version__}] - unreleased", f"[{lesam.__version__}] - 2026-12-01")
    return tmp_path


def edit(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


def objections(tag: str, root: Path) -> list[str]:
    return runpy.run_path(str(ROOT / ".ci" / "release.py"))["objections"](tag, root)


def test_a_release_with_its_tag_date_and_addresses_may_go_out(release: Path):
    assert objections(f"v{lesam.__version__}", release) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "remedy"),
    [
        ("lesam/__init__.py", f'"{lesam.__version__}"', '"9.9.9"', "tag v9.9.9, or change"),
        ("pyproject.toml", "github.com/somebody", "example.org", r"fill in Source"),
        ("CHANGELOG.md", "2026-12-01", "soon", "no dated section"),
        ("CITATION.cff", f"version: {lesam.__version__}", "version: 9.9.9", "CITATION.cff names another version"),
    ],
)
def test_a_release_that_is_not_ready_is_refused(release: Path, file: str, old: str, new: str, remedy: str):
    edit(release / file, old, new)
    assert remedy in "\n".join(objections(f"v{lesam.__version__}", release))


def test_the_citation_names_the_paper_and_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == lesam.__version__
    (paper,) = citation["references"]
    card = (ROOT / "docs" / "methods" / "lesam.md").read_text()
    assert ", ".join(f"{one['given-names']} {one['family-names']}" for one in paper["authors"]) in card
    assert " ".join(paper["title"].split()) in " ".join(card.split())


def workflow(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def rows() -> list[dict[str, str]]:
    """What the workflow runs: pairs of a make target and a Python."""
    matrix = workflow("checks")["jobs"]["check"]["strategy"]["matrix"]
    assert set(matrix) == {"target", "python", "include"}
    crossed = [{"target": target, "python": python} for target in matrix["target"] for python in matrix["python"]]
    return [*crossed, *matrix["include"]]


def checks_of_ci() -> list[str]:
    return re.findall(r"^make (\S+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_the_workflow_and_the_hooks_run_what_ci_runs():
    commands = [step["run"] for step in workflow("checks")["jobs"]["check"]["steps"] if "run" in step]
    assert commands == ["make ${{ matrix.target }}"]
    assert {row["target"] for row in rows()} == set(checks_of_ci())
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"] for hook in local["hooks"]] == [f"make {target}" for target in checks_of_ci()]


def test_every_make_target_that_is_named_exists():
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(checks_of_ci())
    for page in [*(ROOT / ".github").rglob("*.yml"), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        named |= set(re.findall(r"(?:`|run: |\$ )make ([a-z-]+)", page.read_text()))
    assert named <= made


def test_the_pythons_that_are_claimed_are_those_that_are_tested():
    """On the oldest and the newest torch alike; another machine than the workflow's may have one of them only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = {line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r"Python :: 3\.\d+$", line)}
    for target in ("test", "test-oldest"):
        assert {row["python"] for row in rows() if row["target"] == target} == claimed
    assert project["requires-python"] == f">={min(claimed, key=lambda version: int(version.split('.')[1]))}"


def test_actions_are_pinned_to_a_commit():
    used = [
        line for file in (ROOT / ".github").rglob("*.yml") for line in file.read_text().splitlines() if "uses:" in line
    ]
    foreign = [line for line in used if "uses: ./" not in line]
    assert foreign
    for line in foreign:
        assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line
