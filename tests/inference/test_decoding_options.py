"""Beams, temperature, prompt, hotwords and language of one call; several recordings in one call."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from tiny_speech_llm import family as speech_llm

from stentor.audio.features import WhisperMel
from stentor.audio.io import read
from stentor.data.batch import Example
from stentor.errors import AudioError, ConfigError
from stentor.inference.decoding_options import hints, with_hotwords, with_language_model, with_search
from stentor.inference.load import load
from stentor.models.base import Family
from stentor.models.contracts import Processor
from stentor.tasks.transcribe import Transcribe
from tiny_configs import QUIET_WAVE, WHISPER

RATE = 16000
PROMPT, HOTWORDS = "Mister Quilter said:", ["Boz", "Ruskin"]


@pytest.fixture
def run(run):
    return partial(run, "transcribe")


@pytest.fixture
def asked(meter, monkeypatch):
    """The options of each call of `generate` of the loud-or-quiet model: a list of dicts."""
    calls, loads = [], meter.load

    def load(folder, trainable=False):
        bundle = loads(folder, trainable)
        answer = bundle.model.generate
        bundle.model.generate = lambda inputs, **options: calls.append(options) or answer(inputs, **options)
        return bundle

    monkeypatch.setattr(meter, "load", load)
    return calls


def ctc():
    return Family.model_validate({"type": "ctc", "config": QUIET_WAVE})


def test_beams_and_temperature(export, tone, run, asked):
    path = tone("a.wav", (1, -10))
    assert run(export(), path, "--beams", "4")[0] == 0
    assert (asked[-1]["beams"], asked[-1]["temperature"]) == (4, 0.0)
    model = load(path.parent / "model")
    model.transcribe(path, temperature=0.5)
    assert (asked[-1]["beams"], asked[-1]["temperature"]) == (1, 0.5)
    asked.clear()
    model.transcribe(path, temperature=[0.3, 0.7], log_prob_threshold=-0.01)  # which every answer fails
    assert [call["temperature"] for call in asked] == [0.3, 0.7]
    asked.clear()
    model.transcribe(path)
    assert (asked[-1]["beams"], asked[-1]["temperature"]) == (1, 0.0)


def test_one_temperature_takes_the_place_of_the_lowest():
    task = with_search(Transcribe(), speech_llm(), None, 0.5)
    assert task.checks.temperatures == [0.5, 0.6, 0.8]
    assert Transcribe().checks.temperatures[0] == 0.0


def whisper_family():
    return Family.model_validate({"type": "seq2seq", "config": WHISPER})


def search(family, beams, temperature):
    return lambda: with_search(Transcribe(), family(), beams, temperature)


def hotwords(names, strength):
    return lambda: with_hotwords(Transcribe(), ctc(), names, strength)


def language_model(texts, weight, **task):
    return lambda: with_language_model(Transcribe(**task), ctc(), texts, weight)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (search(speech_llm, 0, None), "beams must be 1 or more, not 0"),
        (search(speech_llm, None, -0.1), "temperature must be 0 or more"),
        (search(speech_llm, None, float("nan")), "temperature must be 0 or more"),
        (search(speech_llm, None, []), "temperature must be 0 or more"),
        (search(speech_llm, None, [0.4, 0.2]), "ascending order"),
        (search(speech_llm, 2, 0.2), "leave out one of them"),
        (search(ctc, None, 0.4), "family ctc only supports greedy search: leave out the temperature"),
        (hotwords("Boz", 0.0), "must be above 0, not 0"),
        (hotwords(None, 1.0), "requires hotwords: give some"),
        (language_model(None, 0.3), "requires its text file"),
        (language_model("texts.txt", 0.0), "must be above 0, not 0"),
        (language_model("texts.txt", None, hotwords=["Boz"]), "hotwords and a language model cannot be combined"),
        (lambda: hints(ctc(), None, PROMPT, ""), "family ctc takes no prompt: leave it out"),
        (lambda: hints(speech_llm(prompt={"context": False}), "A lecture", None, ""), "takes no context: leave it out"),
        (
            lambda: hints(speech_llm(prompt={}), None, PROMPT, ""),
            "family speech_llm takes no prompt: give it as the context",
        ),
    ],
)
def test_what_cannot_be_asked_for(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_families_without_search():
    with_search(Transcribe(), ctc(), 1, 0.0)  # what they do anyway
    assert with_search(Transcribe(), ctc(), 2, None).beams == 2


def test_hotwords_go_where_the_family_reads_them():
    task = Transcribe()
    recogniser = whisper_family()
    assert with_hotwords(task, recogniser, HOTWORDS, None) == (task, ", ".join(HOTWORDS))
    assert hints(recogniser, None, PROMPT, "Boz, Ruskin") == (None, f"Boz, Ruskin {PROMPT}")
    heard = speech_llm(prompt={})
    assert hints(heard, "A lecture", None, "Boz") == ("A lecture. Boz", None)
    assert hints(heard, None, None, "") == (None, None)


def test_hotwords_are_favoured_by_their_tokens_where_nothing_can_be_said():
    task = Transcribe()
    for family in (ctc(), speech_llm(prompt={"context": False})):
        favoured, said = with_hotwords(task, family, "Boz, Ruskin", None)
        assert (favoured.hotwords, favoured.hotword_strength, said) == (["Boz", "Ruskin"], 1.5, "")
    favoured, said = with_hotwords(task, speech_llm(prompt={}), ["Boz"], 0.5)
    assert (favoured.hotwords, favoured.hotword_strength, said) == (["Boz"], 0.5, "")
    assert with_hotwords(task, ctc(), None, None) == with_hotwords(task, ctc(), ", ", None) == (task, "")


def test_hotwords_of_a_file_have_weights(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text(
        "\ufeff# names\nBoz\t2\n\nKing's Cross :0.5\nRuskin: 3.5\nStar Wars: Andor\nC#, or D\n", encoding="utf-8"
    )
    listed = ["Boz\t2", "King's Cross\t0.5", "Ruskin\t3.5", "Star Wars: Andor", "C#, or D"]
    favoured, said = with_hotwords(Transcribe(), speech_llm(prompt={}), f"@{file}", None)
    assert (favoured.hotwords, said) == (listed, "")  # weights count only in decoding
    file.write_text("# names\nBoz\n")
    assert with_hotwords(Transcribe(), speech_llm(prompt={}), f"@{file}", None)[1] == "Boz"
    for line in ("Boz\tmuch", "Boz:much", "Boz:0", "Boz: -1", "Boz :1.5.2", "Boz:nan"):
        file.write_text(f"one\n{line}\n")
        with pytest.raises(ConfigError, match=r"names.txt:2: the weight \S+ of 'Boz' must be a number above 0"):
            with_hotwords(Transcribe(), ctc(), f"@{file}", None)
    with pytest.raises(ConfigError, match="Hotwords: the weight much of 'Boz' must be a number above 0"):
        with_hotwords(Transcribe(), ctc(), ["Ruskin\t2", "Boz\tmuch"], None)
    file.write_text("# names\n")
    with pytest.raises(ConfigError, match="holds no hotwords"):
        with_hotwords(Transcribe(), ctc(), f"@{file}", None)


def test_texts_of_a_language_model(tmp_path):
    task = with_language_model(Transcribe(), ctc(), "texts.txt", 0.3)
    assert (task.language_model, task.language_model_weight) == (Path("texts.txt"), 0.3)
    assert with_language_model(task, ctc(), None, None) == task
    assert with_language_model(task, ctc(), None, 0.7).language_model_weight == 0.7
    deaf = whisper_family()
    object.__setattr__(deaf, "decoding_options", lambda: frozenset({"beams"}))
    with pytest.raises(ConfigError, match="the family seq2seq does not support one: leave it out"):
        with_language_model(Transcribe(), deaf, "texts.txt", None)


def test_languages_that_a_model_knows(export, tone, run, monkeypatch):
    monkeypatch.setattr(Processor, "known_languages", ("en",))
    model, path = export(), tone("a.wav", (1, -10))
    for name in ("", "auto", "English", "EN", "eng", "en-US"):
        code, out, _ = run(model, path, "--format", "json", "--language", name)
        assert (code, json.loads(out)["language"]) == (0, "en")
    for name, words in (("engish", "did you mean en (English)?"), ("German", "'German'; its languages: en.")):
        code, _, err = run(model, path, "--language", name)
        assert code == 2 and words in err


def test_on_the_command_line(export, tone, run):
    path = tone("a.wav", (1, -10))
    model = export()
    messages = {
        "--hotwords": "does not support hotwords",
        "--prompt": "takes no prompt",
        "--context": "takes no context",
    }
    for option, message in messages.items():
        code, _, err = run(model, path, option, "Boz")
        assert code == 2 and f"family test_meter {message}" in err


def test_a_context_that_was_never_learned(export, tone, meter, monkeypatch):
    monkeypatch.setattr(meter, "decoding_options", lambda self: frozenset({"context"}))
    path, folder, warnings = tone("a.wav", (1, -10)), export(), []
    model = load(folder)
    for count, warned in ((3, 0), (0, 1)):
        (folder / "train_results.json").write_text(f'{{"data": {{"with_context": {count}}}}}')
        model.transcribe(path, context="A lecture", on_warning=warnings.append)
        assert len(warnings) == warned
    assert "was trained on records without context" in warnings[0]


def test_a_prompt_is_transformers_prompt_ids(whisper):
    from transformers import WhisperForConditionalGeneration

    bundle = load(whisper).bundle
    clip = (0.1 * np.random.default_rng(0).standard_normal(RATE)).astype(np.float32)
    batch = bundle.processor.collate([Example("a", clip, language="en", extra={"prompt": PROMPT})], labels=False)
    ((ids, *_),) = bundle.model.generate(batch.inputs, 12, {bundle.processor.eos_id})
    plain = WhisperForConditionalGeneration.from_pretrained(whisper, trust_remote_code=False)
    expected = plain.generate(
        batch.inputs["features"],
        prompt_ids=bundle.processor.tokenizer.get_prompt_ids(PROMPT, return_tensors="pt"),
        language="en",
        task="transcribe",
        max_new_tokens=12,
    )
    assert ids == expected[0, : len(ids)].tolist()


def test_a_long_prompt_keeps_its_end_and_special_tokens_are_letters(whisper):
    processor = load(whisper).bundle.processor
    ids = processor.previous(Example("a", extra={"prompt": "<|endoftext|>" + "ab" * 500}))
    assert len(ids) == 1 + processor.most // 2 - 1
    assert ids[0] == processor.tokenizer.get_vocab()["<|startofprev|>"]
    short = processor.previous(Example("a", extra={"prompt": "<|endoftext|> ab"}))
    assert processor.eos_id not in short and processor.tokenizer.decode(short[1:]) == " <|endoftext|> ab"
    assert short == processor.tokenizer.get_prompt_ids("ab").tolist()[:2] + short[2:]


@pytest.mark.parametrize("prompt", [None, PROMPT])
def test_the_detected_language_is_transformers_own(whisper, tmp_path, prompt):
    from transformers import WhisperForConditionalGeneration

    path = tmp_path / "noise.wav"
    soundfile.write(
        path,
        0.1 * np.random.default_rng(0).standard_normal(2 * RATE) * np.tile(np.repeat([1, 0.1], RATE // 4), 4),
        RATE,
    )
    model = load(whisper)
    transcript = model.transcribe(path, prompt=prompt, keep_failed=True)
    plain = WhisperForConditionalGeneration.from_pretrained(whisper, trust_remote_code=False)
    (token,) = plain.detect_language(WhisperMel(80, pad_to_30s=True)([read(path)])[0]).tolist()
    assert transcript.text and transcript["language"] == model.bundle.processor.named_language([token])
    assert model.transcribe(path, language="sv", prompt=prompt)["language"] == "sv"


def test_many_recordings_share_batches(export, tone):
    files = [tone(f"{i}.wav", (1, -10 - i)) for i in range(20)]
    model = load(export())
    audio, rate = soundfile.read(files[3])
    mixed = [*map(str, files[:3]), (audio.astype(np.float32)), files[4].read_bytes(), *files[5:]]
    transcripts = list(model.transcribe_many(mixed, rate=rate, language="en"))
    assert [t.text for t in transcripts] == [f"level {10 + i}" for i in range(20)]
    assert {t["language"] for t in transcripts} == {"en"}
    assert len(model.bundle.model.batches) == 1  # one after another it would be 20


def test_many_recordings_with_one_that_cannot_be_read(export, tone, tmp_path):
    files = [tone("a.wav", (1, -10)), tmp_path / "missing.wav", tone("b.wav", (1, -20))]
    model, errors = load(export()), []
    texts = [
        t.text for t in model.transcribe_many(files, on_error=lambda name, error: errors.append((name, error.reason)))
    ]
    assert texts == ["level 10", "level 20"] and errors == [(str(files[1]), "missing")]
    with pytest.raises(AudioError, match=r"missing\.wav does not exist"):
        list(model.transcribe_many(files))
