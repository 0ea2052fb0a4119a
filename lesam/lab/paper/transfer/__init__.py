"""Fine-tuning a network that the lab pretrained itself: how well the new task is learned, how much is forgotten.

``contest`` says who competes and which runs that needs, ``forgetting`` measures what is left of the old task,
``tables`` writes both down from the records. The rules are in ``docs/fine-tuning.md``.
"""
