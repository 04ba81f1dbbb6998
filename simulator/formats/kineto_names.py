"""What the names in a PyTorch profiler trace stand for, over its generations and both vendors."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from simulator.timeline import DeviceKind, HostKind

#: categories of old traces ("Kernel", "Operator") and of new ones, in lower case
GPU_CATEGORIES: Final = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "memset",
    "memset": "memset",
}
RUNTIME: Final = {"cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "hip_driver"}
ANNOTATIONS: Final = {"user_annotation", "python_function"}
OPERATORS: Final = {"cpu_op", "operator"}

_COMMUNICATION = re.compile(r"^(nccl|rccl|msccl).*kernel", re.IGNORECASE)
_COPY = re.compile(r"^(memcpy|dma|copy(device|host)to|__amd_rocclr_copy)", re.IGNORECASE)
_MEMSET = re.compile(r"^(memset|__amd_rocclr_fill)", re.IGNORECASE)
_OPERATION = re.compile(
    r"AllReduce|AllGather|ReduceScatter|AllToAll|SendRecv|Broadcast|Reduce|Send|Recv|Generic", re.IGNORECASE
)
STEP = re.compile(r"^ProfilerStep\s*#\s*(\d+)")
OPTIMIZER = re.compile(r"^Optimizer\.step")

_LOADER = re.compile(r"DataLoader|dataloader|data_loader|next_batch|load_batch")
_GARBAGE = re.compile(r"^(gc\b|gc\.collect|garbage)|built-in function collect|\bgc\.collect\b", re.IGNORECASE)
_CHECKPOINT = re.compile(r"save_checkpoint|torch\.save|async_save|dist_checkpointing.*save", re.IGNORECASE)
_WAITS = re.compile(r"Synchronize|hipMemcpyWithStream|^(cuda|hip)Memcpy$|^(cuda|hip)MemcpyDtoH$")
_ISSUES = re.compile(r"Launch|Memcpy|Memset|GraphLaunch", re.IGNORECASE)


@cache
def device_kind(category: str, name: str) -> DeviceKind:
    """Of a GPU event: its category is a value of GPU_CATEGORIES."""
    if category == "copy" or _COPY.match(name):
        return DeviceKind.COPY
    if category == "memset" or _MEMSET.match(name):
        return DeviceKind.MEMSET
    return DeviceKind.COLLECTIVE if _COMMUNICATION.match(name) else DeviceKind.COMPUTE


@cache
def runtime_kind(name: str) -> HostKind:
    """Of a call into the driver: it waits, it issues, or neither."""
    if _WAITS.search(name):
        return HostKind.SYNC
    return HostKind.LAUNCH if _ISSUES.search(name) else HostKind.FRAMEWORK


@cache
def annotation_kind(name: str) -> HostKind | None:
    """What an annotation, operator or Python function tells of the host; None: nothing of interest."""
    if _LOADER.search(name):
        return HostKind.LOADER
    if _GARBAGE.search(name):
        return HostKind.GARBAGE_COLLECTION
    return HostKind.CHECKPOINT if _CHECKPOINT.search(name) else None


@cache
def operation(name: str) -> str:
    """Which collective a kernel's name says: "allreduce", "sendrecv", ...; "nccl" if it does not."""
    found = _OPERATION.search(name)
    return found.group().lower() if found else "nccl"
