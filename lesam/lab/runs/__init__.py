"""Run folders: their files, checkpoints, repetitions, and answers kept in them."""
