"""What a kernel model is, and where they are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Final, TypeAlias

from simulator.errors import SpecError, nearest
from simulator.model.blocks import Kernel
from simulator.spec import Gpu

if TYPE_CHECKING:
    from simulator.hardware.stacks import Stack


@dataclass(frozen=True, slots=True)
class KernelCost:
    """Time of a kernel alone on its GPU: the larger of the two.

    `compute_s` stretches when the kernel gets a part of the SMs or a slower clock, `memory_s` when it
    gets a part of the HBM bandwidth.
    """

    compute_s: float
    memory_s: float

    @property
    def duration_s(self) -> float:
        return max(self.compute_s, self.memory_s)


Model: TypeAlias = Callable[[Kernel, Gpu], KernelCost]
_MODELS: Final[dict[str, Model]] = {}


def kernel_model(*ops: str) -> Callable[[Model], Model]:
    """Register the model of one or more ops."""

    def register(model: Model) -> Model:
        _MODELS.update(dict.fromkeys(ops, model))
        return model

    return register


@cache
def _load() -> None:
    import simulator.hardware.kernels as package

    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


def kernel_cost(kernel: Kernel, gpu: Gpu, stack: Stack | None = None) -> KernelCost:
    """The kernel's time on a GPU; raises SpecError for an op that no model is registered for."""
    del stack  # a stack decides which kernels are launched, not how long one takes
    _load()
    model = _MODELS.get(kernel.op)
    if model is None:
        raise SpecError.of("op", f"'{kernel.op}': no model of such a kernel{nearest(kernel.op, _MODELS)}")
    return model(kernel, gpu)


def peak(gpu: Gpu, precision: str) -> float:
    """Dense peak that a kernel of a precision runs against, at the clock under sustained load."""
    name = precision.partition("-")[0]
    flops = gpu.peak_flops_per_s.get(name, gpu.peak_flops_per_s["bf16"])
    return flops * gpu.constants.get("sustained_clock", 1.0)


def floor_s(gpu: Gpu) -> float:
    """Shortest time between the starts of two kernels on a stream: ramp up and drain."""
    return gpu.constants["kernel_floor_s"]
