"""Policies of gradient averaging and optimizer sharding: one module each."""

from __future__ import annotations

from simulator.program.gradients.base import GradientPolicy, Held, find_policy, gradient_policy, policies

__all__ = ["GradientPolicy", "Held", "find_policy", "gradient_policy", "policies"]
