"""What one run is, as frozen records: read from JSON, changed by ``--set``, named by a fingerprint.

A recipe (a function ``(method, scale, seed) -> RunConfig``) needs nothing but these names.
"""

from lesam.lab.config.run import (
    DataConfig,
    ModelConfig,
    RecordConfig,
    RunConfig,
    ScheduleConfig,
    SystemConfig,
)
from lesam.lab.config.task import ClassificationConfig, ErmPlusPlusConfig, GLMCConfig, TaskConfig

__all__ = [
    "ClassificationConfig",
    "DataConfig",
    "ErmPlusPlusConfig",
    "GLMCConfig",
    "ModelConfig",
    "RecordConfig",
    "RunConfig",
    "ScheduleConfig",
    "SystemConfig",
    "TaskConfig",
]
