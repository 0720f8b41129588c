"""Section `improve:`: rounds in which a recogniser learns from its own pseudo-labels and from synthetic speech."""

from typing import Any, Literal

from pydantic import Field, SerializeAsAny, model_validator

from stentor.config.prepare.steps import LabelKeys, SpeechKeys
from stentor.dataloading.section import Data
from stentor.section import ConfigConflict, Section
from stentor.sources.base import Source
from stentor.tasks.base import Task


class RoundLabels(LabelKeys):
    """Settings of pseudo-labelling in the rounds: the keys of a step `labels`, except those set by a round."""

    models: list[str] = []
    """Recognisers in addition to the best model so far, which comes first. Models with different errors help most."""


class MixRatio(Section):
    """Shares of the kinds of data in an epoch, as a ratio of the number of items."""

    human: float = Field(1.0, gt=0)
    """Part of `data.train`, divided among its sources by their `weight`, or by their sizes."""
    pseudo: float = Field(1.0, ge=0)
    """Part of pseudo-labelled data. 0: none."""
    synthetic: float = Field(1.0, ge=0)
    """Part of synthetic speech. 0: none."""

    def of(self, kind: str) -> float:
        """Return the part of a kind."""
        return {"human": self.human, "pseudo": self.pseudo, "synthetic": self.synthetic}[kind]


class Improve(Section):
    """Rounds of labelling, synthesis, training and comparison with `stentor improve`. Round 0 trains only on
    `data.train`; each later round adds its labels and synthetic speech, and is kept if it is better."""

    rounds: int = Field(5, ge=0)
    """Maximum number of rounds after round 0. 0: only the supervised model."""
    patience: int = Field(2, ge=1)
    """Number of consecutive rounds without a gain after which to stop."""
    assurance: float = Field(0.975, ge=0.5, lt=1)
    """Required probability that a round is better than the best one before, given the number of records in `eval`: the
    share of paired resamples with fewer errors. 0.975: the whole 95 % interval is better; 0.5: equally likely worse."""
    start: Literal["base", "best"] = "base"
    """Initial weights of each round: `base` as in the run file, `best` those of the best round so far."""
    then: dict[str, Any] | None = None
    """Overrides of the run file for the rounds after round 0, as an entry of `stages`, such as fewer steps. These
    rounds then have one stage. Null: the run file's stages in all rounds."""
    unlabelled: list[SerializeAsAny[Source]] = []
    """Recordings that the best model so far labels in each round. Their texts are not read."""
    labels: RoundLabels = RoundLabels()
    """Settings of pseudo-labelling. `labelled` null: the set `eval`, if there is one."""
    speech: SpeechKeys | None = None
    """Settings of synthetic speech: the keys of a step `speech`; `recognizer: best` is the best model so far. Texts of
    the sets `eval` and `test` are not spoken unless `may_share` has `texts`. Null: no synthetic speech."""
    mix: MixRatio | None = MixRatio()
    """Ratio of human, pseudo-labelled and synthetic items. Null: all records are used equally often."""
    sweep: list[MixRatio] = []
    """Other ratios to compare with `mix`, in a shortened training of round 1. All rounds use the best one on `eval`."""
    sweep_share: float = Field(0.3, gt=0, le=1)
    """Length of the shortened trainings, as a share of the whole one."""
    eval: str | None = None
    """Set of `data.eval` that decides whether a round is better. Null: the first one; if there is none, the set `test`,
    whose result is then optimistic."""
    test: str | None = None
    """Set of `data.test` that must have nothing in common with the data of the rounds. Nothing is selected on it if
    there is a set `eval`. Other test sets, which share no ids or recordings, are also reported. Null: the first one."""
    may_share: list[Literal["speakers", "texts"]] = []
    """Properties that the set `test` may have in common with the data of the rounds, such as `texts` if only digits are
    said. Ids and recordings are never shared."""

    def check(self, task: Task, data: Data, stages: list[dict[str, Any]] | None) -> None:
        """Raise ConfigConflict if the section does not fit the rest of the run file."""
        self._check_sets(data)
        if self.sweep and not data.eval:
            raise ConfigConflict("improve.sweep", "needs a set in `data.eval`: ratios are never chosen on a test set")
        if self.rounds and not self.unlabelled and self.speech is None:
            raise ConfigConflict("improve", "has nothing to add: give `unlabelled`, `speech` or both, or `rounds: 0`")
        added = {"pseudo": bool(self.unlabelled), "synthetic": self.speech is not None}
        if self.rounds and self.mix is not None and not any(self.mix.of(kind) for kind in added if added[kind]):
            kinds = " and ".join(f"`{kind}`" for kind in added if added[kind])
            raise ConfigConflict("improve.mix", f"uses no data of the rounds: {kinds} must be above 0")
        from stentor.tasks.transcribe import Transcribe

        if task.type != "transcribe":
            raise ConfigConflict("improve", f"is for the task transcribe, not {task.type}")
        if isinstance(task, Transcribe) and task.translate:
            raise ConfigConflict("task.translate", "cannot be used with `improve`, which compares word error rates")
        overrides = {f"stages.{number}": stage for number, stage in enumerate(stages or [])}
        for key, section in (overrides | {"improve.then": self.then or {}}).items():
            if isinstance(changed := section.get("data"), dict) and "train" in changed:
                raise ConfigConflict(f"{key}.data.train", "cannot be used with `improve`, which adds to `data.train`")
        for name, sources in (("data.train", data.train), ("improve.unlabelled", self.unlabelled)):
            if streams := [i for i, source in enumerate(sources) if source.streaming]:
                raise ConfigConflict(f"{name}.{streams[0]}", "is a stream, but the rounds need all records at once")

    def _check_sets(self, data: Data) -> None:
        if not data.test:
            raise ConfigConflict(
                "improve", "needs a set in `data.test`, with human transcripts, to evaluate the rounds"
            )
        for key, chosen, sets in (("eval", self.eval, data.eval), ("test", self.test, data.test)):
            if chosen is not None and chosen not in sets:
                known = ", ".join(sets) or "there are none"
                raise ConfigConflict(f"improve.{key}", f"is not a set of `data.{key}` ({known})")
            if drawn := [name for name, source in sets.items() if source.type == "held_out"]:
                raise ConfigConflict(f"data.{key}.{drawn[0]}", "is drawn from all training data, with pseudo-labels")

    @model_validator(mode="after")
    def _kinds(self) -> "Improve":
        if self.sweep and self.mix is None:
            raise ConfigConflict("sweep", "needs `mix`, the first of the ratios that are compared")
        return self

    def decides(self, data: Data) -> tuple[str, bool]:
        """Return the set that decides whether a round is better, and whether it is one of `data.eval`."""
        if data.eval:
            return self.eval or next(iter(data.eval)), True
        return self.reports(data), False

    def reports(self, data: Data) -> str:
        """Return the test set that is reported for each round."""
        return self.test or next(iter(data.test))
