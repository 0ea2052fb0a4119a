"""The command line: its surface is a promise, names are whole, mistakes end in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lesam.lab import data, models, recipes
from lesam.lab.cli import COMMANDS, main, make_app
from lesam.lab.config.optimizer import methods
from lesam.lab.runs.folder import RunFolder

WHERE = ("--on", "--jobs", "--cpus", "--threads", "--gpus", "--partition", "--minutes")
OPTIONS = {
    "compare": {"--seeds", "--scale", "--output", "-o", *WHERE},
    "train": {
        *("--recipe", "--method", "--scale", "--seeds", "--set", "--runs", "-o", "--switch-at", "--fresh-momentum"),
        *("--devices", "--nodes", "--accelerator", "--precision", "--strategy", "--compile", "--dry-run", "--again"),
        *("--track", "--track-every"),
    },
    "flatness": {
        *("--runs", "--epochs", "--samples", "--batch-size", "--eigenvalues", "--method", "--trace-samples"),
        *("--density", "--lpf-sigma", "--lpf-samples", "--mode", "--seed", "--device", "--storage", "--output", "-o"),
        "--size",
        # The settings' own record decides which there are.
        *("--subset-seed", "--tolerance", "--density-draws", "--density-steps", "--by-layer", "--layer-eigenvalues"),
    },
    "landscape": {
        *("--runs", "--epoch", "--one-dimensional", "--points", "--span", "--samples", "--batch-size", "--seed"),
        *("--reestimate-batch-norm", "--highest", "--jobs", "--device", "--output", "-o", "--size"),
    },
    "sweep": {
        *("--recipe", "--method", "--scale", "--seeds", "--set", "--grid", "--search", "--trials", "--study"),
        *("--storage", "--prune", "--runs", "-o", *WHERE),
    },
    "table": {"--runs", "--format", "--output", "-o"},
    "plot": {"--kind", "--runs", "--output", "-o", "--size"},
    "show": {"--run"},
    "status": {"--folder"},
    "report": {"--runs", "--output", "-o"},
    "watch": {"--folder", "--port", "--host"},
    "list": {"--kind"},
}


@pytest.mark.parametrize("command", OPTIONS)
def test_the_surface_is_frozen(command: str) -> None:
    """A new knob belongs into the configuration; one that must be an option is added here on purpose."""
    names = {name for argument in make_app()[command].assemble_argument_collection() for name in argument.names} - {"*"}
    assert names == OPTIONS[command]


def test_every_command_has_its_options_frozen() -> None:
    assert OPTIONS.keys() <= COMMANDS.keys()


def test_list_prints_titled_tables_with_a_line_about_each_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(heading in printed for heading in ("Recipes:", "Methods:", "Scales:", "Models:", "Data sets:"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if "|" in line]
    words = {row[0]: row[1] for row in rows}
    names = {*recipes.names(), *methods(), *recipes.SCALES, *models.NAMES, *data.NAMES}
    assert {name for name in names if len(words[name].split()) < 3} == set()


def test_a_list_of_one_kind_is_names_for_programs_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "recipes"]) == 0
    assert capsys.readouterr().out.splitlines() == list(recipes.names())


def test_help_describes_every_command_without_torch() -> None:
    code = "import sys; from lesam.lab.cli import main; main(['--help']); print('torch' in sys.modules)"
    environment = {**os.environ, "COLUMNS": "200"}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    *lines, torch = printed.stdout.splitlines()
    assert torch == "False"
    described = {line.split()[1]: line.split()[2:-1] for line in lines if line.startswith("│")}
    assert COMMANDS.keys() <= described.keys()
    assert all(len(described[command]) > 3 for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digit"], "did you mean 'digits'"),
        (["train", "digits", "--method", "lesm"], "did you mean 'lesam'"),
        (["train", "digits", "--scale", "tiny"], "unknown scale 'tiny'"),
        (["train", "digits", "--set", "optimizer.sgma=1"], "did you mean 'optimizer.sigma'"),
        (["train", "digits", "--set", "data.options.noise=1", "--dry-run"], None),
        (["train", "digits", "--fresh-momentum"], "give --switch-at"),
        (["train", "digits", "--track-every", "2"], "needs --track"),
        (["sweep", "digits"], "either --grid or --search"),
        (["sweep", "digits", "--grid", "optimizer.sigma"], "section.field=value,value"),
        (["sweep", "digits", "--search", "optimizer.sigma=1:0.5"], "low:high"),
        (["table", "nowhere"], "nowhere does not exist"),
    ],
)
def test_mistakes_end_in_a_sentence(
    arguments: list[str],
    message: str | None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(arguments)
    if message is None:
        assert code == 0
    else:
        assert code == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_an_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["trian"])
    captured = capsys.readouterr()
    assert "train" in captured.out + captured.err


def test_train_table_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--method", "lesam", "--scale", "smoke", "--seeds", "0", "1"]) == 0
    assert main(["train", "digits", "--method", "sam", "--scale", "smoke", "--switch-at", "1"]) == 0
    capsys.readouterr()
    assert main(["train", "digits", "--method", "lesam", "--scale", "smoke", "--seeds", "1"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["table", "runs"]) == 0
    table = capsys.readouterr().out
    assert "| digits | smoke | LE-SAM | 2 |" in table
    for kind in ("curves", "radius", "sensitivity", "switch"):
        assert main(["plot", kind, "runs", "-o", f"{kind}.png"]) == 0
        assert (tmp_path / f"{kind}.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", "curves", "runs", "-o", "curves.pdf"]) == 0
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")


def test_the_shell_completes_commands_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "lesam.bash"
    assert main(["--install-completion", "--shell", "bash", "--output", str(script)]) == 0
    assert str(script) in capsys.readouterr().out
    for words, offered in ((["re"], {"report", "reproduce"}), (["report", "--ou"], {"--output"})):
        typed = f"COMP_WORDS=(lesam {' '.join(words)}); COMP_CWORD={len(words)}"
        called = "$(complete -p lesam | grep -oP '(?<=-F )\\S+')"
        code = f'source {script}; {typed}; {called}; echo "${{COMPREPLY[@]}}"'
        printed = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout
        assert set(printed.split()) == offered


def test_show_prints_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    assert (
        main(["train", "digits", "--method", "lesam", "--scale", "smoke", "--seeds", "0", "1", "--runs", str(runs)])
        == 0
    )
    (run,) = runs.glob("*-seed1-*")
    capsys.readouterr()
    assert main(["show", str(run)]) == 0
    printed = capsys.readouterr().out
    rows = {
        cells[0]: cells[1]
        for line in printed.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 2
    }
    last = RunFolder(run).summary()["last"]
    assert rows["method"] == "LE-SAM"
    assert rows["seed"] == "1"
    assert rows["status"] == "finished"
    assert rows["test accuracy (%)"] == f"{last['test_accuracy'] * 100:.2f}"
    assert rows["optimizer.sigma"] == "0.35"
    assert f"| 2 | {last['train_loss']:.4g} |" in printed
    assert main(["show", str(runs)]) == 2
    assert run.name in capsys.readouterr().err


def test_without_the_lab_extra_the_command_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "cyclopts").mkdir()
    (tmp_path / "cyclopts" / "__init__.py").write_text("raise ModuleNotFoundError(name='cyclopts')")
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    result = subprocess.run([sys.executable, "-m", "lesam", "list"], env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert 'pip install "lesam[lab]"' in result.stderr
    assert "Traceback" not in result.stderr
