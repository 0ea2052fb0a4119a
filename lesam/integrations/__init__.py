"""What training frameworks need beyond plain torch. Import the module of the framework by name.

``lesam.integrations.lightning`` and ``lesam.integrations.transformers`` (which covers Accelerate's part in it) need
their framework installed: ``pip install "lesam[lightning]"``, ``pip install "lesam[transformers]"``. The latter covers
TRL, sentence-transformers and other Trainers too (``sharpness_aware(SFTTrainer)``). Fabric, bare Accelerate, PEFT and
timm need nothing from here.
"""
