"""The ``lesam`` command. Each sub-command lives in a module of :mod:`lesam.lab.commands`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App

COMMANDS: dict[str, str] = {
    "compare": "lesam.lab.commands.compare:compare",
    "train": "lesam.lab.commands.train:train",
    "sweep": "lesam.lab.commands.sweep:sweep",
    "attack": "lesam.lab.commands.attack:attack",
    "flatness": "lesam.lab.commands.flatness:flatness",
    "landscape": "lesam.lab.commands.landscape:landscape",
    "reproduce": "lesam.lab.commands.reproduce:reproduce",
    "table": "lesam.lab.commands.table:table",
    "plot": "lesam.lab.commands.plot:plot",
    "list": "lesam.lab.commands.listing:listing",
}
"""Name of each sub-command and the function behind it, imported when it is called."""

INSTALL = """lesam's command line needs the packages of the lab, and {name!r} is missing.
Install them with:  pip install "lesam[lab]"
"""


def make_app() -> App:
    """The application with all its sub-commands."""
    from cyclopts import App

    app = App(name="lesam", help="Sharpness-aware training: the experiments of the LE-SAM paper.")
    for name, target in COMMANDS.items():
        app.command(target, name=name)
    return app


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; errors of use end in one sentence, not in a trace."""
    try:
        app = make_app()
        app(arguments, result_action="return_value")
    except ModuleNotFoundError as error:
        if (error.name or "lesam").partition(".")[0] == "lesam":
            raise
        print(INSTALL.format(name=error.name), file=sys.stderr, end="")
        return 1
    except (ValueError, FileNotFoundError) as error:
        print(f"lesam: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        from lesam.lab.sweeps.pool import RunsFailedError
        from lesam.lab.training.divergence import RunDivergedError
        from lesam.lab.training.interrupt import RunInterruptedError

        if isinstance(error, RunDivergedError):
            print(f"lesam: {error}; --again trains anew", file=sys.stderr)
            return 3
        if isinstance(error, RunsFailedError):
            print(f"lesam: {error}", file=sys.stderr)
            return 1
        if not isinstance(error, RunInterruptedError):
            raise
        print(f"lesam: {error}; the same command resumes from there", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("lesam: stopped", file=sys.stderr)
        return 130
    return 0
