"""Options of the Voxtral fine-tuning scripts and of transformers' Trainer: keys of a run file, or why there is none."""

from typing import Any

from stentor.config.convert.draft import expanded
from stentor.config.convert.shell import Vocabulary

SAME = {
    "train-batch-size": "batch-size",
    "per-device-train-batch-size": "batch-size",
    "per-device-eval-batch-size": "eval-batch-size",
    "gradient-accumulation-steps": "grad-accum",
    "num-train-epochs": "epochs",
    "lr": "learning-rate",
    "lora-rank": "lora-r",
    "model": "model-checkpoint",
    "model-id": "model-checkpoint",
    "model-name-or-path": "model-checkpoint",
    "freeze-audio": "freeze-audio-tower",
    "trackio-space-id": "trackio-space",
    "evaluation-strategy": "eval-strategy",
    "activation-checkpointing": "gradient-checkpointing",
    "activation-checkpointing-kwargs": "gradient-checkpointing-kwargs",
    "no-cuda": "use-cpu",
}
"""Other spellings, of forks of the scripts and of transformers' Trainer."""
PLAIN: dict[str, tuple[str, Any]] = {
    "grad-accum": ("train.accumulate", 4),
    "learning-rate": ("optim.lr", 5e-5),
    "weight-decay": ("optim.weight_decay", None),
    "adam-epsilon": ("optim.eps", None),
    "epochs": ("train.epochs", 3),
    "logging-steps": ("train.log_every", 10),
    "save-total-limit": ("train.keep", None),
    "seed": ("train.seed", None),
    "eval-on-start": ("train.score_before", None),
    "torch-compile": ("train.compile", None),
    "ddp-find-unused-parameters": ("train.find_unused", None),
    "dataloader-num-workers": ("data.workers", 1),
    "dataloader-prefetch-factor": ("data.prefetch", None),
    "gradient-checkpointing": ("model.gradient_checkpointing", None),
}
"""Options with one counterpart, and the values that hold where they are not given."""
SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_restarts": "cosine_restarts",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "inverse_sqrt": "inverse_sqrt",
    "reduce_lr_on_plateau": "plateau",
    "warmup_stable_decay": "warmup_stable_decay",
}
OPTIMIZERS = {
    **dict.fromkeys(expanded("adamw_{torch,torch_fused,hf,apex_fused}"), "adamw"),
    "paged_adamw_32bit": "adamw",
    **dict.fromkeys((*expanded("adamw_{8bit,bnb_8bit}"), "paged_adamw_8bit"), "adamw8bit"),
    "sgd": "sgd",
    "adagrad": "adagrad",
    "rmsprop": "rmsprop",
}
STRATEGIES = {"no": "no", "steps": "steps", "epoch": "epoch", "best": "best"}
TRACKERS = ("tensorboard", "trackio", "wandb")
NOT_NEEDED = {
    "sets are scored in batches of `data.max_items`, and `data.eval_batch_tokens` where it is given": "eval-batch-size",
    "what is evaluated and logged, in the precision of training, is up to the task": (
        "{do-train,do-eval,do-predict,prediction-loss-only,eval-accumulation-steps,eval-do-concat-batches,"
        "eval-use-gather-object,include-for-metrics,include-inputs-for-metrics,batch-eval-metrics,bf16-full-eval,"
        "fp16-full-eval,label-names,remove-unused-columns,logging-strategy,logging-first-step,logging-nan-inf-filter,"
        "log-on-each-node,log-level,log-level-replica,logging-dir,disable-tqdm,include-num-input-tokens-seen,"
        "include-tokens-per-second,skip-memory-metrics,debug}"
    ),
    "each metric declares whether higher is better": "greater-is-better",
    "items of similar length share a batch, and none is dropped for the size of a batch": (
        "{group-by-length,train-sampling-strategy,length-column-name,dataloader-drop-last}"
    ),
    "the loader keeps its workers and pins memory where it helps": (
        "{dataloader-pin-memory,dataloader-persistent-workers,dataloader-multiprocessing-context,dataloader-in-order,"
        "accelerator-config}"
    ),
    "`stentor train RUN.yaml --processes N` starts the processes and connects them": (
        "{local-rank,ddp-backend,ddp-timeout,ddp-bucket-cap-mb,ddp-broadcast-buffers,ddp-static-graph,"
        "average-tokens-across-devices}"
    ),
    "`train.shard: true` shards layer by layer": (
        "{fsdp-config,fsdp-min-num-params,fsdp-transformer-layer-cls-to-wrap,parallelism-config}"
    ),
    "checkpoints have the whole state, and a run resumes exactly": (
        "{save-only-model,save-on-each-node,save-safetensors,enable-jit-checkpoint,ignore-data-skip,"
        "restore-callback-states-from-checkpoint,overwrite-output-dir}"
    ),
    "the largest batch is tried before step 1": "{auto-find-batch-size,torch-empty-cache-steps}",
    "the numbers are the same; see `stentor train RUN.yaml --plan-only` for memory": (
        "{use-liger-kernel,liger-kernel-config,use-cache,tf32,gradient-checkpointing-kwargs,fp16-opt-level,"
        "fp16-backend,half-precision-backend}"
    ),
    "`train.seed` decides about the data, too": "data-seed",
    "trackers call a run by `name`": "run-name",
    "the token comes from HF_TOKEN or from `hf auth login`": "hub-token",
    "a model is published after the run, by the command that is shown": "{hub-strategy,hub-always-push}",
}
"""Options without a counterpart that change nothing of the result: the keys by the reason; see `expanded`."""
NOT_POSSIBLE = {
    "set `schedule.cycles`, `schedule.min_ratio`, `schedule.decay_ratio` or `schedule.gamma` yourself": (
        "lr-scheduler-kwargs"
    ),
    "optimizers have the settings of the section `optim` alone": "{optim-args,optim-target-modules}",
    "embeddings are trained without noise (NEFTune)": "neftune-noise-alpha",
    "evaluation begins at the first `train.eval_every`": "eval-delay",
    "torch.compile has its default backend and mode": "{torch-compile-backend,torch-compile-mode}",
    "kernels of a GPU are not made deterministic; on a CPU a run repeats exactly": "full-determinism",
    "a model is published to the main branch": "hub-revision",
    "Trackio's Space is the only place that it sends to": "{trackio-bucket-id,trackio-static-space-id}",
}
"""Options without a counterpart that change something: as above. The user gets a note."""
_OTHERS = (
    "{use-lora,lora-r,lora-alpha,lora-dropout,freeze-audio-tower,dataset-jsonl,dataset-name,dataset-config,train-count,"
    "eval-count,model-checkpoint,output-dir,batch-size,save-steps,trackio-space,push-dataset,dataset-repo,push-to-hub,"
    "hub-model-id,repo-name,hub-private-repo,max-steps,warmup-steps,warmup-ratio,lr-scheduler-type,optim,adam-beta1,"
    "adam-beta2,max-grad-norm,label-smoothing-factor,bf16,fp16,report-to,project,eval-strategy,eval-steps,save-strategy,"
    "load-best-model-at-end,metric-for-best-model,early-stopping-patience,early-stopping-threshold,use-cpu,fsdp,"
    "deepspeed,resume-from-checkpoint}"
)
"""Options that `voxtral` converts one by one."""
_LEFT_OUT = [key for keys in (*NOT_NEEDED.values(), *NOT_POSSIBLE.values()) for key in expanded(keys)]
KNOWN = frozenset([*PLAIN, *_LEFT_OUT, *expanded(_OTHERS)])
TRAINING = Vocabulary(
    KNOWN,
    switches=frozenset(
        expanded(
            "{use-lora,freeze-audio-tower,push-dataset,push-to-hub,hub-private-repo,bf16,fp16,gradient-checkpointing,"
            "torch-compile,use-cpu,load-best-model-at-end,eval-on-start,ddp-find-unused-parameters}"
        )
    ),
    optional=frozenset(_LEFT_OUT),
    lists=frozenset(expanded("{report-to,include-for-metrics,label-names,debug,optim-target-modules,fsdp}")),
    same=SAME,
)
LAUNCHER = Vocabulary(
    frozenset(("processes", "nodes")),
    same={
        **dict.fromkeys(expanded("{num-processes,nproc-per-node,num-gpus}"), "processes"),
        **dict.fromkeys(expanded("{num-machines,nnodes,num-nodes}"), "nodes"),
    },
)
"""Options of `accelerate launch`, `torchrun` and `deepspeed`; the others say how processes find each other."""
