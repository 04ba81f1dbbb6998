"""Closed forms that people start with: fleet, duration, price, recomputation, checkpoints.

Every question is one module with a function registered by name; an answer shows its formula and steps.
"""

from __future__ import annotations

from simulator.planning.answer import Answer, Step, ask, questions, swing

__all__ = ["Answer", "Step", "ask", "questions", "swing"]
