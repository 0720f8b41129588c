"""Records that a model cannot read or write: left out before the first step, with the same count everywhere."""

import json
import re

import numpy as np
import pytest
import tiny_audio_llm
import tiny_speech_llm
import tiny_voxtral
from lhotse import MonoCut, SupervisionSegment

from data_plans import dataset
from list_source import ListSource, ListStream, list_source
from run_files import write_run_file
from stentor.dataloading.planned import ModelDrops, partly_trained, without_loss
from stentor.dataloading.section import Data
from stentor.models.base import Family, TaskRequirements
from stentor.tasks.transcribe import Transcribe
from tiny_configs import QUIET_WAVE, WHISPER

RATE = 16000


def cut(name: str, seconds: float = 1.0, text: str = "one two") -> MonoCut:
    return MonoCut(name, 0.0, seconds, 0, [SupervisionSegment(name, name, 0.0, seconds, text=text, language="en")])


RECORDS = [*(cut(f"c{i}") for i in range(6)), cut("long", 31.0), cut("wordy", 2.0, "one two " * 300)]
LIMITS = {"long": "too_long", "wordy": "text_too_long"}


def built(family: Family, terms: tuple[str, ...] = ("text",)):
    requirements = TaskRequirements(task="transcribe", terms=terms)
    requirements.texts, requirements.cuts = lambda: ["one two six"], lambda: iter(())
    return family.build(requirements)


@pytest.fixture(scope="module")
def whisper():
    return built(Family.model_validate({"type": "seq2seq", "config": WHISPER}))


@pytest.fixture(scope="module")
def bundles(whisper, tmp_path_factory):
    tokens = tiny_voxtral.write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    sizes = {**tiny_voxtral.CONFIG["text_config"], "max_position_embeddings": 500}
    fixed = {**tiny_voxtral.CONFIG, "text_config": sizes}
    short = {**tiny_speech_llm.LLMS["qwen2"], "max_position_embeddings": 600}
    ctc = Family.model_validate({"type": "ctc", "config": QUIET_WAVE, "alphabet": "transcripts"})
    return {
        "whisper": (whisper, LIMITS),
        "voxtral": (tiny_audio_llm.build(fixed, tokens, max_text_tokens=40), LIMITS),
        "speech_llm": (tiny_speech_llm.build(llm={"config": short}), LIMITS),
        "ctc": (built(ctc, ("ctc",)), {"wordy": "text_too_long"}),
    }


@pytest.mark.parametrize("name", ["whisper", "voxtral", "speech_llm", "ctc"])
def test_a_batch_leaves_out_what_was_known_before(name, bundles):
    """The reasons from metadata are those of the batch of the audio; each names a limit and says what to change."""
    bundle, expected = bundles[name]
    task, processor = Transcribe(), bundle.processor
    drops = ModelDrops(task, processor, training=True)
    reasons = {c.id: reason for c in RECORDS if (reason := drops(c)) is not None}
    assert {key: reason for key, (reason, _) in reasons.items()} == expected
    examples = [task.example(c, np.zeros(round(c.duration * RATE), np.float32), None) for c in RECORDS]
    batch = task.collate(examples, processor, packed=False)
    assert [tuple(d) for d in batch.dropped] == [(key, *reason) for key, reason in reasons.items()]
    for _, message in reasons.values():
        assert re.search(r": .*\d", message) and re.search("shorter|leave|raise|belong", message), message
    assert ModelDrops(task, processor, training=False)(cut("wordy", 2.0, "one " * 500)) is None  # it can be scored
    lossless = without_loss(task, processor, RECORDS[-1:])
    assert lossless.reasons == {"text_too_long": 1}


@pytest.mark.parametrize("kind", [ListSource, ListStream])
def test_lists_and_streams_count_the_same(kind, whisper):
    section = Data(train=[list_source(RECORDS, kind)], batch_tokens=4000, max_seconds=60, max_bad=0.5)
    train = dataset(section)
    train.leave_out(ModelDrops(Transcribe(), whisper.processor, training=True))
    sampler = train.batch_sampler(whisper.processor.tokens)
    shards = getattr(sampler, "samplers", [sampler])
    seen = {item.cut.id for shard in shards for items in shard.epoch(0) for item in items}
    assert seen == {f"c{i}" for i in range(6)}
    assert train.dropped.reasons == {"too_long": 1, "text_too_long": 1} and train.dropped.bad == 2


def test_records_without_a_part_in_the_loss_of_a_ctc_head_are_named():
    bundle = tiny_speech_llm.build(ctc={"units": "characters"}, projector={"rate": 12.5})
    crowded = cut("crowded", 0.2, "one two three " * 3)
    (line,) = partly_trained(Transcribe(), bundle.processor, [cut("a"), crowded])
    assert "1 training records have no part in the loss of the CTC head" in line and "(crowded)" in line
    assert partly_trained(Transcribe(), bundle.processor, [cut("a")]) == []


@pytest.fixture
def run_file(tmp_path):
    import soundfile

    def record(name: str, seconds: float, text: str) -> str:
        soundfile.write(tmp_path / f"{name}.wav", 0.1 * np.sin(np.arange(round(seconds * RATE)) / 20), RATE)
        return json.dumps({"id": name, "audio_path": f"{name}.wav", "text": text}) + "\n"

    good = [record(f"c{i}", 1.0, "one two") for i in range(4)]
    broken = [record("long", 31.0, "one"), record("wordy", 1.0, "one two six " * 200)]
    (tmp_path / "train.jsonl").write_text("".join([*good, *broken]))
    (tmp_path / "dev.jsonl").write_text("".join([good[0], *broken]))
    model = {"type": "seq2seq", "config": WHISPER}
    more = {"max_seconds": 60, "max_bad": 0.5, "batch_tokens": 4000}
    sections = {"task": {"type": "transcribe"}, "model": model, "train": {"steps": 3}, "data": more}
    return write_run_file(tmp_path, "limits", tmp_path / "train.jsonl", tmp_path / "dev.jsonl", **sections)


def test_plan_console_results_and_report_agree(run_file, here, attempt, tmp_path):
    here("train", run_file, "--plan-only", "--json", tmp_path / "plan.json")
    (contents,) = json.loads((tmp_path / "plan.json").read_text())
    assert contents["data"]["records"] == 4
    planned = {reason: d["count"] for reason, d in contents["data"]["dropped"].items()}
    assert planned == {"too_long": 1, "text_too_long": 1}
    out = here("train", run_file)
    assert "Training on 4 records" in out and "Dropped 1 (text_too_long): wordy: prompt and text are" in out
    assert "Scored in dev, but not in its loss: 1 (text_too_long)" in out and "loss 0 " not in out
    folder = tmp_path / "runs" / "limits"
    facts = json.loads((folder / "results.json").read_text())["data"]
    assert (facts["used"], facts["dropped"]) == (4, planned)
    assert facts["eval"]["dev"]["dropped"] == {"too_long": 1}
    assert facts["eval"]["dev"]["without_loss"] == {"text_too_long": 1}
    events = (folder / "events.jsonl").read_text()
    assert "bad_audio" not in events  # nothing was left for the batches to drop
    page = (folder / "report.html").read_text()
    assert "more text than the model can write" in page and "longer than data.max_seconds, or than the model" in page

    code, said = attempt("train", run_file, "data.max_bad=0.01", "name=strict")
    assert code == 3 and "2 of 6 records cannot be used" in said
    assert "`data.max_seconds: 30`" in said and "448 positions" in said
    out = here("train", run_file, "data.max_seconds=30", "data.max_bad=0.2", "name=advised", "--plan-only")
    assert "4 records" in out  # a limit that the run file sets is a choice: one of six records is broken
