"""The scenario that `trainsim new` writes."""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = """\
# A scenario of trainsim. Only model, cluster and batch are needed; the rest shows the defaults or
# an example. Quantities carry their units ("25 MiB", "35 ms", "400 Gb/s").
name: my-run

# A bundled name (trainsim list models), the path of a Hugging Face config.json, or fields:
# {layers: 24, hidden: 2048, heads: 16, ffn: 8192, vocab: 50257}
model: gpt2-xl

cluster:
  topology: dgx-a100          # trainsim list clusters, the path of a file, or fields inline
  gpus: 32
  # gpu: a100-sxm             # the topology's own if not given; {name: a100-sxm, memory: 40 GB}
  # node_gpus: {3: a100-sxm-40g}

precision: bf16               # fp32 | tf32 | fp16 | bf16 | fp8 | fp8-blockwise

parallelism:
  tp: 1                       # tensor, context, pipeline; dp is what is left of the GPUs
  cp: 1
  pp: 1
  sequence_parallel: false
  schedule: 1f1b              # gpipe | 1f1b | interleaved-1f1b | zb-h1 | zb-h2 | zb-v
  sharding: ddp               # ddp | zero-1 | zero-2 | zero-3 | fsdp | hsdp

batch:
  sequence_length: 1024
  micro_batch: 8
  global_batch: 256           # sequences a step, all ranks together

recompute: none               # none | selective | full | {every: 2} | {first: 3}

overlap:
  grad_reduce: true
  bucket_size: 25 MiB

software:
  framework: pytorch          # trainsim list stacks
  attention: flash
  optimizer: fused-adamw
  log_every: 10

dataloader:
  workers: 8
  prefetch_factor: 2
  load_time: {distribution: lognormal, mean: 60 ms, cv: 0.1}

# What goes wrong: each fault has a place, a time and a size (trainsim list faults).
faults: []
# - {kind: slow-compute, node: 1, factor: 0.8}
# - {kind: host-stall, rank: 3, duration: 400 ms, at_step: 3}
# - {kind: garbage-collection, duration: 300 ms, every_steps: 50, phase: private}

run:
  steps: 10
  warmup: 2
  seed: 0
"""
