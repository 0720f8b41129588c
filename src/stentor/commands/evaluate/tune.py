"""`stentor evaluate --tune`: the settings of a diarization model that suit a development set, stored in its export."""

from pathlib import Path
from typing import Any

from stentor.commands.evaluate.records import Recordings, left_out, place_model
from stentor.commands.evaluate_options import EvaluateOptions
from stentor.config.load import parse_source
from stentor.data.batch import Prediction
from stentor.data.cut import Cut
from stentor.errors import ConfigError
from stentor.inference.load import TRAINING_CONFIG, find_export, load
from stentor.metrics.format import figure
from stentor.metrics.score import Score
from stentor.pipeline.journal import write_json
from stentor.tasks.diarize.inference import WindowOutputs, run_windows
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.diarize.tune import TuningRecording
from stentor.tasks.diarize.tune import tune as search
from stentor.tasks.diarize.windows import Windows


def tune(options: EvaluateOptions) -> str:
    """Search the settings with the least DER on one data source and write them to the model's training_config.json.

    The model runs once over each recording. Returns what was found, as text, and writes it to `--json` when given.
    Raises ConfigError for a model on the Hub, one of an unfinished run, or of another task.
    """
    model, source = str(options.model), parse_source(options.data)
    folder = _tunable_export(model)
    loaded = load(model)
    task: Diarize = loaded.for_diarization()
    recordings = Recordings(options, loaded, task, source)
    device, cuts = place_model(loaded), recordings.cuts
    with device.autocast():
        outputs = list(run_windows(loaded.bundle, task, ([audio] for audio in recordings.audio())))
    recordings.check("tuned on")
    references = [task.reference(cut) for cut in cuts]
    permutes, names = task.labels.permutes, task.labels.names
    tuned = [
        TuningRecording.of(h, r["segments"], r["uem"], None if permutes else names)
        for h, r in zip(outputs, references, strict=True)
    ]
    rounds: list[str] = []
    windows = search(tuned, task.windows, permutes, rounds.append)
    before = _scores(task, task.windows, outputs, references, cuts)
    after = _scores(task, windows, outputs, references, cuts)
    metric = task.main_metric()[0]
    if after[metric].value >= before[metric].value:  # the grid of the search is not the metric itself
        windows, after = task.windows, before
    old, new = (w.model_dump(mode="json", by_alias=True) for w in (task.windows, windows))
    changed = {key: (old[key], new[key]) for key in new if new[key] != old[key]}
    if changed:
        loaded.training["task"]["windows"] = new
        write_json(folder / TRAINING_CONFIG, loaded.training)
    recordings.write(
        {
            "changed": {key: {"before": old, "after": new} for key, (old, new) in changed.items()},
            "windows": new,
            "before": {name: score.as_dict() for name, score in before.items()},
            "after": {name: score.as_dict() for name, score in after.items()},
        }
    )
    return _text(len(cuts), metric, before, after, changed, rounds, folder) + left_out(recordings.dropped)


def _tunable_export(model: str) -> Path:
    """The export folder whose training_config.json takes the settings. Raises ConfigError when there is none."""
    if not Path(model).exists():
        raise ConfigError(
            f"{model} is no folder here, and --tune stores what it finds in the model's folder: get the model first, "
            f"with `stentor export {model} --to DIR`, and tune that."
        )
    folder = find_export(model)
    if (folder.parent / "meta.json").is_file():
        raise ConfigError(
            f"The run {model} is not finished, and the files of its checkpoints must stay as they are: take a copy of "
            f"the model with `stentor export {model} --to DIR`, and tune that."
        )
    if not (folder / TRAINING_CONFIG).is_file():
        raise ConfigError(f"{folder} has no {TRAINING_CONFIG}, where --tune stores what it finds: export it again.")
    return folder


def _scores(
    task: Diarize, windows: Windows, outputs: list[WindowOutputs], references: list[dict[str, Any]], cuts: list[Cut]
) -> dict[str, Score]:
    predictions = []
    for cut, reference, output in zip(cuts, references, outputs, strict=True):
        predictions.append(Prediction(cut.id, reference, task.answer(output, windows), cut.duration))
    return task.score(predictions)


def _text(
    count: int,
    metric: str,
    before: dict[str, Score],
    after: dict[str, Score],
    changed: dict[str, tuple[Any, Any]],
    rounds: list[str],
    folder: Path,
) -> str:
    if not changed:
        return f"{count} records  {metric} {figure(metric, before[metric].value)}: no other settings are better."
    settings = ", ".join(f"{key} {_number_text(old)} -> {_number_text(new)}" for key, (old, new) in changed.items())
    return (
        f"{count} records  {metric} {figure(metric, before[metric].value)} -> {figure(metric, after[metric].value)}\n"
        f"  {settings}\n  {'; '.join(rounds)}\nStored in {folder}: from now on the model is used so."
    )


def _number_text(value: Any) -> str:
    return "null" if value is None else f"{value:g}"
