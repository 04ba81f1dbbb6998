"""Megatron-LM's options that say nothing about a step's time or memory: learning rates, data, logs, names.

From Megatron-LM, megatron/training/arguments.py, and torchrun's launcher.
"""

from __future__ import annotations

from typing import Final

_OPTIMIZATION: Final = """
lr min-lr lr-decay-style lr-wsd-decay-style lr-warmup-iters lr-warmup-fraction lr-warmup-samples lr-warmup-init
lr-decay-iters lr-decay-samples lr-wsd-decay-iters lr-wsd-decay-samples weight-decay start-weight-decay
end-weight-decay weight-decay-incr-style adam-beta1 adam-beta2 adam-eps sgd-momentum decoupled-lr
decoupled-min-lr override-opt_param-scheduler use-checkpoint-opt_param-scheduler override-opt-param-scheduler
use-checkpoint-opt-param-scheduler train-iters train-samples exit-interval exit-duration-in-mins
exit-signal-handler seed init-method-std init-method-xavier-uniform initial-loss-scale min-loss-scale
loss-scale loss-scale-window hysteresis norm-epsilon layernorm-epsilon apply-layernorm-1p
attention-softmax-in-fp32 apply-query-key-layer-scaling no-query-key-layer-scaling fp32-residual-scale
moe-aux-loss-coeff moe-z-loss-coeff moe-router-load-balancing-type moe-router-dtype
moe-router-score-function moe-router-pre-softmax moe-router-topk-scaling-factor moe-router-num-groups
moe-router-group-topk moe-router-bias-update-rate moe-router-enable-expert-bias moe-input-jitter-eps
moe-per-layer-logging moe-token-drop-policy calculate-per-token-loss mtp-loss-scaling-factor
rotary-base rotary-percent rotary-interleaved rotary-seq-len-interpolation-factor use-rope-scaling
rope-scaling-factor rotary-scaling-factor mscale mscale-all-dim beta-fast beta-slow original-max-position-embeddings
"""

_DATA: Final = """
data-path train-data-path valid-data-path test-data-path data-args-path per-split-data-args-path split
data-cache-path tokenizer-type tokenizer-model tokenizer-name-or-path tiktoken-pattern vocab-file merge-file
vocab-extra-ids mock-data no-mmap-bin-files eod-mask-loss create-attention-mask-in-dataloader
no-create-attention-mask-in-dataloader num-dataset-builder-threads reset-position-ids dataloader-type
data-parallel-random-init data-impl legacy-tokenizer null-tokenizer s3-cache-path
"""

_RUN: Final = """
save save-interval load load-iteration pretrained-checkpoint finetune ckpt-format ckpt-step
ckpt-fully-parallel-save ckpt-fully-parallel-load ckpt-assume-constant-structure async-save
use-dist-ckpt dist-ckpt-format dist-ckpt-strictness use-checkpoint-args no-use-tokenizer-model-from-checkpoint-args
no-save-optim no-save-rng no-load-optim no-load-rng non-persistent-save-interval non-persistent-ckpt-type
exit-on-missing-checkpoint auto-detect-ckpt-format use-persistent-ckpt-worker no-ckpt-fully-parallel-save
eval-iters eval-interval test-mode skip-train
tensorboard-dir tensorboard-log-interval tensorboard-queue-size log-timers-to-tensorboard timing-log-level
timing-log-option log-params-norm log-num-zeros-in-grad log-throughput log-progress log-memory-to-tensorboard
log-validation-ppl-to-tensorboard log-world-size-to-tensorboard log-loss-scale-to-tensorboard
no-log-loss-scale-to-tensorboard no-log-learnig-rate-to-tensorboard logging-level wandb-project
wandb-exp-name wandb-save-dir wandb-entity one-logger-project one-logger-run-name one-logger-async
enable-one-logger no-one-logger app-tag-run-name app-tag-run-version
profile profile-step-start profile-step-end profile-ranks use-pytorch-profiler
distributed-backend distributed-timeout-minutes local-rank lazy-mpu-init use-mcore-models use-legacy-models
no-barrier-with-level-1-timing manual-gc manual-gc-interval manual-gc-eval spec export-force-local-attention config-file
"""

_LAUNCHER: Final = """
node_rank node-rank master_addr master-addr master_port master-port rdzv_id rdzv-id rdzv_backend rdzv-backend
rdzv_endpoint rdzv-endpoint rdzv_conf rdzv-conf max_restarts max-restarts log_dir log-dir redirects tee
standalone
job-name nodes ntasks ntasks-per-node container-image container-mounts no-container-mount-home
container-workdir
"""

EFFECTLESS: Final = frozenset(" ".join((_OPTIMIZATION, _DATA, _RUN, _LAUNCHER)).split())
