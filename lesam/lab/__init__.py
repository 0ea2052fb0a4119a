"""The experiments: data, models, recipes, one training loop, tables, plots and the command line.

Needs the extra dependencies of ``pip install "lesam[lab]"``. Typical use from Python::

    from lesam.lab import recipes
    from lesam.lab.training.loop import train

    config = recipes.build("digits", method="lesam", scale="smoke", seed=0)
    summary = train(config, runs="runs")

The same from a shell is ``lesam train digits --method lesam --scale smoke --seeds 0``.
"""
