"""`stentor improve`: rounds of labelling, synthesis, training and comparison, in one run folder.

    runs/NAME/round-0/run/         the run of the supervised model, as `stentor train` writes it
    runs/NAME/round-1/labels-1/    what `prepare labels` made of the first unlabelled source; speech/ of texts
    runs/NAME/round-1/pseudo.jsonl, synthetic.jsonl      what of it entered
    runs/NAME/round-1/sweep-1/     a shortened training for each ratio that is tried
    runs/NAME/round-1/run/         the run of the round; run.yaml beside it trains it alone
    runs/NAME/round-1/round.json   written last: the round is done
    runs/NAME/export               the export of the best round (a link)

Each step is skipped where it is done, so the same command resumes after any stop.
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stentor.commands.improve.material import Entry, gather, prepared, refuse_leaks
from stentor.commands.improve.rounds import Round, best_round, finished_rounds, round_folder, run_rounds
from stentor.commands.improve.training import Material, Plain, best_ratio, later, round_config, shortened, train_run
from stentor.commands.prepare.labels import refuse_few
from stentor.commands.prepare.run import PLACE_ALONE, prepare_run
from stentor.commands.prepare.speech.texts import allowed, held_out, read_texts
from stentor.commands.train_options import ImproveOptions
from stentor.config.improve import Improve, MixRatio
from stentor.config.load import in_its_folder, load, run_texts
from stentor.config.missing_data import located
from stentor.config.prepare.base import Preparation
from stentor.config.prepare.steps import LabelsStep, SpeechStep
from stentor.config.schema import Config
from stentor.data.batch import Prediction
from stentor.data.cut import Cut
from stentor.data.jsonl import open_text
from stentor.data.storage import is_remote
from stentor.data.system import link_folder
from stentor.dataloading.mixing import DropCounter, read_pools
from stentor.engine.run_lock import run_lock
from stentor.engine.run_logger import RunLogger
from stentor.errors import ConfigError, DataError, without_secrets
from stentor.inference.load import find_export
from stentor.metrics.format import figure, interval, label, percent
from stentor.pipeline.executor import check_device
from stentor.pipeline.journal import read_jsonl, write_json
from stentor.report.rounds import sureness_text, write_rounds_report
from stentor.section import Section
from stentor.sources.base import Source
from stentor.tasks.speak.evaluator import SpeechEvaluator

BEST = "best"
"""Name of the best model so far, where a step takes a model."""
WITHOUT_EFFECT = {"rounds", "patience", "eval", "test", "may_share"}
"""Keys of the section that change nothing in a round that is done."""


def improve(options: ImproveOptions) -> None:
    """Do the rounds of a run file that are not done yet. Raises ConfigError, DataError for leaks and for data that
    cannot be used, and Stopped after a signal."""
    loaded = load(options.config, in_its_folder(options.config, options.overrides))
    config: Config = loaded.config
    if config.improve is None:
        raise ConfigError(f"{options.config} has no section `improve:` (docs/improve.md); `stentor train` trains it.")
    if is_remote(config.output):
        raise ConfigError("`output` is an address: the rounds need a folder of this machine.")
    folder = Path(config.output) / config.name
    if (folder / "results.json").exists() and not (folder / "round-0").exists():
        raise ConfigError(f"{folder} is a run of `stentor train`: choose another `name`.")
    with run_lock(folder), located(loaded.root):
        logger = RunLogger(folder, main=True)
        for name, text in run_texts(loaded).items():
            (folder / name).write_text(without_secrets(text), encoding="utf-8")
        try:
            _Rounds(config, config.improve, folder, logger, options).run()
        finally:
            logger.close()


class _Rounds:
    """The rounds of one run file."""

    def __init__(self, config: Config, section: Improve, folder: Path, logger: RunLogger, options: ImproveOptions):
        self.config, self.section, self.folder = config, section, folder
        self.logger, self.options = logger, options
        self.decides, self.apart = section.decides(config.data)
        self.reports = section.reports(config.data)
        self.tests = list(dict.fromkeys([self.reports, *config.data.test]))

    def run(self) -> None:
        prepare_run(self.config.prepare, self.options.plugin)
        self._read_data()
        finished = finished_rounds(self.folder)
        if finished:
            self._refuse_other_records(finished)
        most, more = self.section.rounds, self.options.more
        if more:
            most = max(0, len(finished) - 1) + more
        settings = self._settings()
        if any(r.settings != settings for r in finished):
            self.logger.say("The settings have changed since the rounds that are done, which stay as they are.")
        self.logger.event("started", rounds=most, done=len(finished))
        rounds, why = run_rounds(self.folder, self._round, most, None if more else self.section.patience, self._publish)
        self._publish(rounds, why)
        best = best_round(rounds)
        assert best is not None
        self.logger.event("finished", step=rounds[-1].number, eval=best.eval, reason=why)
        self.logger.say(
            f"{why} The best is round {best.number}, {self._scores_text(best, self.tests)}. See "
            f"{self.folder / 'report.html'}; `--more 1` adds a round."
        )

    def _read_data(self) -> None:
        later(round_config(self.config, [], None, None), self.section.then or {})  # what is wrong with it is said now
        _refuse_missing_models(self.section)
        _refuse_language_models(self.section, self.config.task)
        data, dropped = self.config.data, DropCounter()
        self.pools = read_pools(data.train, data, dropped, "data.train", self.config.task.drop_reason)
        human = [cut for pool in self.pools for cut in pool.cuts]
        # Whatever part of a source is labelled, and however it is cut before it enters.
        unlabelled = [source.model_copy(update={"max_hours": None}) for source in self.section.unlabelled]
        whole = data.model_copy(update={"min_seconds": 0.0, "max_seconds": math.inf})
        pools = read_pools(unlabelled, whole, dropped, "improve.unlabelled") if unlabelled else []
        self.recordings = [{cut.id: cut for cut in pool.cuts} for pool in pools]
        refuse_leaks(self.config, human, [cut for pool in pools for cut in pool.cuts])
        self._refuse_few_labelled()
        if self.section.speech is not None:
            excluded = held_out(self._speech_step(self.folder, 1, BEST).options()["exclude"])
            if self.section.speech.data is not None:
                allowed(list(read_texts(self.section.speech.data)), excluded)
        self.human = {"records": len(human), "hours": sum(c.duration for c in human) / 3600}
        self.entry = Entry(human, data.min_seconds, data.max_seconds)

    def _refuse_few_labelled(self) -> None:
        """Raise DataError where too few records say how sure the labels are."""
        place, source = "improve.labels.labelled", self.section.labels.labelled
        if self.apart and "labelled" not in self.section.labels.model_fields_set:
            place, source = f"data.eval.{self.decides}", self.config.data.eval[self.decides]
        if self.section.unlabelled and source is not None:
            fix = "name others in `improve.labels.labelled` (null: the models' own probabilities choose)"
            refuse_few(source.cuts(), f"`{place}`", fix)

    def _refuse_other_records(self, finished: Sequence[Round]) -> None:
        """Raise ConfigError where the best round so far was measured on none of the records that decide now."""
        best = best_round(finished)
        assert best is not None
        sets = self.config.data.eval if self.apart else self.config.data.test
        path = self._predictions_path(best.number)
        before = {record["id"] for record in read_jsonl(path)} if path.is_file() else set()
        if not any(cut.id in before for cut in sets[self.decides].cuts()):
            place = f"data.{'eval' if self.apart else 'test'}.{self.decides}"
            raise ConfigError(
                f"'{place}': round {best.number} was measured on none of these records, so no round can be compared "
                "with it. Let another set decide (`improve.eval`), set it back, or choose another `name`."
            )

    def _settings(self) -> str:
        plain = self.config.plain()
        plain["improve"] = {k: v for k, v in plain["improve"].items() if k not in WITHOUT_EFFECT}
        for section in (plain["train"], plain["improve"]["labels"], plain["improve"]["speech"] or {}):
            for key in PLACE_ALONE:
                section.pop(key, None)
        for key in ("name", "output", "prepare"):
            plain.pop(key)
        return hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=8).hexdigest()

    # One round ------------------------------------------------------------------------------------------------------

    def _round(self, number: int, best: Round | None) -> Round:
        folder = round_folder(self.folder, number)
        folder.mkdir(exist_ok=True)
        self.logger.event("round", round=number)
        self.logger.say(f"Round {number}" + (", the supervised model." if best is None else "."))
        began = time.time()
        entered: dict[str, Any] = {"human": self.human}
        left: dict[str, Any] = {}
        sweep: list[dict[str, Any]] = []
        material, mix = None, None
        if best is not None:
            model = str(round_folder(self.folder, best.number) / "run" / "export")
            material, sources, left = self._material(folder, number, model)
            mix, sweep = self._ratio(folder, number, material)
            kinds = material.kinds(mix)
            if not kinds:
                raise DataError(
                    f"Nothing enters round {number}: no label and no synthetic speech that `improve.mix` takes was "
                    f"kept; {folder} says why. Allow more (`improve.labels.max_error`, `improve.speech.max_wer`) or "
                    "give more, and delete that folder."
                )
            entered |= {kind: sources[kind] for kind in kinds}
        plain = self._config(number, material, mix, best)
        results = self._train(plain, folder / "run")
        change = {} if best is None else self._change(best, number)
        done = Round(
            number=number,
            kept=best is None or _sureness(change, self.config.task.main_metric()[0]) >= self.section.assurance,
            eval=results["eval"],
            change=change,
            entered=entered,
            left=left,
            mix=None if mix is None else mix.model_dump(),
            sweep=sweep,
            seconds=round(time.time() - began, 1),
            settings=self._settings(),
        )
        self._tell(done)
        return done

    def _material(self, folder: Path, number: int, model: str) -> tuple[Material, dict[str, Any], dict[str, Any]]:
        """Label and speak for a round, by the best `model` so far: the manifests, what entered, and what was left out,
        by kind."""
        steps: dict[str, list[Preparation]] = {
            "pseudo": [
                self._label_step(s, folder / f"labels-{i}", number, model)
                for i, s in enumerate(self.section.unlabelled, 1)
            ],
            "synthetic": [] if self.section.speech is None else [self._speech_step(folder, number, model)],
        }
        recordings: dict[str, Sequence[Mapping[str, Cut]]] = {"pseudo": self.recordings, "synthetic": [{}]}
        entered, left = {}, {}
        for kind, of_kind in steps.items():
            if of_kind:
                folders = dict(zip(prepared(of_kind, self.options.plugin), recordings[kind]))
                entered[kind], left[kind] = gather(folders, folder / f"{kind}.jsonl", self.entry)
        return Material({kind: folder / f"{kind}.jsonl" for kind in entered}), entered, left

    def _label_step(self, source: Source, to: Path, number: int, model: str) -> LabelsStep:
        keys = _written(self.section.labels)
        keys["models"] = [model, *keys.get("models", [])]
        keys["seed"] = keys.get("seed", 0) + number
        if self.apart:
            keys.setdefault("labelled", self.config.data.eval[self.decides])
        return LabelsStep(**keys, data=source, to=to, round=number)

    def _speech_step(self, folder: Path, number: int, model: str) -> SpeechStep:
        assert self.section.speech is not None
        keys = _written(self.section.speech)
        if keys.get("recognizer") == BEST:
            keys["recognizer"] = model
        keys["seed"] = keys.get("seed", 0) + number
        if "texts" not in self.section.may_share:
            measured = [*self.config.data.eval.values(), *self.config.data.test.values()]
            keys["exclude"] = [*keys.get("exclude", []), *measured]
        return SpeechStep(**keys, to=folder / "speech", round=number)

    def _config(self, number: int, material: Material | None, mix: MixRatio | None, best: Round | None) -> Plain:
        """The run file of a round. Its seed is another in each round, so that one without gain is not repeated."""
        plain = round_config(self.config, self.pools, material, mix)
        if number and self.section.then is not None:
            plain = later(plain, self.section.then)
        plain["train"]["seed"] += number
        if best is not None and self.section.start == "best":
            plain["model"]["init"] = str(round_folder(self.folder, best.number) / "run" / "export")
        return plain

    def _train(self, plain: Plain, folder: Path) -> Plain:
        return train_run(plain, folder, self.options.processes, self.options.plugin)

    def _ratio(self, folder: Path, number: int, material: Material) -> tuple[MixRatio | None, list[dict[str, Any]]]:
        """The ratio of the kinds in a round: that of round 1, or there the best one of those that are tried and take
        anything of the material."""
        section = self.section
        if number > 1 and section.sweep:
            first = finished_rounds(self.folder)[1].mix
            return (None if first is None else MixRatio(**first)), []
        if section.mix is None or not section.sweep:
            return section.mix, []
        ratios, tried = [r for r in (section.mix, *section.sweep) if material.kinds(r)], []
        if not ratios:
            return section.mix, []
        for place, ratio in enumerate(ratios, 1):
            plain = self._config(number, material, ratio, best_round(finished_rounds(self.folder)))
            plain = shortened(plain, section.sweep_share)
            results = self._train(plain, folder / f"sweep-{place}")
            tried.append({"mix": ratio.model_dump(), "eval": results["eval"][self.decides]})
        return ratios[best_ratio(tried, *self.config.task.main_metric())], tried

    def _change(self, best: Round, number: int) -> dict[str, dict[str, Any]]:
        """Relative change on the set that decides, from the best round before, with a paired interval."""
        before, after = (self._predictions(n) for n in (best.number, number))
        ids = [id for id in after if id in before]
        changes = self.config.task.change([before[id] for id in ids], [after[id] for id in ids])
        return {metric: score.as_dict() for metric, score in changes.items()}

    def _predictions(self, number: int) -> dict[str, Prediction]:
        return {record["id"]: Prediction(**record) for record in read_jsonl(self._predictions_path(number))}

    def _predictions_path(self, number: int) -> Path:
        return round_folder(self.folder, number) / "run" / "predictions" / f"{self.decides}.jsonl"

    # Reporting --------------------------------------------------------------------------------------------------------

    def _scores_text(self, done: Round, names: Sequence[str]) -> str:
        """The main scores on those sets that the round was measured on."""
        texts = []
        for name in names:
            if name in done.eval:
                metric, score = next(iter(done.eval[name].items()))
                value = f"{label(metric)} {figure(metric, score['value'])} (95 %: {interval(metric, score)})"
                texts.append(f"{name}: {value}")
        return "; ".join(texts)

    def _tell(self, done: Round) -> None:
        metric = self.config.task.main_metric()[0]
        line = f"Round {done.number}, {self._scores_text(done, [self.decides])}"
        if change := done.change.get(metric):
            line += f", {percent(change['value'])} against the best before (95 %: {sureness_text(change)})"
        if others := [name for name in self.tests if name != self.decides]:
            line += f"; {self._scores_text(done, others)}"
        self.logger.say(f"{line}. {'Kept' if done.kept else 'Not kept'}.")
        self.logger.event("evaluated", step=done.number, eval=done.eval, kept=done.kept)

    def _publish(self, rounds: Sequence[Round], why: str | None = None) -> None:
        """The results, the report, and the export of the best round, of what is done so far."""
        best = best_round(rounds)
        assert best is not None
        run = Path(f"round-{best.number}") / "run"
        link_folder(self.folder / "export", run / "export")
        results = json.loads((self.folder / run / "results.json").read_bytes())
        write_json(
            self.folder / "results.json",
            results
            | {
                "rounds": [vars(r) for r in rounds],
                "best": best.number,
                "ended": why,
                "decided_on": self.decides,
                "reported_on": self.reports,
                "tests": self.tests,
                "assurance": self.section.assurance,
                "seconds": round(sum(r.seconds for r in rounds), 1),
            },
        )
        write_rounds_report(self.folder)


def _refuse_missing_models(section: Improve) -> None:
    """Raise ConfigError where a model that labels, speaks or listens or its device is not there, before round 0."""
    for step in (section.labels, section.speech):
        if step is not None:
            check_device(step.device, step.ray)
    models: dict[str, str | None] = {
        f"improve.labels.models.{number}": model for number, model in enumerate(section.labels.models)
    }
    if section.speech is not None:
        models |= {"improve.speech.model": section.speech.model}
        models |= {"improve.speech.recognizer": section.speech.recognizer}
    for place, model in models.items():
        if model is not None and model not in (BEST, *SpeechEvaluator.choices()):
            try:
                find_export(model)
            except ConfigError as error:
                raise ConfigError(f"'{place}': {error}") from None


def _refuse_language_models(section: Improve, task: Any) -> None:
    """Raise DataError where a language model's texts cannot be read, ConfigError where a weight has none to weigh,
    before round 0 is trained."""
    for number, decoding in enumerate(section.labels.decodings if section.unlabelled else ()):
        place = f"improve.labels.decodings.{number}"
        if decoding.language_model is not None:
            with open_text(decoding.language_model) as file:
                if not any(line.strip() for line in file):
                    raise DataError(f"'{place}.language_model': {decoding.language_model} holds no text.")
        elif decoding.language_model_weight is not None and task.language_model is None:
            raise ConfigError(f"'{place}.language_model_weight' needs `language_model`, the file of its texts.")


def _written(section: Section) -> dict[str, Any]:
    return {name: value for name, value in section if name in section.model_fields_set}


def _sureness(change: dict[str, dict[str, Any]], metric: str) -> float:
    """The share of the paired resamples with fewer errors than before; 0 where there was no error to make fewer."""
    return float(change[metric]["details"]["better"]) if metric in change else 0.0
