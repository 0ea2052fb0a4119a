"""Kinds of training: what a batch is, what its loss is, what follows a step and what is evaluated.

:class:`lesam.lab.tasks.task.Task` is the shape; the loop, the run folder, checkpoints and every optimizer are common to
all of them. Importing this package imports the records alone, so that a command line can check its arguments quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lesam.lab.config.task import TASKS, ClassificationConfig, ErmPlusPlusConfig, GLMCConfig, TaskConfig

if TYPE_CHECKING:
    from lesam.lab.tasks.task import Parts, Task

__all__ = ["TASKS", "ClassificationConfig", "ErmPlusPlusConfig", "GLMCConfig", "TaskConfig", "make_task"]


def make_task(parts: Parts) -> Task:
    """The task of a run over its parts."""
    from lesam.lab.tasks.classification import Classification
    from lesam.lab.tasks.ermpp import ErmPlusPlus
    from lesam.lab.tasks.glmc import GLMC

    makers: dict[str, type[Task]] = {"classification": Classification, "ermpp": ErmPlusPlus, "glmc": GLMC}
    return makers[parts.config.task.kind](parts)
