"""The sections `optim:`, `schedule:` and `train:`."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.metrics.score import Direction
from stentor.section import ConfigConflict, Effect, Section


class ParameterGroup(Section):
    """A parameter group with its own settings."""

    params: list[str] = Field(min_length=1)
    """Globs on full parameter names, such as `encoder.*`. A parameter belongs to the first group that matches."""
    lr: float | None = Field(None, ge=0, le=100)
    """Peak learning rate of the group. Null: `optim.lr`."""
    weight_decay: float | None = Field(None, ge=0)
    """Weight decay of the group. Null: `optim.weight_decay`."""


class Optim(Section):
    """Optimizer and parameter groups. Biases, norms and other vectors get no weight decay."""

    type: Literal["adam", "adamw", "sgd", "adagrad", "rmsprop", "adamax", "muon", "adamw8bit"] = "adamw"
    """Optimizer. `muon` uses Muon for hidden matrices and AdamW for the rest; `adamw8bit` needs bitsandbytes."""
    lr: float = Field(1e-3, ge=0, le=100)
    """Peak learning rate."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay (an L2 penalty for sgd, adam, adagrad, rmsprop and adamax)."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment (adam, adamw, adamax, adamw8bit, and muon's AdamW part)."""
    eps: float = Field(1e-8, gt=0)
    """Term added to the denominator for numerical stability."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of sgd, rmsprop and muon."""
    nesterov: bool = False
    """Use Nesterov momentum (sgd)."""
    amsgrad: bool = False
    """Use the AMSGrad variant (adam and adamw)."""
    muon_lr: float = Field(2e-2, gt=0, le=100)
    """Peak learning rate of the matrices that Muon updates."""
    groups: list[ParameterGroup] = []
    """Parameter groups with their own settings."""


class Schedule(Section):
    """Learning rate as a factor of the peak, depending only on the optimizer step (plateau: also on a metric)."""

    type: Literal[
        "cosine",
        "cosine_restarts",
        "linear",
        "exponential",
        "step",
        "plateau",
        "constant",
        "inverse_sqrt",
        "warmup_stable_decay",
    ] = "cosine"
    """Shape after the warm-up."""
    warmup_steps: int | None = Field(None, ge=0)
    """Steps of linear warm-up. Null: see `warmup_ratio`."""
    warmup_ratio: float | None = Field(None, ge=0, le=1)
    """Warm-up as a share of all steps. Null, without `warmup_steps`: 0.05."""
    min_ratio: float = Field(0.0, ge=0, le=1)
    """Lowest learning rate as a share of the peak."""
    cycles: int = Field(1, ge=1)
    """Number of cosine cycles (cosine_restarts)."""
    step_size: int = Field(1000, ge=1)
    """Steps between multiplications by `gamma` (step; exponential: the same decay, but continuous)."""
    gamma: float = Field(0.1, gt=0, le=1)
    """Factor of step, exponential and plateau."""
    patience: int = Field(3, ge=1)
    """Number of evaluations without a better metric before plateau multiplies by `gamma`."""
    metric: str | None = None
    """Metric of plateau, `SET/METRIC`, such as `dev/loss`. Null: the one that ranks checkpoints, see
    `train.best_metric`."""
    mode: Direction | None = None
    """Whether a lower or higher `metric` is better; only for metrics that declare no direction. Null: as the metric
    declares."""
    decay_ratio: float = Field(0.2, gt=0, le=1)
    """Length of the final linear decay of warmup_stable_decay, as a share of all steps."""
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("warmup_steps", "warmup_ratio"),)

    @model_validator(mode="after")
    def _one_warmup(self) -> "Schedule":
        if self.warmup_steps is not None and self.warmup_ratio is not None:
            raise ValueError("give `warmup_steps` or `warmup_ratio`, not both")
        return self


class Interpolate(Section):
    """Search for the ratio of fine-tuned weights (`train.interpolate`)."""

    ratios: list[Annotated[float, Field(ge=0, le=1)]] = Field([0.2, 0.4, 0.6, 0.8, 1.0], min_length=1)
    """Ratios to evaluate; 0, the initial weights, is always included."""
    set: str | list[str] | None = None
    """Set of `data.eval` that selects the ratio, by the task's main metric; of several, the sum. Null: the first."""
    keep: dict[str, Annotated[float, Field(ge=0)]] = {}
    """Maximum relative increase of the main metric's error on sets of `data.eval`, compared with the initial weights,
    such as `{general: 0.02}`. Ratios above it are not selected."""

    @property
    def sets(self) -> list[str]:
        """List of the sets in `set`; empty for the first set."""
        return [self.set] if isinstance(self.set, str) else list(self.set or [])


class Train(Section):
    """Training loop. A step is always an optimizer step."""

    steps: int | None = Field(None, ge=1)
    """Total number of optimizer steps. Null: see `epochs`."""
    epochs: float | None = Field(None, gt=0)
    """Number of passes over the data. Null, without `steps`: 10."""
    accumulate: int = Field(1, ge=1)
    """Gradient accumulation: batches per process and step. The loss is the same as for one large batch."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Autocast type. `auto`: bf16 on a GPU that has it, else fp32; on an Apple GPU fp32."""
    device: Literal["auto", "cpu", "cuda", "mps", "xpu"] = "auto"
    """Device to train on: NVIDIA or AMD (cuda), Apple (mps), Intel (xpu). `auto`: cuda if present, else the CPU."""
    shard: bool = False
    """Shard parameters, gradients and optimizer state over the processes (FSDP2) instead of copying them (DDP)."""
    compile: bool = False
    """Compile the model with torch.compile; with `shard`, layer by layer."""
    clip: float | None = Field(1.0, gt=0)
    """Maximum gradient norm. Null: no clipping."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of an exponential moving average of the weights, used for evaluation and export. Null: off."""
    seed: int = Field(0, ge=0)
    """Random seed of training."""
    log_every: int = Field(10, ge=1)
    """Steps between rows of metrics.jsonl."""
    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations. Null: after each epoch."""
    save_every: int | None = Field(None, ge=1)
    """Steps between checkpoints. Null: at each evaluation."""
    keep: int | None = Field(2, ge=1)
    """Number of newest checkpoints to keep. Null: all."""
    keep_best: int = Field(1, ge=0)
    """Number of best checkpoints to keep in addition, by `best_metric`."""
    best_metric: str | None = None
    """Metric that ranks checkpoints, `SET/METRIC`: any that is logged for a set of `data.eval`, such as `dev/loss`. Of
    equal values the later one is better; an evaluation whose loss is not finite is never the best.
    Null: the metric of the callback `early_stop`, else the task's main metric on the first evaluation set."""
    best_mode: Direction | None = None
    """Whether a lower or higher `best_metric` is better; only for metrics that declare no direction. Null: as the
    metric declares."""
    use: Literal["best", "last", "average", "greedy"] = "best"
    """Weights of the export: of the best checkpoint, of the last step, the mean of the `keep_best` best
    checkpoints (a uniform soup), or the mean of those among them that make `best_metric` no worse (a greedy soup).
    Without an evaluation set: last."""
    interpolate: Annotated[float, Field(ge=0, le=1)] | Interpolate | None = None
    """Average the final weights with the initial ones, so that a pretrained model forgets less (WiSE-FT). A number is
    the share of the final weights; a section searches for it on evaluation sets. Null: no averaging."""
    max_skipped: int = Field(10, ge=1)
    """Maximum number of consecutive steps skipped for a non-finite loss or gradient before the run stops."""
    score_before: bool | None = None
    """Also score the evaluation and test sets before step 1, so that results and model card show the change. Null: if
    the whole model starts from pretrained weights (`model.from` or `model.init`)."""
    dry_run: bool = True
    """Run the largest batch once before step 1, so that running out of memory shows immediately."""
    find_unused: bool = False
    """Let DDP look for parameters without a gradient (slower; for models that use only some parameters per batch)."""
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("steps", "epochs"),)
    effects: ClassVar[Mapping[str, Effect]] = {
        **dict.fromkeys(("device", "shard", "compile", "find_unused", "dry_run"), "none"),
        **dict.fromkeys(("log_every", "save_every", "keep", "max_skipped"), "none"),
        **dict.fromkeys(("use", "interpolate"), "scores"),
    }

    @model_validator(mode="before")
    @classmethod
    def _refuse_deepspeed(cls, value: Any) -> Any:
        """Accept `deepspeed: null` in run folders of earlier versions."""
        if not isinstance(value, dict) or "deepspeed" not in value:
            return value
        if value["deepspeed"] is not None:
            raise ConfigConflict("deepspeed", "DeepSpeed is no longer supported: use `train.shard: true` (FSDP2)")
        return {key: setting for key, setting in value.items() if key != "deepspeed"}

    @model_validator(mode="after")
    def _one_length(self) -> "Train":
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give `steps` or `epochs`, not both")
        return self
