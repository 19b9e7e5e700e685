"""Scorers by name."""

from __future__ import annotations

from srns.scorers.gmf import GMF

SCORERS: dict[str, type[GMF]] = {GMF.name: GMF}

__all__ = ["GMF", "SCORERS"]
