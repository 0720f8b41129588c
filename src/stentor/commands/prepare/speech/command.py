"""`stentor prepare speech`: texts to synthetic speech on which a recogniser is trained, judged by a recogniser.

TO holds `manifest.jsonl` (the records), `rejects.jsonl` (those that were dropped, with reason and figure),
`summary.json` and `audio/` with one FLAC file each; `texts.jsonl` what a language model wrote, `references/` the
recordings whose voices were taken. A journal, `manifest.jsonl.part`, lets the same command resume after a kill.
"""

from collections.abc import Sequence
from typing import Any

from stentor.commands.prepare.speech.texts import (
    Spoken,
    Text,
    allowed,
    assign,
    held_out,
    read_texts,
    reasons_of,
    written_texts,
)
from stentor.commands.prepare.speech.worker import SpeechWorker
from stentor.commands.prepare_options import SpeechOptions
from stentor.commands.speak_many import LinesWorker
from stentor.commands.speak_options import SpeakOptions
from stentor.config.load import parse_section, parse_source
from stentor.config.prepare.steps import SpeechAugment
from stentor.data.cut import UnusableRecord
from stentor.data.record_table import RecordTable
from stentor.errors import ConfigError, DataError
from stentor.pipeline.executor import device_names, make_executor
from stentor.pipeline.journal import (
    Fingerprint,
    Journal,
    made_before,
    read_jsonl,
    remove_journal,
    write_json,
    write_jsonl,
)
from stentor.pipeline.runner import RecordsInJournal, format_table, refuse_rejects
from stentor.sources.synth import Synth
from stentor.text.languages import checked_language

GROUP_ITEMS = 16
"""Utterances that a process takes at a time."""
MAX_WER = 0.3
"""Default of `max_wer`."""


def prepare_speech(options: SpeechOptions) -> None:
    """Write the records, or resume where a killed command stopped. Raises ConfigError for options that do not go
    together and for a folder that holds other speech, `Stopped` at a signal, and DataError when nothing could be kept
    or over 1 % of the texts cannot be read or spoken (what could be made is written all the same)."""
    spoken, augment, rejects = _plan(options)
    digest = Fingerprint(_description)
    items = RecordTable(digest.through(spoken))
    settings: dict[str, Any] = {"model": options.model, "steps": options.steps, "guidance": options.guidance}
    settings |= {"normalize": options.normalize, "recognizer": options.recognizer, "max_wer": options.max_wer}
    settings |= {"round": options.round, "seed": options.seed}
    settings |= {"augment": augment.model_dump(mode="json"), "records": str(digest)}
    manifest = options.to / "manifest.jsonl"
    if made_before(options.to, settings, "speech") is not None:
        return _refuse_bad(options)
    journal = _run(options, augment, items, RecordsInJournal(manifest, settings, "speaking", "utterances"))
    records, failed = journal.outcomes(item.id for item in items)
    kept = [record for record in records if "reason" not in record]
    rejects += [*(r for r in records if "reason" in r), *map(vars, failed)]
    write_jsonl(manifest, kept)
    write_jsonl(options.to / "rejects.jsonl", rejects)
    write_json(options.to / "summary.json", {**_summary(kept, records, rejects), "settings": settings})
    remove_journal(journal.path)
    hours = sum(record["duration"] for record in kept) / 3600
    rows = [("kept", len(kept), f"{hours:.2f} hours"), *((reason, n, "rejected") for reason, n in reasons_of(rejects))]
    print(f"{format_table(rows)}\nwritten: {manifest}", flush=True)
    _refuse_bad(options)


def _refuse_bad(options: SpeechOptions) -> None:
    """Raise DataError when no utterance was kept, or over 1 % of the texts could not be read or spoken."""
    kept, rejects = (list(read_jsonl(options.to / name)) for name in ("manifest.jsonl", "rejects.jsonl"))
    messages = [reject["message"] for reject in rejects if "message" in reject]
    refuse_rejects(messages, len(kept) + len(rejects))
    if not kept:
        raise DataError(f"No utterance was kept; {options.to / 'rejects.jsonl'} says why.")


def _description(spoken: Spoken) -> list[Any]:
    """Settings that an utterance depends on; the place of a reference does not count."""
    call = {key: value for key, value in spoken.voice.call.items() if key != "reference"}
    return [spoken.id, spoken.text, spoken.language, spoken.voice.name, call]


def _plan(options: SpeechOptions) -> tuple[list[Spoken], SpeechAugment, list[dict[str, Any]]]:
    """The texts to speak, their changes, and the rejects. Raises ConfigError for options that do not go together, and
    DataError when there is nothing to speak."""
    checked_language(options.language)
    if (options.data is None) == (options.language_model is None):
        both = "" if options.data is None else " Both are given: leave one out."
        raise ConfigError(f"Say whose texts are spoken: DATA, or a model that writes them with --language-model.{both}")
    augment = parse_section(options.augment, SpeechAugment, "--augment") if options.augment else SpeechAugment()
    if augment.spec_augment is not None:
        raise ConfigError("--augment: `spec_augment` changes no audio; set it in `data.augment` of the run.")
    augment.check()
    texts: Sequence[Text | UnusableRecord]
    if options.data is not None:
        source = parse_source(options.data)
        if isinstance(source, Synth):
            source = source.model_copy(update={"seed": source.seed + options.seed})
            if "silence" not in augment.model_fields_set:
                augment = augment.model_copy(update={"silence": source.silence})
        texts = list(read_texts(source))
    else:
        texts = written_texts(options)
    chosen, rejects = allowed(texts, held_out(options.exclude))
    return assign(chosen, options), augment, rejects


def _run(options: SpeechOptions, augment: SpeechAugment, items: RecordTable[Spoken], work: RecordsInJournal) -> Journal:
    labels: dict[str, Any] = {"label_source": "synthetic", "round": options.round}
    lines = None
    if options.model is not None:
        labels["labelled_by"] = [options.model]
        speaking = SpeakOptions(
            model=options.model,
            steps=options.steps,
            guidance=options.guidance,
            normalize=options.normalize,
            seed=options.seed,
        )
        lines = LinesWorker(speaking)
    max_wer = MAX_WER if options.max_wer is None else options.max_wer
    worker = SpeechWorker(options.to, augment, lines, options.recognizer, max_wer, labels, options.seed)
    loads = options.model is not None or options.recognizer is not None
    jobs = options.jobs or (None if options.ray else 1)
    executor = make_executor(options, device_names(options.device) if loads else (), not loads, jobs)
    groups = [items[i : i + GROUP_ITEMS] for i in range(0, len(items), GROUP_ITEMS)]
    return work.run(worker, executor, groups)


def _summary(
    kept: Sequence[dict[str, Any]], spoken: Sequence[dict[str, Any]], rejects: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """`records`, `hours`, `speakers`, of what a recogniser heard the mean word error rate (`wer`: of all that was
    spoken; `kept_wer`), and `rejected` by reason."""
    summary: dict[str, Any] = {
        "records": len(kept),
        "hours": round(sum(record["duration"] for record in kept) / 3600, 6),
        "speakers": len({record["speaker"] for record in kept if "speaker" in record}),
        "rejected": dict(reasons_of(rejects)),
    }
    for name, records in (("wer", spoken), ("kept_wer", kept)):
        rates = [record["wer"] for record in records if "wer" in record]
        if rates:
            summary[name] = round(sum(rates) / len(rates), 4)
    return summary
