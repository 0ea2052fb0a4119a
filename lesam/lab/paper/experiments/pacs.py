"""Single-domain generalisation on PACS."""

from __future__ import annotations

from lesam.lab.paper.domains import domain_table

EXPERIMENT = domain_table("pacs")
