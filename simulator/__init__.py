"""trainsim: a discrete-event simulator of distributed training."""

from __future__ import annotations

__version__ = "0.1.0"
