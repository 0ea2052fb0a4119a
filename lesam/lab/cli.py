"""The ``lesam`` command. Each sub-command lives in a module of :mod:`lesam.lab.commands`."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App

COMMANDS: dict[str, str] = {
    "compare": "lesam.lab.commands.compare:compare",
    "train": "lesam.lab.commands.train:train",
    "sweep": "lesam.lab.commands.sweep:sweep",
    "attack": "lesam.lab.commands.attack:attack",
    "corrupt": "lesam.lab.commands.corrupt:corrupt",
    "flatness": "lesam.lab.commands.flatness:flatness",
    "landscape": "lesam.lab.commands.landscape:landscape",
    "reproduce": "lesam.lab.commands.reproduce:reproduce",
    "show": "lesam.lab.commands.show:show",
    "status": "lesam.lab.commands.status:status",
    "table": "lesam.lab.commands.table:table",
    "plot": "lesam.lab.commands.plot:plot",
    "report": "lesam.lab.commands.report:report",
    "watch": "lesam.lab.commands.watch:watch",
    "list": "lesam.lab.commands.listing:listing",
}
"""Name of each sub-command and the function behind it, imported when it is called."""

INSTALL = """lesam's command line needs the packages of the lab, and {name!r} is missing.
Install them with:  pip install "lesam[lab]"
"""

CLOSED_PIPE = 141
"""What a shell shows for a program that a closed pipe ended: 128 and the number of SIGPIPE."""


def make_app() -> App:
    """The application with all its sub-commands."""
    from cyclopts import App

    app = App(name="lesam", help="Sharpness-aware training: the experiments of the LE-SAM paper.")
    for name, target in COMMANDS.items():
        app.command(target, name=name, help=described(target))
    # Writes the script to where the shell looks for it, and changes no file of the user's.
    app.register_install_completion_command(
        add_to_startup=False, help="Let the shell complete commands and options; --shell bash, zsh or fish."
    )
    return app


def described(target: str) -> str:
    """What a command's function says about itself, read from its source: importing all of them would take seconds.

    >>> described("lesam.lab.commands.table:table").partition(":")[0]
    'Tabulate finished runs'
    """
    module, _, function = target.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"there is no module {module} behind the command {target}")
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            # Without the section on parameters, which the list of options shows.
            return (ast.get_docstring(node) or "").partition("\n\nParameters\n---")[0]
    raise ValueError(f"there is no function {function} in {spec.origin}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, that of the process by default: then one that trains with others ends here."""
    code = _answer(arguments)
    if arguments is None and "torch" in sys.modules:
        from lesam.lab.training.ending import end_if_one_of_several

        end_if_one_of_several(code)
    return code


def _answer(arguments: list[str] | None) -> int:
    """What the command comes to, as an exit code; errors of use end in one sentence, not in a trace."""
    try:
        app = make_app()
        app(arguments, result_action="return_value")
        sys.stdout.flush()  # a pipe that was closed shows here and not while Python ends
    except ModuleNotFoundError as error:
        if (error.name or "lesam").partition(".")[0] == "lesam":
            raise
        asking = _imported_by(error)
        ours = asking.is_relative_to(Path(__file__).resolve().parents[1])
        print(
            INSTALL.format(name=error.name) if ours else f"lesam: {asking} needs {error.name!r}, which is missing",
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:
        # Whoever read the output has seen enough, as `head` does; what is still in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except ValueError as error:
        print(f"lesam: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        from lesam.lab.training.failures import sentence

        print(f"lesam: {sentence(error)}", file=sys.stderr)
        return 2
    except (RuntimeError, MemoryError) as error:
        from lesam.lab.execution.jobs import RunsFailedError
        from lesam.lab.training.divergence import RunDivergedError
        from lesam.lab.training.failures import sentence
        from lesam.lab.training.interrupt import RunInterruptedError

        if isinstance(error, RunInterruptedError):
            from lesam.lab.training.requeue import requeue_if_told

            print(f"lesam: {error}; the same command resumes from there", file=sys.stderr, flush=True)
            if (words := requeue_if_told(error.signal)) is not None:
                print(f"lesam: {words}", file=sys.stderr, flush=True)
            return 130
        if isinstance(error, RunDivergedError):
            print(f"lesam: {error}", file=sys.stderr)
            return 3
        if isinstance(error, RunsFailedError):
            print(f"lesam: {error}", file=sys.stderr)
            return 1
        words = sentence(error)
        if words is None:
            raise
        print(f"lesam: {words}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lesam: stopped", file=sys.stderr)
        return 130
    return 0


def _imported_by(error: ModuleNotFoundError) -> Path:
    """The file whose import failed: one of ours, or a recipe of the user's own."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    asking = [name for name in frames if not name.startswith("<frozen") and error.name not in Path(name).parts]
    return Path(asking[-1]).resolve()
