"""Where runs are trained: in this process, in a few of this machine, on a Ray cluster, by SLURM.

An :class:`~lesam.lab.execution.jobs.Executor` takes jobs and tells what happens to them; everything else that trains
several runs (grids, searches, experiments) does not know where that is.
"""
