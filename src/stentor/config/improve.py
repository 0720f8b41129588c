"""Section `improve:`: rounds in which a recogniser learns from what it labelled itself and from synthetic speech."""

from typing import Any, Literal

from pydantic import Field, SerializeAsAny, model_validator

from stentor.config.prepare.steps import LabelKeys, SpeechKeys
from stentor.dataloading.section import Data
from stentor.section import ConfigConflict, Section
from stentor.sources.base import Source
from stentor.tasks.base import Task


class RoundLabels(LabelKeys):
    """Labelling of the rounds: the keys of a step `labels`, except those that a round sets."""

    models: list[str] = []
    """Recognisers besides the best model so far, which comes first. Others that err differently help most."""


class MixRatio(Section):
    """Share of each kind of data in an epoch, as a ratio of drawn items."""

    human: float = Field(1.0, gt=0)
    """Share of `data.train`, divided among its sources by their `weight`, or by their sizes."""
    pseudo: float = Field(1.0, ge=0)
    """Share of data that recognisers labelled. 0: none."""
    synthetic: float = Field(1.0, ge=0)
    """Share of synthetic speech. 0: none."""

    def of(self, kind: str) -> float:
        """The part of a kind."""
        return {"human": self.human, "pseudo": self.pseudo, "synthetic": self.synthetic}[kind]


class Improve(Section):
    """Rounds of labelling, synthesis, training and comparison, by `stentor improve`. Round 0 trains on `data.train`
    alone; each round after it adds what its labels and its synthetic speech are, and is kept where it is better."""

    rounds: int = Field(5, ge=0)
    """Most rounds after round 0. 0: the supervised model alone."""
    patience: int = Field(2, ge=1)
    """Rounds in a row without a gain that end it."""
    assurance: float = Field(0.975, ge=0.5, lt=1)
    """Required certainty that a round is better than the best one before, given how few the records of `eval` are: the
    share of their paired resamples with fewer errors. 0.975: the whole 95 % interval says so; 0.5: as likely worse."""
    start: Literal["base", "best"] = "base"
    """Starting point of each round: `base` is the model of the run file, `best` the weights of the best round so
    far."""
    then: dict[str, Any] | None = None
    """Overrides of the run file for the rounds after round 0, as an entry of `stages`, such as fewer steps; then these
    rounds have one stage. Null: the run file's own stages in all rounds."""
    unlabelled: list[SerializeAsAny[Source]] = []
    """Recordings that are labelled in each round, by the best model so far. Texts in them are not read."""
    labels: RoundLabels = RoundLabels()
    """Labelling, and the choice of labels. `labelled` null: the set `eval`, where there is one."""
    speech: SpeechKeys | None = None
    """Synthetic speech: the keys of a step `speech`; `recognizer: best` is the best model so far. Texts of the
    sets `eval` and `test` are not spoken, unless `may_share` has `texts`. Null: no synthetic speech."""
    mix: MixRatio | None = MixRatio()
    """Ratio of human, pseudo-labelled and synthetic items. Null: each record as often as the others."""
    sweep: list[MixRatio] = []
    """Other ratios, each tried beside `mix` in a shortened training of round 1; the best one on the set `eval` is that
    of all rounds."""
    sweep_share: float = Field(0.3, gt=0, le=1)
    """Length of those trainings, as a share of the whole one."""
    eval: str | None = None
    """The set of `data.eval` that says whether a round is better. Null: the first one; without any, the set `test`,
    whose figure is then too good by what was chosen on it."""
    test: str | None = None
    """The set of `data.test` that must have nothing in common with the data of the rounds. It chooses nothing, where
    there is a set to choose on. The others, which share no ids or recordings either, are reported beside it.
    Null: the first one."""
    may_share: list[Literal["speakers", "texts"]] = []
    """Traits that the set `test` may share with the data of the rounds, such as `texts` where only digits are said.
    Ids and recordings never."""

    def check(self, task: Task, data: Data, stages: list[dict[str, Any]] | None) -> None:
        """Raises ConfigConflict where the section does not go with the rest of the run file."""
        self._check_sets(data)
        if self.sweep and not data.eval:
            raise ConfigConflict("improve.sweep", "needs a set in `data.eval`: ratios are never chosen on a test set")
        if self.rounds and not self.unlabelled and self.speech is None:
            raise ConfigConflict("improve", "has nothing to add: give `unlabelled`, `speech` or both, or `rounds: 0`")
        added = {"pseudo": bool(self.unlabelled), "synthetic": self.speech is not None}
        if self.rounds and self.mix is not None and not any(self.mix.of(kind) for kind in added if added[kind]):
            kinds = " and ".join(f"`{kind}`" for kind in added if added[kind])
            raise ConfigConflict("improve.mix", f"takes nothing of what the rounds add: {kinds} must be above 0")
        from stentor.tasks.transcribe import Transcribe

        if task.type != "transcribe":
            raise ConfigConflict("improve", f"is for the task transcribe, not {task.type}")
        if isinstance(task, Transcribe) and task.translate:
            raise ConfigConflict("task.translate", "goes with no `improve`, which compares rounds by errors of words")
        overrides = {f"stages.{number}": stage for number, stage in enumerate(stages or [])}
        for key, section in (overrides | {"improve.then": self.then or {}}).items():
            if isinstance(changed := section.get("data"), dict) and "train" in changed:
                raise ConfigConflict(f"{key}.data.train", "goes with no `improve`, which adds to `data.train`")
        for name, sources in (("data.train", data.train), ("improve.unlabelled", self.unlabelled)):
            if streams := [i for i, source in enumerate(sources) if source.streaming]:
                raise ConfigConflict(f"{name}.{streams[0]}", "is a stream, and the rounds read what there is whole")

    def _check_sets(self, data: Data) -> None:
        if not data.test:
            raise ConfigConflict("improve", "needs a set in `data.test`, with people's texts, to measure the rounds")
        for key, chosen, sets in (("eval", self.eval, data.eval), ("test", self.test, data.test)):
            if chosen is not None and chosen not in sets:
                known = ", ".join(sets) or "there are none"
                raise ConfigConflict(f"improve.{key}", f"names no set of `data.{key}` ({known})")
            if drawn := [name for name, source in sets.items() if source.type == "held_out"]:
                raise ConfigConflict(f"data.{key}.{drawn[0]}", "is drawn from all training data, machine labels too")

    @model_validator(mode="after")
    def _kinds(self) -> "Improve":
        if self.sweep and self.mix is None:
            raise ConfigConflict("sweep", "needs `mix`, the first of the ratios that are compared")
        return self

    def decides(self, data: Data) -> tuple[str, bool]:
        """The set that says whether a round is better, and whether it is one of `data.eval`."""
        if data.eval:
            return self.eval or next(iter(data.eval)), True
        return self.reports(data), False

    def reports(self, data: Data) -> str:
        """The set that is reported for each round."""
        return self.test or next(iter(data.test))
