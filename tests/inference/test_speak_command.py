"""`stentor speak` and `stentor.load(...).speak(...)` as a user runs them, on a model that was never trained."""

import json
import re
import time
from functools import partial
from itertools import chain
from shutil import copytree, ignore_patterns

import numpy as np
import pytest
import soundfile
from speaking import RATE, TEXTS, voiced

import stentor
from stentor.audio.io import read, write
from stentor.inference.speak.pieces import Synthesizer, estimate, frames_of
from stentor.inference.speak.utterance import Utterance
from stentor.sources.base import Source


@pytest.fixture(scope="module")
def model(talker):
    return stentor.load(talker)


@pytest.fixture
def run(run):
    """Runs `stentor speak ...`."""
    return partial(run, "speak")


@pytest.fixture
def reference(tmp_path):
    write(tmp_path / "anna.wav", np.concatenate([np.zeros(8000, np.float32), 0.2 * voiced(2.0)]), RATE)
    return tmp_path / "anna.wav"


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_a_text_into_a_file(talker, run, tmp_path, suffix):
    out = tmp_path / "new" / f"a.{suffix}"
    code, printed, err = run(talker, "one two three", "--out", out)
    assert (code, err) == (0, "")
    assert re.fullmatch(
        rf"{re.escape(str(out))}: \d\.\d\d s of speech in [\d.]+ s \(real-time factor [\d.e-]+\)\n", printed
    )
    info = soundfile.info(str(out))
    assert (info.samplerate, info.channels, info.format) == (RATE, 1, suffix.upper())
    assert info.duration == pytest.approx(float(printed.split(": ")[1].split(" s ")[0]), abs=0.01)


def test_the_same_command_writes_the_same_file_and_another_seed_another(talker, run, tmp_path):
    for name, options in (("a", []), ("b", []), ("c", ["--seed", 5])):
        assert run(talker, "one two three", "--out", tmp_path / f"{name}.wav", *options)[0] == 0
    a, b, c = ((tmp_path / f"{name}.wav").read_bytes() for name in "abc")
    assert a == b != c


def test_python_and_the_command_line_say_the_same(talker, model, run, reference, tmp_path):
    options = {
        "reference_text": "one two",
        "language": "en",
        "instruct": "quick",
        "seed": 3,
        "steps": 4,
        "guidance": 0.5,
    }
    flags = chain.from_iterable((f"--{name.replace('_', '-')}", value) for name, value in options.items())
    run(talker, "seven", "--out", tmp_path / "a.wav", "--reference", reference, *flags)
    speech = model.speak("seven", reference=reference, **options)
    assert speech.rate == RATE and speech.audio.dtype == np.float32 and speech.codes.dtype == np.int16
    assert np.abs(read(tmp_path / "a.wav") - speech.audio).max() <= 1 / 32768
    array = model.speak("seven", reference=soundfile.read(reference)[0], reference_rate=RATE, **options)
    assert (array.codes == speech.codes).mean() > 0.9


def test_everything_that_is_asked_for_reaches_the_model(model, reference, monkeypatch):
    prompts, asked = [], []
    real = type(model.bundle.processor).utterance

    def utterance(self, text, **options):
        prompts.append((text, options))
        return real(self, text, **options)

    def codes(prompts, **options):
        asked.append(options)
        return [np.zeros((3, p.frames), np.int16) for p in prompts]

    monkeypatch.setattr(type(model.bundle.processor), "utterance", utterance)
    monkeypatch.setattr(model.bundle.model, "speak", codes)
    voice = {"reference": reference, "reference_text": "one two three four five"}
    model.speak("eight nine", **voice, language="en", instruct="low", seed=9, steps=2, t_shift=0.5, batch_tokens=100)
    ((text, options),) = prompts
    assert text == "eight nine" and (options["language"], options["instruct"]) == ("en", "low")
    codes, prompt_text = options["reference"]
    assert prompt_text == "one two three four five." and codes.shape[0] == 3 and abs(codes.shape[1] - 100) <= 15
    assert (
        options["frames"] == frames_of(estimate("eight nine", prompt_text, codes.shape[1] / 50), 50)
        and options["denoise"] is False
    )
    assert asked == [
        {
            "steps": 2,
            "guidance": 2.0,
            "t_shift": 0.5,
            "layer_penalty": 5.0,
            "position_temperature": 5.0,
            "class_temperature": 0.0,
            "batch_tokens": 100,
            "seeds": [9],
        }
    ]
    model.speak("eight nine", **voice, denoise=True, speed=2.0)
    assert prompts[1][1]["denoise"] is True
    assert prompts[1][1]["frames"] == frames_of(estimate("eight nine", prompt_text, codes.shape[1] / 50, speed=2.0), 50)
    model.speak("eight nine", duration=3.5)
    assert prompts[2][1]["frames"] == 175 and prompts[2][1]["reference"] is None


def test_a_duration_is_kept_to_the_sample(model):
    assert model.speak("one two", duration=2.5).seconds == pytest.approx(2.5, abs=1e-9)
    long = model.speak(" ".join(TEXTS), duration=40.0, finish=False, steps=1)
    assert len(long.texts) > 1 and long.seconds == pytest.approx(40.0, abs=0.05)


def test_finished_speech_has_its_level_and_soft_ends(model):
    raw, finished = (model.speak("one two three", finish=finish) for finish in (False, True))
    assert np.array_equal(raw.codes, finished.codes) and len(raw.audio) == raw.codes.shape[1] * 320
    assert abs(finished.audio[0]) < 1e-3 and abs(finished.audio[-1]) < 1e-3
    frames_ = finished.audio[: len(finished.audio) // 480 * 480].reshape(-1, 480)
    power = np.square(frames_).mean(1)
    loud = np.sqrt(power[power > 1e-4 * power.max()].mean())
    assert loud == pytest.approx(0.1, rel=0.05) or np.abs(finished.audio).max() == pytest.approx(0.95, rel=1e-3)


def test_a_long_text_goes_on_in_the_voice_of_its_first_part(model, monkeypatch):
    prompts = []
    real = type(model.bundle.processor).utterance

    def utterance(self, text, **options):
        prompts.append((text, options["reference"]))
        return real(self, text, **options)

    monkeypatch.setattr(type(model.bundle.processor), "utterance", utterance)
    text = ". ".join(TEXTS * 6)
    speech = model.speak(text, steps=1)
    assert len(speech.texts) >= 3 and " ".join(speech.texts) == text == " ".join(t for t, _ in prompts)
    assert prompts[0][1] is None
    first = round(50 * estimate(speech.texts[0]))
    for _, (codes, words) in prompts[1:]:
        assert words == speech.texts[0] and np.array_equal(codes, speech.codes[:, :first])


def test_an_utterance_does_not_depend_on_the_others(model):
    texts = ["one", "two three four five", ". ".join(TEXTS * 5), "zero"]
    generation = model.task.generation.model_copy(update={"steps": 2})
    utterances = [Utterance(text, seed=i) for i, text in enumerate(texts)]
    speaker = Synthesizer(model.bundle, generation)
    together = list(speaker.speak(utterances))
    for utterance, batched in zip(utterances, together):
        (alone,) = speaker.speak([utterance])
        assert np.array_equal(alone.codes, batched.codes) and alone.seed == batched.seed
        assert np.allclose(alone.audio, batched.audio, atol=1e-5)


def test_letters_in_the_other_case_are_spoken_and_unknown_ones_left_out(model, caplog):
    plain, cased = model.speak("one two"), model.speak("One\t TWO")
    assert np.array_equal(plain.codes, cased.codes) and not caplog.records
    voice = {"reference": 0.2 * voiced(2.0), "reference_rate": RATE}
    cased = model.speak("one", reference_text="Seven\nEight", **voice)
    assert np.array_equal(model.speak("one", reference_text="seven eight", **voice).codes, cased.codes)
    assert not caplog.records
    model.speak("one", reference_text="7 eight", instruct="Ünique", **voice)
    assert "does not know 7 in the text of the reference '7 eight.' and skips it" in caplog.text
    assert "does not know Ü in the instruct 'Ünique' and skips it" in caplog.text
    odd = model.speak("one § two")
    assert "does not know § in the text and skips it" in caplog.text and odd.texts == ["one two"]


def test_a_saved_voice_speaks_as_its_reference(talker, run, reference, tmp_path):
    voice = ["--reference", reference, "--reference-text", "one two three four"]
    code, printed, err = run(talker, *voice, "--save-voice", tmp_path / "anna")
    assert (code, err) == (0, "") and re.search(r"anna.json: a voice of 2\.\d s, for --voice ", printed)
    assert {p.name for p in tmp_path.iterdir()} == {"anna.wav", "anna.json", "anna.safetensors"}
    run(talker, "seven", "--out", tmp_path / "a.wav", *voice, "--save-voice", tmp_path / "b")
    run(talker, "seven", "--out", tmp_path / "b.wav", "--voice", tmp_path / "anna")
    run(talker, "seven", "--out", tmp_path / "c.wav")
    a, b, c = ((tmp_path / f"{name}.wav").read_bytes() for name in "abc")
    assert a == b != c


def test_a_recogniser_writes_the_reference_down(talker, run, reference, meter, tmp_path):
    """The family `test_meter` hears how loud it is; the reference is raised to a level of about 0.1 first."""
    folder = tmp_path / "meter"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "test_meter"}')
    code, _, err = run(talker, "seven", "--out", tmp_path / "a.wav", "--reference", reference, "--recognizer", folder)
    assert code == 0, err
    assert re.search(r"stentor: warning: Transcript of .*anna\.wav: level \d+\n", err)
    hypothesis = err.split("anna.wav: ")[1].splitlines()[0]
    run(talker, "seven", "--out", tmp_path / "b.wav", "--reference", reference, "--reference-text", hypothesis)
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_numbers_in_words(talker, run, tmp_path):
    pytest.importorskip("unicode_rbnf")
    run(talker, "seven", "--out", tmp_path / "a.wav")
    code, _, err = run(talker, "7", "--out", tmp_path / "b.wav", "--normalize", "--language", "en")
    assert (code, err) == (0, "")
    run(talker, "seven", "--out", tmp_path / "c.wav", "--language", "en")
    a, b, c = ((tmp_path / f"{name}.wav").read_bytes() for name in "abc")
    assert b == c != a


def test_published_models_are_told_of_words_that_they_do_not_know(talker, tmp_path, run, monkeypatch):
    """A folder without Stentor's own files: the task is its family's, `denoise` and the closed vocabulary are on."""
    folder = copytree(talker, tmp_path / "published", ignore=ignore_patterns("stentor.json", "training_config.json"))
    out = tmp_path / "a.wav"
    code, _, err = run(folder, "one", "--out", out, "--steps", 1, "--language", "Klingonese")
    assert code == 2 and "There is no language 'Klingonese'" in err and not out.exists()
    code, _, err = run(folder, "one", "--out", out, "--steps", 1, "--instruct", "Female, 青年", "--language", "English")
    assert (code, err) == (0, "") and out.is_file()


def lines(path, *records):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), encoding="utf-8")
    return path


def test_many_texts(talker, model, run, reference, tmp_path):
    texts = lines(
        tmp_path / "texts.jsonl",
        {"id": "a", "text": "one two", "speaker": "anna", "seed": 4},
        "",
        {"id": "b", "text": "three", "reference": "anna.wav", "reference_text": "five six", "language": "en"},
        {"text": "four", "duration": 2.0, "instruct": None},
    )
    out = tmp_path / "out"
    code, printed, err = run(talker, "--from", texts, "--out", out, "--format", "flac")
    assert (code, err) == (0, "") and re.match(rf"{re.escape(str(out))}: 3 spoken: \d", printed)
    assert sorted(p.name for p in out.glob("[!.]*")) == ["a.flac", "b.flac", "line00004.flac", "speech.jsonl"]
    records = [json.loads(line) for line in (out / "speech.jsonl").read_text().splitlines()]
    assert [(r["id"], r["audio_path"], r["text"]) for r in records] == [
        ("a", "a.flac", "one two"),
        ("b", "b.flac", "three"),
        ("line00004", "line00004.flac", "four"),
    ]
    assert records[0]["speaker"] == "anna" and records[1]["language"] == "en" and "reference" not in records[1]
    cuts = list(Source.model_validate({"type": "jsonl", "path": str(out / "speech.jsonl")}).records())
    assert [(cut.id, cut.supervisions[0].text) for cut in cuts] == [(r["id"], r["text"]) for r in records]
    assert records[2]["duration"] == 2.0
    assert np.abs(read(out / "a.flac") - model.speak("one two", seed=4).audio).max() <= 1 / 32768
    with_reference = model.speak("three", reference=reference, reference_text="five six", language="en", seed=1)
    assert len(with_reference.codes[0]) == pytest.approx(records[1]["duration"] * 50, abs=60)


def test_a_second_run_keeps_what_is_there(talker, run, tmp_path):
    texts = lines(
        tmp_path / "t.jsonl", {"id": "a", "text": "one"}, {"id": "b", "text": "two"}, {"id": "c", "text": "six"}
    )
    out = tmp_path / "out"
    run(talker, "--from", texts, "--out", out)
    complete = {p.name: p.read_bytes() for p in out.glob("[!.]*")}
    (out / "b.wav").unlink()
    (out / "c.wav").write_bytes(b"RIFF")  # a damaged one is spoken again
    (out / "speech.jsonl").unlink()
    before = (out / "a.wav").stat().st_mtime_ns
    time.sleep(0.01)
    code, printed, _ = run(talker, "--from", texts, "--out", out)
    assert code == 0 and "2 spoken" in printed and "1 kept as they are; --force speaks them again" in printed
    assert {p.name: p.read_bytes() for p in out.glob("[!.]*")} == complete
    assert (out / "a.wav").stat().st_mtime_ns == before
    code, printed, _ = run(talker, "--from", texts, "--out", out, "--force")
    assert "3 spoken" in printed and "kept" not in printed
    assert {p.name: p.read_bytes() for p in out.glob("[!.]*")} == complete


def test_bad_lines_are_told_and_the_others_spoken(talker, run, tmp_path):
    texts = lines(
        tmp_path / "t.jsonl",
        {"id": "good", "text": "one"},
        "{no json",
        "[1]",
        {"id": "x"},
        {"id": "y", "text": 3},
        {"id": "../z", "text": "a"},
        {"id": "GOOD", "text": "b"},
        {"id": "e", "text": " "},
        {"id": "r", "text": "a", "reference": "no.wav", "reference_text": "b"},
        {"id": "s", "text": "a", "speed": 9},
        {"id": "t", "text": "a", "reference_text": "b"},
        {"id": "", "text": "a"},
        {"id": 100 * "ä!", "text": "a"},
        {"id": "last", "text": "two"},
    )
    code, printed, err = run(talker, "--from", texts, "--out", tmp_path / "out")
    assert code == 3 and "2 spoken" in printed
    messages = [line.removeprefix(f"stentor: {texts}:") for line in err.splitlines()]
    starts = [
        "2: not JSON (",
        "3: each line must be a JSON object, got [1].",
        "4: the line has no `text`.",
        "5: the line has 3 as `text`, which must be text.",
        "6: the line has the id '../z', which is no name for a file.",
        "7: the line has the id 'GOOD' of line 1.",
        "8: The text is empty",
        "9: ",
        "10: The speed 9 is not between 0.25 and 4.",
        "11: A transcript of a reference is given",
    ]
    messages = sorted(messages[:-1], key=lambda message: int(message.partition(":")[0])) + messages[-1:]
    starts += ["12: the line has the id '', which is no name for a file.", "13: the line has the id 'ä!ä!"]
    assert [a.startswith(b) for a, b in zip(messages, starts)] == [True] * 12, messages
    assert messages[-1] == (
        "stentor: 12 of 14 lines could not be spoken: "
        + ", ".join(f"line {n}" for n in range(2, 14))
        + ". The reasons are above; the others are done."
    )
    assert sorted(p.name for p in (tmp_path / "out").glob("[!.]*")) == ["good.wav", "last.wav", "speech.jsonl"]


def test_the_lists_of_omnivoice_are_understood(talker, model, run, reference, tmp_path):
    """A line as k2-fsa/OmniVoice's README has it, and what `read_test_list` reads there besides."""
    line = {
        "id": "sample_001",
        "text": "one two",
        "ref_audio": str(reference),
        "ref_text": "five six",
        "instruct": None,
        "language_id": "en",
        "language_name": "English",
        "duration": 1.5,
        "speed": 1.2,
    }
    texts = lines(
        tmp_path / "t.jsonl", line, {"id": "b", "text": "two", "ref_audo": "x.wav"}, {**line, "reference": "a"}
    )
    out = tmp_path / "out"
    code, printed, err = run(talker, "--from", texts, "--out", out)
    first, second, _ = err.splitlines()
    assert code == 3 and "1 spoken" in printed
    assert first.endswith(":2: the line has the key `ref_audo`, which means nothing here; did you mean `ref_audio`?")
    assert second.endswith(":3: the line has both `reference` and `ref_audio`, which mean the same.")
    (record,) = map(json.loads, (out / "speech.jsonl").read_text().splitlines())
    assert record["language"] == "en" and record["duration"] == 1.5 and "ref_text" not in record
    cloned = model.speak(
        "one two", reference=reference, reference_text="five six", language="en", duration=1.5, seed=_seed("sample_001")
    )
    assert np.abs(read(out / "sample_001.wav") - cloned.audio).max() <= 1 / 32768


def _seed(name):
    from stentor.tasks.speak.task import seed_of

    return seed_of(0, name)


def test_nothing_is_written_over_without_a_word(talker, run, reference, tmp_path):
    out, voice = tmp_path / "a.wav", tmp_path / "anna"
    clone = ["--reference", reference, "--reference-text", "five"]
    assert run(talker, "one", "--out", out, *clone, "--save-voice", voice)[0] == 0
    before = out.read_bytes()
    code, _, err = run(talker, "two three", "--out", out)
    assert (
        code == 2 and err == f"stentor: --out: {out} exists already. Give another name, or --force to write over it.\n"
    )
    code, _, err = run(talker, *clone, "--save-voice", voice)
    assert code == 2 and f"--save-voice: {voice}.json exists already." in err and out.read_bytes() == before
    assert run(talker, "two three", "--out", out, "--force", *clone, "--save-voice", voice)[0] == 0
    assert out.read_bytes() != before


def test_letters_that_no_training_text_had_are_told(talker, tmp_path, run):
    folder = copytree(talker, tmp_path / "bytes")
    facts = json.loads((folder / "stentor.json").read_text())
    (folder / "stentor.json").write_text(json.dumps({**facts, "letters": "enotwz"}))
    code, _, err = run(folder, "one two six", "--out", tmp_path / "a.wav", "--steps", 1)
    assert (
        code == 0 and "No text that this model was trained on contains s i x, so its pronunciation is a guess." in err
    )
    assert run(folder, "one two", "--out", tmp_path / "b.wav", "--steps", 1)[2] == ""


def test_letters_and_instructs_of_the_training_records_are_kept(talker, tmp_path):
    from stentor.models.base import Family, TaskRequirements

    section = json.loads((talker / "training_config.json").read_text())["model"]
    soundfile.write(tmp_path / "a.wav", voiced(1), RATE)
    records = [
        {"audio_path": "a.wav", "text": "two won.", "id": "a", "instruct": "deep", "speaker": "ann"},
        {"audio_path": "a.wav", "text": "ñ, 2!", "id": "b", "speaker": "ben"},
    ]
    manifest = lines(tmp_path / "m.jsonl", *records)
    cuts = list(Source.model_validate({"type": "jsonl", "path": str(manifest)}).cuts())

    def letters(cuts, complete=True, field=None, **changes):
        asked = TaskRequirements(
            "speak", ("codes",), texts=lambda: TEXTS, cuts=lambda: cuts, complete=complete, instruct_from=field
        )
        return Family.model_validate({**section, **changes}).build(asked)

    bundle = letters(cuts)
    assert (bundle.processor.letters, bundle.processor.instructs) == (".2notwñ", ["deep"])
    assert letters(cuts[1:]).processor.instructs == []
    assert letters(cuts, complete=False).processor.instructs is None
    assert letters(cuts, complete=False).processor.letters is None  # a stream: nobody has read all of it
    state = bundle.model.state_dict()
    tensors = {n: state[n] for n in bundle.family.exported_tensor_names(bundle)}
    bundle.family.save(bundle, tensors, tmp_path / "second")
    later = letters(cuts[1:], field="speaker", init=str(tmp_path / "second")).processor
    assert (later.letters, later.instructs) == (".2notwñ", ["ben", "deep"])
    assert stentor.load(tmp_path / "second").bundle.processor.instructs == ["deep"]
    assert letters(cuts, init=str(talker)).processor.letters is None  # of texts that nobody wrote down


def test_damaged_weights_are_told_as_such(talker, tmp_path, run):
    from safetensors.torch import load_file, save_file

    folder = copytree(talker, tmp_path / "damaged")
    weights = load_file(folder / "model.safetensors")
    name = next(n for n in weights if "q_proj" in n)
    weights[name][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors")
    code, _, err = run(folder, "one", "--out", tmp_path / "a.wav")
    assert code == 2 and f"{folder}: the weight {name} holds NaN or infinite values" in err


def test_what_the_command_says_is_for_lines_that_do_not(talker, model, run, reference, tmp_path):
    texts = lines(tmp_path / "t.jsonl", {"id": "a", "text": "one"}, {"id": "b", "text": "one", "duration": 1.5})
    voice = ["--reference", reference, "--reference-text", "two"]
    run(talker, "--from", texts, "--out", tmp_path / "out", "--duration", 2, *voice)
    lengths = [soundfile.info(str(tmp_path / "out" / f"{name}.wav")).duration for name in "ab"]
    assert lengths == [2.0, 1.5]


def test_a_text_from_standard_input(talker, run, tmp_path, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("one two\n"))
    assert run(talker, "-", "--out", tmp_path / "a.wav")[0] == 0
    run(talker, "one two", "--out", tmp_path / "b.wav")
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_a_folder_that_cannot_be_written_to_is_told_before_the_work(run, tmp_path, monkeypatch):
    def refuse(dir: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    code, _, err = run("no-model", "one", "--out", tmp_path / "a.wav")
    problem = f"The folder {tmp_path} of --out cannot be written to (Permission denied)"
    assert (code, err) == (2, f"stentor: {problem}: check the path and its permissions.\n")


def test_a_model_that_was_trained_packed_says_the_same(talker, model, tmp_path):
    copytree(talker, tmp_path / "flex")
    facts = json.loads((talker / "stentor.json").read_text())
    facts["family"]["attention"] = "flex"
    (tmp_path / "flex" / "stentor.json").write_text(json.dumps(facts))
    packed = stentor.load(tmp_path / "flex")
    assert packed.bundle.family.attention == "flex" and model.bundle.family.attention == "sdpa"
    assert np.array_equal(packed.speak("one two").codes, model.speak("one two").codes)


def test_the_pace_of_the_training_data_says_how_long(talker, model, tmp_path):
    from stentor.data.speaking_rate import SpeakingRate

    assert model.bundle.processor.pace is None  # made from texts alone
    copytree(talker, tmp_path / "paced")
    facts = json.loads((talker / "stentor.json").read_text())
    (tmp_path / "paced" / "stentor.json").write_text(json.dumps({**facts, "pace": [0.2, 0.1]}))
    paced = stentor.load(tmp_path / "paced")
    assert paced.bundle.processor.pace == SpeakingRate(0.2, 0.1)
    assert paced.speak("one two").codes.shape[1] == round((0.2 + 6.2 * 0.1) * 50)
    assert model.speak("one two").codes.shape[1] == round(50 * estimate("one two"))
