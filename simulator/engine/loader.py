"""PyTorch's DataLoader as a recurrence.

Worker `i mod W` loads batch i. Batch i is asked for when batch i - W x prefetch_factor has been
delivered (the first ones at time 0), a worker serves its requests in order, and batches are delivered
in order. So with c the time a batch is loaded, r the time it was asked for and T the load time,

    c(i) = max(c(i - W), r(i)) + T(i),     r(i) = delivery of batch i - W x prefetch_factor,

and the host gets batch i at max(its own clock, c(i)). No event is needed: everything that c(i)
depends on has happened when the host asks.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.engine.speed import Profile


class Loader:
    """The workers of one rank. `load_s(i)`: full-speed time to load batch i."""

    def __init__(
        self,
        workers: int,
        prefetch_factor: int,
        load_s: Callable[[int], float],
        profiles: Callable[[int], Profile],
        factor: Callable[[int, int], float],
    ):
        self._workers = workers
        self._depth = workers * prefetch_factor
        self._load_s = load_s
        self._profiles = [profiles(worker) for worker in range(max(1, workers))]
        self._factor = factor  # (worker, batch) -> speed from windows in steps
        self._loaded_s: list[float] = []
        self._asked_s: list[float] = [0.0] * self._depth
        self.spans: list[tuple[int, int, float, float]] = []  # worker, batch, start, end

    def next(self, now_s: float) -> float:
        """The time at which the host, asking at `now_s`, holds the next batch; remembers the delivery."""
        batch = len(self._loaded_s)
        if not self._workers:
            done = self._load(0, batch, now_s)
            self._loaded_s.append(done)
            return done
        worker = batch % self._workers
        idle = self._loaded_s[batch - self._workers] if batch >= self._workers else 0.0
        loaded = self._load(worker, batch, max(idle, self._asked_s[batch]))
        self._loaded_s.append(loaded)
        delivered = max(now_s, loaded)
        self._asked_s.append(delivered)
        return delivered

    def _load(self, worker: int, batch: int, start_s: float) -> float:
        factor = self._factor(worker, batch)
        work = self._load_s(batch)
        if factor <= 0:
            return float("inf")
        end = self._profiles[worker].finish(start_s, work / factor)
        if end > start_s:
            self.spans.append((worker, batch, start_s, end))
        return end
