"""The sections `optim:`, `schedule:` and `train:`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.section import ConfigConflict, Section


class ParameterGroup(Section):
    """A parameter group with settings of its own."""

    params: list[str] = Field(min_length=1)
    """Globs on full parameter names, such as `encoder.*`; the first group that matches a parameter takes it."""
    lr: float | None = Field(None, ge=0, le=100)
    """Peak learning rate of the group. Null: as `optim.lr`."""
    weight_decay: float | None = Field(None, ge=0)
    """Weight decay of the group. Null: as `optim.weight_decay`."""


class Optim(Section):
    """Optimizer and its parameter groups. Biases, norms and other vectors get no weight decay."""

    type: Literal["adam", "adamw", "sgd", "adagrad", "rmsprop", "adamax", "muon", "adamw8bit"] = "adamw"
    """`muon` updates the hidden matrices with Muon and everything else with AdamW; `adamw8bit` needs bitsandbytes."""
    lr: float = Field(1e-3, ge=0, le=100)
    """Peak learning rate."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay (an L2 penalty for sgd, adam, adagrad, rmsprop and adamax)."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment (adam, adamw, adamax, adamw8bit, and muon's AdamW part)."""
    eps: float = Field(1e-8, gt=0)
    """Term added to the denominator."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of sgd, rmsprop and muon."""
    nesterov: bool = False
    """Nesterov momentum for sgd."""
    amsgrad: bool = False
    """The AMSGrad variant of adam and adamw."""
    muon_lr: float = Field(2e-2, gt=0, le=100)
    """Peak learning rate of the matrices that Muon updates."""
    groups: list[ParameterGroup] = []
    """Parameter groups with settings of their own."""


class Schedule(Section):
    """Learning rate as a factor of the peak, a function of the optimizer step alone (plateau: of the metric too)."""

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
    """Share of all steps that is warm-up. Null and no `warmup_steps`: 0.05."""
    min_ratio: float = Field(0.0, ge=0, le=1)
    """Lowest learning rate as a share of the peak."""
    cycles: int = Field(1, ge=1)
    """Number of cosine cycles (cosine_restarts)."""
    step_size: int = Field(1000, ge=1)
    """Steps between two multiplications by `gamma` (step, exponential: once per so many steps, smoothly)."""
    gamma: float = Field(0.1, gt=0, le=1)
    """Factor of step, exponential and plateau."""
    patience: int = Field(3, ge=1)
    """Evaluations without a better main metric before plateau multiplies by `gamma`."""
    decay_ratio: float = Field(0.2, gt=0, le=1)
    """Share of all steps at the end in which warmup_stable_decay falls linearly."""
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("warmup_steps", "warmup_ratio"),)

    @model_validator(mode="after")
    def _one_warmup(self) -> "Schedule":
        if self.warmup_steps is not None and self.warmup_ratio is not None:
            raise ValueError("give `warmup_steps` or `warmup_ratio`, not both")
        return self


class Interpolate(Section):
    """A search for the ratio of tuned weights (`train.interpolate`)."""

    ratios: list[Annotated[float, Field(ge=0, le=1)]] = Field([0.2, 0.4, 0.6, 0.8, 1.0], min_length=1)
    """Ratios that are scored; 0, the weights that training began with, always is."""
    set: str | list[str] | None = None
    """Set of `data.eval` that chooses the ratio, by the task's main metric; of several, their sum. Null: the first."""
    keep: dict[str, Annotated[float, Field(ge=0)]] = {}
    """Sets of `data.eval` that may lose little: the largest loss of each, relative to the weights that training began
    with: `{general: 0.02}`. Ratios that lose more are not chosen."""

    @property
    def sets(self) -> list[str]:
        """The sets of `set`; none for the first one."""
        return [self.set] if isinstance(self.set, str) else list(self.set or [])


class Train(Section):
    """The loop. `step` always means optimizer step."""

    steps: int | None = Field(None, ge=1)
    """Optimizer steps in all. Null: see `epochs`."""
    epochs: float | None = Field(None, gt=0)
    """Passes over the data. Null and no `steps`: 10."""
    accumulate: int = Field(1, ge=1)
    """Batches per process and optimizer step; the loss is the same as for one big batch."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Autocast type. `auto`: bf16 on a GPU that has it, else fp32; on an Apple GPU fp32."""
    device: Literal["auto", "cpu", "cuda", "mps", "xpu"] = "auto"
    """Device to train on: NVIDIA or AMD (cuda), Apple (mps), Intel (xpu). `auto`: cuda if present, else the CPU."""
    shard: bool = False
    """Shard parameters, gradients and optimizer state over the processes (FSDP2) instead of copying them (DDP)."""
    compile: bool = False
    """Compile the model with torch.compile; with `shard` layer by layer."""
    clip: float | None = Field(1.0, gt=0)
    """Largest gradient norm. Null: no clipping."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of an exponential moving average of the weights, used for evaluation and export. Null: off."""
    seed: int = Field(0, ge=0)
    """Seed of everything random."""
    log_every: int = Field(10, ge=1)
    """Steps between rows of metrics.jsonl."""
    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations. Null: after each epoch."""
    save_every: int | None = Field(None, ge=1)
    """Steps between checkpoints. Null: at each evaluation."""
    keep: int | None = Field(2, ge=1)
    """Newest checkpoints to keep. Null: all."""
    keep_best: int = Field(1, ge=0)
    """Best checkpoints to keep besides, by the task's main metric on the first evaluation set."""
    use: Literal["best", "last", "average", "greedy"] = "best"
    """Weights of the export: of the best checkpoint, of the last step, the mean of the `keep_best` best
    checkpoints (a uniform soup), or the mean of those among them that make it no worse on the first evaluation set (a
    greedy soup). Without an evaluation set: last."""
    interpolate: Annotated[float, Field(ge=0, le=1)] | Interpolate | None = None
    """Average the trained weights at the end with those that training began with: a number is the share of the trained
    ones, a section searches it on evaluation sets. What a pretrained model could before is forgotten less (WiSE-FT).
    Null: the trained weights."""
    max_skipped: int = Field(10, ge=1)
    """Optimizer steps in a row that may be skipped for a non-finite loss or gradient before the run stops."""
    score_before: bool | None = None
    """Score the evaluation and test sets before step 1 as well, so that results and model card show what training
    changed. Null: when the whole model starts from pretrained weights (`model.from` or `model.init`)."""
    dry_run: bool = True
    """Run the largest batch once before step 1, so that a lack of memory shows at once."""
    find_unused: bool = False
    """Let DDP look for parameters without a gradient (slower; for models that use a part of themselves per batch)."""
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("steps", "epochs"),)

    @model_validator(mode="before")
    @classmethod
    def _refuse_deepspeed(cls, value: Any) -> Any:
        """Run folders of earlier versions hold `deepspeed: null`, which is read as nothing."""
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
