"""The model card of an export: README.md with the metadata that the Hugging Face Hub reads.

Figures are given with their interval and counts; nothing is said that config and results do not show. Results are
written twice, as the Hub's older `model-index` and as `.eval_results/*.yaml`, the form that it reads today for
benchmarks that are data sets on the Hub (https://huggingface.co/docs/hub/eval-results).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stentor.config.yaml_writer import dump
from stentor.errors import without_secrets
from stentor.metrics.format import MINOR, count, der_parts, duration, figure, interval, is_rate, label, loss_parts
from stentor.publish.usage import how_to_use, library
from stentor.report.changes import changes, groups
from stentor.report.run_folder import in_order
from stentor.text.letters import ChangedLetters

PIPELINES = {
    "transcribe": ("automatic-speech-recognition", "Speech recognition"),
    "words": ("automatic-speech-recognition", "Word times"),
    "who_said_what": ("automatic-speech-recognition", "Speech recognition with speakers"),
    "diarize": ("voice-activity-detection", "Speaker diarization"),
    "speak": ("text-to-speech", "Speech synthesis"),
    "language": ("text-generation", "Language model"),
}
"""Per task type the Hub's pipeline tag, and its name for people."""
TaskOf = Callable[[Mapping[str, Any]], str | None]
"""The benchmark's own name of an evaluation source on the Hub, from the `eval.yaml` of the data set."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def write_card(
    folder: Path, config: Mapping[str, Any], results: Mapping[str, Any], task_of: TaskOf = lambda source: None
) -> Path:
    """Write `README.md` (and `.eval_results/` for evaluation sets on the Hub) into an export folder.

    `config` is the resolved config as plain data, `results` that of results.json. `task_of`: asks the Hub, where that
    is wanted. Returns the path of README.md.
    """
    from huggingface_hub import ModelCardData

    folder = Path(folder)
    results = {**results, "eval": in_order(results["eval"], config)}
    task = config["task"]["type"]
    pipeline, title = PIPELINES.get(task, (None, task))
    data = ModelCardData(
        library_name=library(folder),
        pipeline_tag=pipeline,
        language=languages(config, results) or None,
        tags=["stentor", "speech", task, config["model"]["type"]],
        base_model=base_models(config) or None,
        datasets=sorted({s["name"] for s in training_sources(config) if on_hub(s)}) or None,
        metrics=sorted({m for scores in results["eval"].values() for m in scores if m in ("wer", "cer", "der", "jer")})
        or None,
        model_name=config["name"],
        eval_results=model_index(config, results, pipeline or task) or None,
    )
    path = folder / "README.md"
    card = f"---\n{data.to_yaml()}\n---\n\n{body(config, results, title, folder)}"
    path.write_text(without_secrets(card), encoding="utf-8")
    _write_eval_results(folder / ".eval_results", config, results, task_of)
    return path


def _write_eval_results(folder: Path, config: Mapping[str, Any], results: Mapping[str, Any], task_of: TaskOf) -> None:
    """A file for each evaluation set that is a data set on the Hub. A benchmark's task has one value: the main metric,
    which is the first. Where the benchmark does not name its tasks, the name is that of the configuration."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    for name, source in evaluation_sources(config).items():
        scores = {m: s for m, s in results["eval"].get(name, {}).items() if s["value"] is not None}
        if not scores or not on_hub(source):
            continue
        metric, score = next(iter(scores.items()))
        entry = EvalResultEntry(
            dataset_id=source["name"],
            task_id=task_of(source) or source.get("config") or "default",
            value=_value(metric, score),
            dataset_revision=source.get("revision"),
            notes=_notes(metric, score),
        )
        folder.mkdir(exist_ok=True)
        file = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}.yaml"
        file.write_text(dump(eval_result_entries_to_yaml([entry])), encoding="utf-8")


def body(config: Mapping[str, Any], results: Mapping[str, Any], title: str, folder: Path) -> str:
    """The card below its metadata, in Markdown; `folder` is the export."""
    parts = [f"# {plain(config['name'])}", _summary(config, results, title)]
    if results["eval"]:
        parts += ["## Results", _results_table(results["eval"])]
        if note := _results_note(config, results):
            parts.append(note)
        parts += _changes(results) + _groups(results)
    parts += how_to_use(config, folder)
    parts += ["## Training data", _data(config, results), "## Training", _training(config, results)]
    parts += _parts(results)
    parts += ["## Limits", "\n".join(f"* {line}" for line in _limits(config, results))]
    return "\n\n".join(parts) + "\n"


def model_index(config: Mapping[str, Any], results: Mapping[str, Any], task: str) -> list[Any]:
    """All scores as `huggingface_hub.EvalResult`; rates in percent, as the Hub's leader boards give them."""
    from huggingface_hub import EvalResult

    sources = evaluation_sources(config)
    kinds = {n: [s.get(k) for k in ("name" if on_hub(s) else "type", "config", "split")] for n, s in sources.items()}
    alike = {n for n in results["eval"] if not on_hub(sources.get(n, {})) or list(kinds.values()).count(kinds[n]) > 1}
    entries = []
    for name, scores in results["eval"].items():
        source = sources.get(name, {})
        for metric, score in scores.items():
            if score["value"] is not None:
                entries.append(
                    EvalResult(
                        task_type=task,
                        # The Hub's reader puts entries of one type, configuration and split under one data set.
                        dataset_type=source["name"] if on_hub(source) else source.get("type", "local"),
                        dataset_name=name,
                        dataset_config=name if name in alike else source.get("config"),
                        dataset_split=source.get("split"),
                        metric_type=metric,
                        metric_name=f"{label(metric)} (%)" if is_rate(metric) else metric,
                        metric_value=_value(metric, score),
                    )
                )
    return entries


def languages(config: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    """Language codes that the sources declare or that the evaluation found, in alphabetical order."""
    entries = {s.get("language") for s in training_sources(config)}
    for scores in results["eval"].values():
        for score in scores.values():
            entries |= set((score.get("details") or {}).get("by_language", {}))
    return sorted(c for c in entries if isinstance(c, str) and re.fullmatch(r"[a-z]{2,3}", c))


def base_models(config: Mapping[str, Any]) -> list[str]:
    """Hub ids of pretrained parts, in the order of the config."""
    ids: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if key == "from" and isinstance(inner, str) and HUB_ID.fullmatch(inner) and not Path(inner).exists():
                    ids.append(inner)
                look(inner)

    look(config["model"])
    return list(dict.fromkeys(ids))


def evaluation_sources(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The sources of `data.eval` and `data.test` by set name."""
    return {**(config["data"].get("eval") or {}), **(config["data"].get("test") or {})}


def training_sources(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Training sources, replayed ones last; of one that is made from another (`join`), that other."""
    entries = []
    for source in [*config["data"]["train"], *(config["data"].get("replay") or {}).get("sources", [])]:
        while isinstance(source.get("source"), Mapping):
            source = source["source"]
        entries.append(source)
    return entries


def on_hub(source: Mapping[str, Any]) -> bool:
    return source.get("type") == "hub" and isinstance(source.get("name"), str)


def _value(metric: str, score: Mapping[str, Any]) -> float:
    return round(100 * score["value"], 2) if is_rate(metric) else round(score["value"], 4)


def _notes(metric: str, score: Mapping[str, Any]) -> str:
    parts = [f"{label(metric)} in %" if is_rate(metric) else metric]
    if bounds := interval(metric, score):
        parts.append(f"95 % interval {bounds}")
    if normalizer := (score.get("details") or {}).get("normalizer"):
        parts.append(f"normaliser {normalizer}")
    return ", ".join(parts)


def _summary(config: Mapping[str, Any], results: Mapping[str, Any], title: str) -> str:
    sentence = f"{title} with a model of the family `{config['model']['type']}`"
    if total := (results.get("parameters") or {}).get("total"):
        sentence += f" ({count(total)} parameters"
        trained = results["parameters"].get("trained", total)
        sentence += f", of which {count(trained)} were trained)" if trained < total else ")"
    bases = base_models(config)
    sentence += f", built on {' and '.join(f'`{b}`' for b in bases)}" if bases else ""
    return f"{sentence}, trained with Stentor."


def _results_table(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    of_parts = any({"der", "loss"} & metrics.keys() for metrics in scores.values())
    basis = "made of" if of_parts else "errors / total"
    rows = []
    for name, metrics in scores.items():
        for metric, score in metrics.items():
            if metric in MINOR:
                continue
            parts = der_parts(score) or loss_parts(score)
            made_of = f"{score['errors']:,} / {score['total']:,}" if score.get("total") else parts
            rows.append((plain(name), label(metric), figure(metric, score["value"]), interval(metric, score), made_of))
    return table(("set", "metric", "value", "95 % interval", basis), rows)


def _results_note(config: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    notes, scores = [], results["eval"]
    details = [s.get("details") or {} for metrics in scores.values() for s in metrics.values()]
    if normalizers := sorted({d["normalizer"] for d in details if "normalizer" in d}):
        notes.append(f"Error rates are corpus-level, after the text normaliser {', '.join(normalizers)}.")
    if any(s.get("low") is not None for metrics in scores.values() for s in metrics.values()):
        notes.append("Intervals are bootstraps over the items of a set; of rates without an error the rule of three.")
    chosen = [n for n in config["data"].get("eval") or {} if n in scores]
    if chosen and (config.get("train") or {}).get("use") in ("best", "average"):
        by = (results.get("best_metric") or "").rpartition("/")[0] or chosen[0]
        notes.append(f"The weights were picked by their score on `{by}`, so that figure flatters them.")
    return " ".join(notes)


def _changes(results: Mapping[str, Any]) -> list[str]:
    """The table of scores before and after training, and a warning of what got worse."""
    rows = changes(results)
    if not rows:
        return []
    lines = []
    for row in rows:
        before, after = (
            f"{value} ({bounds})" if bounds else value
            for value, bounds in ((row.before, row.before_interval), (row.after, row.after_interval))
        )
        lines.append((plain(row.set), row.metric, before, after, row.change, row.change_interval))
    notes = [
        "The same items were scored by the same code before the first step. Changes are relative; their intervals "
        "resample the items with both answers together."
    ]
    if worse := [f"{row.metric} on `{row.set}`" for row in rows if row.worse]:
        notes.append(f"**Training made it worse beyond chance: {', '.join(worse)}.**")
    head = ("set", "metric", "before training", "after", "change", "95 % interval of the change")
    return ["### Before and after training", table(head, lines), " ".join(notes)]


def _groups(results: Mapping[str, Any]) -> list[str]:
    """A table for each field that the records of a set differ in."""
    parts = []
    for by in groups(results):
        head = [plain(by.field), "items", by.metric, "95 % interval", "errors / total"]
        head += ["before training"] if by.compared else []
        rows = []
        for row in by.rows:
            cells = [plain(row.value), f"{row.items:,}", row.score, row.interval, row.made_of]
            if by.compared:
                cells.append(f"{row.before} ({row.before_interval})" if row.before_interval else row.before)
            rows.append(cells)
        parts += [f"### {plain(by.set)} by {plain(by.field)}", table(head, rows)]
        if by.more:
            parts.append(f"{by.more:,} more with fewer items are in `results.json` of the run.")
    return parts


def _data(config: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    data = results.get("data") or {}
    lines = []
    for source in training_sources(config):
        where = next((str(source[k]) for k in ("name", "path", "folder", "corpus") if source.get(k)), "")
        # A path says something about the trainer's machine; its last part says what the data is.
        where = where if on_hub(source) else Path(where).name
        lines.append(f"* `{source['type']}`" + (f" {plain(where)}" if where else ""))
    if replay := config["data"].get("replay"):
        number = len(replay["sources"])
        lines.append(
            f"* the last {'one' if number == 1 else number} of these as replay against forgetting: "
            f"{100 * replay['share']:g} % of the items of each epoch"
        )
    if data.get("used"):
        hours = f", {duration(3600 * data['hours'])} of speech" if data.get("hours") else ""
        lines.append(f"* {data['used']:,} records{hours} in all")
    dropped = {reason: n for reason, n in (data.get("dropped") or {}).items() if n}
    if dropped:
        lines.append("* left out: " + ", ".join(f"{n:,} {reason.replace('_', ' ')}" for reason, n in dropped.items()))
    if changed := data.get("changed_letters"):
        lines.append(f"* letters that the model does not have are changed in {ChangedLetters(**changed)}")
    return "\n".join(lines)


def _training(config: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    environment = results.get("environment") or {}
    optim = config.get("optim") or {}
    sentence = [f"{results['steps']:,} optimizer steps"] if results.get("steps") else []
    if optim.get("type"):
        last = " in the last part" if results.get("parts") else ""
        sentence.append(f"{optim['type']} with a peak learning rate of {optim['lr']:g}{last}")
    if results.get("seconds"):
        on = environment.get("gpu") or environment.get("processor")
        sentence.append(f"{duration(results['seconds'])}" + (f" on {on}" if on else ""))
    packages = environment.get("packages") or {}
    used = ", ".join(f"{n} {v}" for n, v in packages.items() if v and n in ("stentor", "torch", "transformers"))
    text = "; ".join(sentence) + "." if sentence else ""
    text += " Everything else is in `training_config.json`."
    return text + (f" Made with {used}." if used else "")


def _parts(results: Mapping[str, Any]) -> list[str]:
    """A list of the parts of a training with different settings or data, or of another run."""
    later = results.get("parts") or []
    if not later:
        return []
    first = {key: pair[0] for part in reversed(later) for key, pair in part.get("changed", {}).items()}
    texts = ["; ".join(f"{plain(key)} {_setting(value)}" for key, value in first.items()) or "the first settings"]
    for part in later:
        lines = (
            [f"from step {part['origin']['step']} of the run {plain(part['origin']['run'])}"]
            if "origin" in part
            else []
        )
        lines += [f"{plain(k)} {_setting(a)} -> {_setting(b)}" for k, (a, b) in part.get("changed", {}).items()]
        texts.append("; ".join([*lines, *([f"data: {plain(part['records'])}"] if "records" in part else [])]))
    starts = [1, *(part["from"] for part in later)]
    ends = [*(start - 1 for start in starts[1:]), results["steps"]]
    lines = [f"* steps {start:,} to {end:,}: {text}" for start, end, text in zip(starts, ends, texts)]
    return ["It was trained in parts with different settings:", "\n".join(lines)]


def _setting(value: Any) -> str:
    """A value of a setting; of a path its last part, because the rest is about the trainer's machine."""
    if isinstance(value, str) and Path(value).is_absolute():
        value = Path(value).name
    return "none" if value is None else plain(f"{value:g}" if isinstance(value, float) else str(value))


def _limits(config: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    known = languages(config, results)
    types = {s["type"] for s in training_sources(config)}
    lines = []
    if known:
        lines.append(f"Trained on speech declared as {', '.join(known)}; nothing is known about other languages.")
    if types == {"synth"}:
        lines.append("Trained on a synthetic voice only; nothing here says how it does on recordings of people.")
    elif "synth" in types:
        lines.append("A part of the training data is spoken by a synthetic voice.")
    if not results["eval"]:
        lines.append("It was not scored on any held-out data.")
    else:
        lines.append("The figures hold for speech like that of the sets named above, and for no other.")
    if chunk := config["task"].get("chunk"):
        lines.append(f"Trained on {chunk:g} seconds at a time; longer recordings are heard in overlapping windows.")
        if speakers := (config["task"].get("labels") or {}).get("speakers"):
            lines.append(f"Tells at most {speakers} speakers apart who talk within one window.")
    elif config["task"]["type"] == "speak":
        lines += _of_speech(config)
    elif (longest := (results.get("data") or {}).get("longest_seconds")) and config["task"]["type"] != "language":
        lines.append(f"The longest recording that it was trained on has {longest:.1f} s.")
    lines.append(
        "No licence is stated here: whoever publishes it must add one that the data and the base models allow."
    )
    return lines


def _of_speech(config: Mapping[str, Any]) -> list[str]:
    """Required statements in the card of a model that speaks."""
    lines = [
        "The loss says how well masked codec tokens are guessed, not how the speech sounds or whether it can be "
        "understood: that takes listening, or `stentor evaluate` with a recogniser."
    ]
    codec = config["model"].get("codec") or {}
    if codec.get("type") == "mel_rvq" and not codec.get("decoder") and not codec.get("from"):
        lines.append("Its codec turns spectra into sound by Griffin-Lim, which sounds rough at best.")
    lines.append("It can speak in the voice of a recording: only with the consent of the person whose voice that is.")
    return lines


def plain(text: str) -> str:
    """Text of the user, so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_{}\[\]<>()#|])", r"\\\1", str(text).replace("\n", " "))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; its cells are Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])
