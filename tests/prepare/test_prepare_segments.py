"""`stentor prepare segments`: of podcasts whose truth is known, what is kept, what is dropped and why; also killed."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from stentor.audio.io import probe, read, write
from stentor.audio.synth import say
from stentor.cli import main
from stentor.sources.audio_folder import AudioFolder
from stentor.sources.manifest import Jsonl

SENTENCES = {
    "en-us": [
        "The harbour lights are on and the boats return before the storm arrives.",
        "We should meet again on Monday morning at nine and talk about the new bridge.",
        "Nobody knows why the river turned red last summer, not even the fishermen.",
    ],
    "de": [
        "Die alte Mühle am Bach wurde im letzten Jahr endlich wieder aufgebaut.",
        "Morgen fahren wir mit dem Zug in die Berge und suchen dort nach Pilzen.",
    ],
    "en+f3": ["Seven small islands lie to the north, and none of them has a name."],
    "en-us+m3": ["A clear morning over the valley brings the birds back to the garden."],
    "en-gb-x-rp": ["This call came over an old telephone line from the other side of the sea."],
}
PLUGIN = '''
"""Stages of a plug-in: texts as a recogniser would write them, and one that takes its time."""
from typing import Literal
from stentor.inference.segments.base import Limit, Stage

class ToldStage(Stage):
    type: Literal["told"] = "told"
    texts: dict[str, str]
    confidence: float = 0.9

    def measure(self, recording, segments):
        for segment in segments:
            text = next(t for name, t in self.texts.items() if f"{recording.name}@{segment.start:.3f}".startswith(name))
            yield segment.measured(text=text, confidence=self.confidence)
'''


def noise(seconds: float, level: float = 1e-4) -> np.ndarray:
    return (level * np.random.default_rng(0).standard_normal(round(seconds * 16000))).astype(np.float32)


def talk(voice: str, pause: float = 1.5) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """The voice's sentences with pauses around them at 16 kHz, and from when to when there are words."""
    parts, spans, at = [noise(1.0)], [], 1.0
    for text in SENTENCES[voice]:
        speech = say(text, voice=voice)
        spans.append((at + speech.words[0]["start"], at + speech.words[-1]["end"]))
        parts += [0.6 * speech.audio, noise(pause)]
        at += speech.seconds + pause
    return np.concatenate(parts), spans


@pytest.fixture(scope="module")
def podcasts(tmp_path_factory) -> Path:
    """A folder of recordings in several formats, each with one thing about it."""
    folder = tmp_path_factory.mktemp("podcasts")
    clean, _ = talk("en-us")
    write(folder / "a_clean.flac", clean, 16000)
    soundfile.write(folder / "b_again.mp3", 0.4 * soxr.resample(clean[5000:], 16000, 44100), 44100)
    write(folder / "c_copy.wav", clean, 16000)
    (folder / "more").mkdir()
    write(folder / "more" / "german.ogg", talk("de")[0], 16000)
    noisy = talk("en+f3")[0]
    write(folder / "more" / "noisy.wav", 0.3 * (noisy + noise(len(noisy) / 16000, 1.4 * float(np.std(noisy)))), 16000)
    write(folder / "more" / "clipped.wav", np.clip(8 * talk("en-us+m3")[0], -1, 1), 16000)
    phone = soxr.resample(soxr.resample(talk("en-gb-x-rp")[0], 16000, 8000), 8000, 48000)
    write(folder / "more" / "phone.wav", phone, 48000)
    write(folder / "more" / "silence.wav", noise(4, 1e-5), 16000)
    return folder


@pytest.fixture
def plugin(tmp_path) -> Path:
    path = tmp_path / "stages_of_mine.py"
    path.write_text(PLUGIN)
    return path


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def segments(podcasts: Path | str, to: Path, *stages: str, code: int = 0, options: tuple = ()) -> tuple[list, list]:
    """(records, rejects) of the command in this process."""
    flags = [word for stage in stages for word in ("--stage", stage)]
    arguments = ["prepare", "segments", str(podcasts), "--to", str(to), "--device", "cpu", *flags, *map(str, options)]
    assert main(arguments) == code
    return rows(to / "manifest.jsonl"), rows(to / "rejects.jsonl")


@pytest.fixture(scope="module")
def made(podcasts, tmp_path_factory) -> tuple[list[dict], list[dict], Path]:
    to = tmp_path_factory.mktemp("corpus") / "made"
    return *segments(podcasts, to), to


def test_what_is_kept_and_why_the_rest_is_not(made, podcasts):
    kept, rejects, to = made
    assert Counter(r["recording"] for r in kept) == {"a_clean.flac": 3, "more/german.ogg": 2}
    reasons = {(r["recording"], r["stage"], r["reason"]) for r in rejects if r["reason"] != "no_speech"}
    assert reasons == {
        ("b_again.mp3", "duplicates", "same_sound"),
        ("c_copy.wav", "duplicates", "same_samples"),
        ("more/noisy.wav", "quality", "noisy"),
        ("more/clipped.wav", "quality", "clipped"),
        ("more/phone.wav", "quality", "narrow"),
    }
    for reject in rejects:
        assert reject["recording"] in reject["id"] and reject["duration"] > 0
        if reject["reason"] in ("noisy", "narrow"):
            assert reject["value"] < reject["threshold"]
        if reject["reason"] == "clipped":
            assert reject["value"] > reject["threshold"] == 0.001
    again = [r for r in rejects if r["stage"] == "duplicates"]
    assert len(again) == 6 and all(r["duplicate_of"].startswith("a_clean.flac@") for r in again)
    summary = json.loads((to / "summary.json").read_text())
    assert [s["name"] for s in summary["stages"]] == ["vad", "quality", "duplicates"]
    assert summary["stages"][1]["dropped"]["noisy"]["count"] == 1 and summary["segments"] == 5
    assert not list(to.glob("*.part"))


def test_every_second_is_accounted_for(made, podcasts):
    kept, rejects, to = made
    seconds: dict[str, float] = defaultdict(float)
    for record in (*kept, *rejects):
        seconds[record["recording"]] += record["duration"]
    for name, total in seconds.items():
        assert total == pytest.approx(probe(podcasts / name).duration, abs=0.002)
    assert len(seconds) == len(list(AudioFolder(path=podcasts).cuts())) == 8
    summary = json.loads((to / "summary.json").read_text())
    assert summary["recorded_hours"] * 3600 == pytest.approx(sum(seconds.values()), abs=0.02)
    assert summary["hours"] * 3600 == pytest.approx(sum(r["duration"] for r in kept), abs=0.02)


def test_records_hold_whole_sentences_and_their_measures(made):
    kept, _, to = made
    spans = talk("en-us")[1] + talk("de")[1]
    for record, (start, end) in zip(kept, spans, strict=True):
        assert start - 0.4 < record["start"] < start and end < record["start"] + record["duration"] < end + 0.4
        assert (
            record["snr"] > 25 and record["bandwidth"] > 7000 and record["clipped"] == 0 and -40 < record["level"] < 0
        )
        assert record["offset"] == record["start"]
    cuts = list(Jsonl(path=to / "manifest.jsonl").cuts())
    assert [cut.id for cut in cuts] == [r["id"] for r in kept]


def test_the_page_says_and_plays_it(made):
    page = (made[2] / "corpus.html").read_text("utf-8")
    for text in (
        "From recordings to records",
        "same_sound",
        "a telephone&#39;s bandwidth",
        "Signal-to-noise ratio",
        "≥ 4500",
    ):
        assert text in page
    assert page.count("<audio") >= 5 + 5 and page.count("data:audio/mpeg") == page.count("<audio")
    assert "http" not in re.sub(r"data:[^\"]+", "", page).replace("http-equiv", "") and "<script" not in page
    assert len(page) < 6_000_000


def test_once_made_it_stays(made, podcasts, capsys):
    to = made[2]
    before = (to / "manifest.jsonl").read_bytes()
    segments(podcasts, to)
    assert "is already complete" in capsys.readouterr().out and (to / "manifest.jsonl").read_bytes() == before
    assert main(["prepare", "segments", str(podcasts), "--to", str(to), "--stage", "vad"]) == 2
    assert "has segments of other settings" in capsys.readouterr().err


def test_segments_as_files_are_the_same_sound(made, podcasts, tmp_path):
    kept, rejects, _ = made
    files, again = segments(podcasts, tmp_path / "flac", options=("--audio",))
    assert [r["id"] for r in files] == [r["id"] for r in kept] and again == rejects
    assert len(list((tmp_path / "flac" / "audio").rglob("*.flac"))) == len(kept)
    for file, record in zip(files, kept, strict=True):
        assert "start" not in file and file["offset"] == record["start"]
        audio = read(tmp_path / "flac" / file["audio_path"])
        part = read(record["audio_path"], start=record["start"], duration=record["duration"])
        assert len(audio) == len(part) and np.abs(audio - part).max() < 1e-3


def test_made_up_texts_and_other_languages(podcasts, tmp_path, plugin):
    german, english = SENTENCES["de"][0], SENTENCES["en-us"]
    texts = {
        "a_clean.flac@0": english[0],
        "a_clean.flac@5": "and then and then and then and then and then and then and then and then",
        "a_clean.flac@6": "and then and then and then and then and then and then and then and then",
        "a_clean.flac": "Subtitles by the Amara.org community",
        "b": "Hm.",
        "c_copy.wav@0": " ".join(text for texts in SENTENCES.values() for text in texts),
        "c_copy.wav@1": "Thank you for watching!",
        "c_copy.wav": "no, no, no, we should meet again on Monday morning at nine",
        "more/german.ogg@0": german,
        "more/german.ogg": "Thanks, that is all we had for you today, and see you around.",
    }
    told = "told,texts={" + ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in texts.items()) + "}"
    stages = ("vad", "quality", told, "hallucinations", "language,languages=[en,de]", "language,languages=[en]")
    kept, rejects = segments(podcasts, tmp_path / "out", *stages, options=("--plugin", plugin))
    reasons = [(r["id"][:12], r["reason"]) for r in rejects if r["stage"] not in ("vad", "quality")]
    assert sorted(reasons) == sorted(
        [
            ("a_clean.flac", "loop"),
            ("a_clean.flac", "known_phrase"),
            *[("b_again.mp3@", "too_slow")] * 3,
            ("c_copy.wav@0", "too_fast"),
            ("c_copy.wav@1", "known_phrase"),
            ("more/german.", "other_language"),
        ]
    )
    loop = next(r for r in rejects if r["reason"] == "loop")
    assert (loop["value"], loop["threshold"]) == (8, 4)
    assert next(r for r in rejects if r["reason"] == "other_language")["stage"] == "language-2"
    assert len(kept) == 3 and {r["text_language"] for r in kept} == {"en"}
    assert all(3 < r["speaking_rate"] < 30 and r["confidence"] == 0.9 for r in kept)
    unsure = told.replace("told,", "told,confidence=0.2,")
    kept, rejects = segments(
        podcasts, tmp_path / "unsure", "vad", "quality", unsure, "hallucinations", code=3, options=("--plugin", plugin)
    )
    assert not kept and any(r["reason"] == "unsure_text" and r["value"] == 0.2 for r in rejects)
    assert "No text" not in (tmp_path / "unsure" / "corpus.html").read_text()


def test_language_by_the_audio_and_agreement_of_recognisers(podcasts, tmp_path, whisper):
    """The weights are random: what counts is what is passed on and what is done with it."""
    alone = f"type=audio_folder,path={podcasts / 'more'},limit=1"
    hears = f"language,model={whisper},min_probability=null"
    writes = f"transcribe,model={whisper}"
    kept, rejects = segments(alone, tmp_path / "a", "vad", hears, writes, f"agreement,model={whisper}")
    texts = [r for r in (*kept, *rejects) if r.get("text")]
    assert texts and all(0 < r["language_probability"] <= 1 and r["language"] for r in texts)
    assert all(r["disagreement"] == 0 and r["second_text"] == r["text"] and 0 < r["confidence"] < 1 for r in kept)
    languages = {r["language"] for r in texts}
    only = f"language,model={whisper},languages=[{min({'cy', 'en', 'de', 'fr'} - languages)}],min_probability=null"
    _, rejects = segments(alone, tmp_path / "b", "vad", only, code=3)
    assert {r["value"] for r in rejects if r["reason"] == "other_language"} == languages
    _, rejects = segments(alone, tmp_path / "c", "vad", f"language,model={whisper},min_probability=0.999", code=3)
    assert {r["reason"] for r in rejects if r["stage"] == "language"} == {"unsure_language"}


def test_what_cannot_be_read_is_counted_and_listed(podcasts, tmp_path, capsys):
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "good.flac").symlink_to(podcasts / "a_clean.flac")
    (folder / "broken.wav").write_bytes(b"RIFF0000WAVE")
    soundfile.write(folder / "nothing.wav", np.zeros(0), 16000)
    kept, rejects = segments(folder, tmp_path / "out", "vad", code=3)
    assert len(kept) == 3 and "2 of 3 records cannot be used" in capsys.readouterr().err
    unread = {r["recording"]: (r["reason"], r["message"]) for r in rejects if r["stage"] == "read"}
    assert unread.keys() == {"broken.wav", "nothing.wav"} and unread["broken.wav"][0] == "unreadable"
    assert unread["nothing.wav"][0] == "empty" and unread["nothing.wav"][1].endswith("nothing.wav has no samples.")
    assert "broken.wav" in (tmp_path / "out" / "corpus.html").read_text()
    assert main(["prepare", "segments", str(tmp_path / "nothing"), "--to", str(tmp_path / "x")]) == 3
    (tmp_path / "empty").mkdir()
    assert main(["prepare", "segments", str(tmp_path / "empty"), "--to", str(tmp_path / "x")]) == 3
    assert "is no folder of a known layout" in capsys.readouterr().err


def test_parts_of_recordings_and_stereo(podcasts, tmp_path):
    """A manifest names a part of one channel; what is kept lies in it."""
    audio, spans = talk("en-us")
    soundfile.write(tmp_path / "stereo.wav", np.stack([noise(len(audio) / 16000), audio], 1), 16000)
    start = spans[1][0] - 0.6
    record = {"id": "part", "audio_path": "stereo.wav", "start": start, "duration": 6.0, "channel": 1, "language": "en"}
    (tmp_path / "m.jsonl").write_text(json.dumps(record) + "\n")
    kept, _ = segments(tmp_path / "m.jsonl", tmp_path / "out", "vad")
    assert [(r["audio_path"], r["channel"], r["language"]) for r in kept] == [(str(tmp_path / "stereo.wav"), 1, "en")]
    assert spans[1][0] - 0.4 < kept[0]["start"] < spans[1][0]
    (cut,) = Jsonl(path=tmp_path / "out" / "manifest.jsonl").cuts()
    from stentor.data.load_audio import load_audio

    assert np.square(load_audio(cut)).mean() > 1e-3


def test_a_known_text_stays_with_all_of_its_speech(podcasts, tmp_path):
    """Of a record that is cut, nobody knows which part is said where."""
    clean = podcasts / "a_clean.flac"
    whole = {"id": "whole", "audio_path": str(clean), "duration": probe(clean).duration, "text": "three sentences"}
    (_, end), (start, _) = talk("en-us")[1][:2]
    one = {**whole, "id": "one", "duration": (end + start) / 2, "text": SENTENCES["en-us"][0]}
    (tmp_path / "m.jsonl").write_text(json.dumps(whole) + "\n" + json.dumps(one) + "\n")
    kept, rejects = segments(tmp_path / "m.jsonl", tmp_path / "cut", "vad")
    assert [(r["recording"], r.get("text")) for r in kept] == [("whole", None)] * 3 + [("one", one["text"])]
    assert rejects and all("text" not in r for r in rejects)
    kept, _ = segments(tmp_path / "m.jsonl", tmp_path / "measured", "quality")
    assert [r["text"] for r in kept] == [whole["text"], one["text"]]


def test_music_is_no_speech_to_silero(podcasts, tmp_path, shared_data):
    pytest.importorskip("onnxruntime", reason="needs the extra `vad`: pip install 'stentor[vad]'")
    model = next((shared_data / "weights" / "silero_vad").glob("*.onnx"))
    time_axis = np.arange(6 * 16000) / 16000
    chord = sum(np.sin(2 * np.pi * f * time_axis) for f in (220.0, 277.2, 329.6)) * (1 + np.sin(4 * np.pi * time_axis))
    folder = tmp_path / "music"
    folder.mkdir()
    write(folder / "music.wav", np.concatenate([0.1 * chord, talk("en-us")[0]]).astype(np.float32), 16000)
    kept, _ = segments(folder, tmp_path / "out", f"vad,detector={model}")
    assert kept and min(r["start"] for r in kept) > 6.0


def test_the_stage_of_the_page_works(podcasts, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "corpus.md").read_text("utf-8")
    plugin = tmp_path / "my_stages.py"
    plugin.write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    (tmp_path / "two").mkdir()
    write(tmp_path / "two" / "tone.wav", (0.3 * np.sin(np.arange(48000) / 8)).astype(np.float32), 16000)
    (tmp_path / "two" / "speech.flac").symlink_to(podcasts / "a_clean.flac")
    kept, rejects = segments(tmp_path / "two", tmp_path / "out", "steady,min_change=0.02", options=("--plugin", plugin))
    assert [r["recording"] for r in kept] == ["speech.flac"] and kept[0]["change"] > 0.02
    assert [(r["recording"], r["reason"]) for r in rejects] == [("tone.wav", "steady")]
    assert rejects[0]["value"] == rejects[0]["change"] < rejects[0]["threshold"] == 0.02
