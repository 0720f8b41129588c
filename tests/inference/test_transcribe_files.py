"""`stentor transcribe` as a user runs it, and the batching behind it."""

import json
from functools import partial

import numpy as np
import pytest
import soundfile

from stentor.inference.load import load
from stentor.inference.recording import ArrayRecording, FileRecording
from stentor.inference.transcribe import batches

RATE = 16000


@pytest.fixture
def run(run):
    """Runs `stentor transcribe ...`."""
    return partial(run, "transcribe")


def test_several_files_keep_their_order_whatever_their_length(export, tone, run):
    files = [tone(f"{i}.wav", (seconds, -10 - i)) for i, seconds in enumerate((3, 1, 8, 2))]
    code, out, _ = run(export(), *files)
    assert code == 0
    assert out.splitlines() == [f"{file}\tlevel {10 + i}" for i, file in enumerate(files)]


def test_json_lines(export, tone, run):
    files = [tone("a.wav", (1, -10)), tone("b.wav", (2, -20), rate=8000)]
    code, out, _ = run(export(), *files, "--format", "json", "--language", "en")
    first, second = map(json.loads, out.splitlines())
    assert code == 0
    assert {"audio", "duration", "language", "text", "segments", "model"} == set(first)
    assert (first["audio"], first["language"], first["duration"]) == (str(files[0]), "en", 1.0)
    assert (second["text"], second["duration"]) == ("level 20", 2.0)


def test_files_in_a_folder(export, tone, tmp_path, run):
    files = [tone("x/a.wav", (1, -10)), tone("y/a.wav", (1, -20)), tone("b.wav", (1, -30))]
    out = tmp_path / "made" / "out"
    code, printed, _ = run(export(), *files, "--out", out, "--format", "json,txt,srt,vtt")
    assert (code, printed) == (0, "")
    assert sorted(p.name for p in out.glob("[!.]*")) == sorted(
        f"{stem}.{kind}" for stem in ("x_a", "y_a", "b") for kind in ("json", "txt", "srt", "vtt")
    )
    assert json.loads((out / "y_a.json").read_text())["text"] == "level 20"
    assert (out / "b.srt").read_text().startswith("1\n00:00:00,0")
    assert (out / "b.vtt").read_text().startswith("WEBVTT\n\n00:00:00.0")


def test_unreadable_files_are_named_and_the_others_done(export, tone, tmp_path, run):
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF not a wav file")
    files = [tone("a.wav", (1, -10)), broken, tmp_path / "missing.wav", tone("b.wav", (1, -20))]
    out = tmp_path / "out"
    code, _, err = run(export(), *files, "--out", out)
    assert code == 3
    assert sorted(p.name for p in out.glob("[!.]*")) == ["a.txt", "b.txt"]
    assert (out / "b.txt").read_text() == "level 20\n"
    lines = err.strip().splitlines()
    assert "broken.wav" in lines[0] and "missing.wav does not exist" in lines[1]
    assert "2 of 4 files could not be transcribed" in lines[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--words"], "has no word times: it was trained for the task transcribe"),
        (["--format", "srt", "--cues", "words"], "has no word times: it was trained for the task transcribe"),
        (["--words", "--cues", "words"], "--cues: only for subtitles, so add --format srt, vtt, ass, lrc or tsv"),
        (["--format", "srt", "--cues", "syllables"], "known: lines, words, segments."),
        (["--format", "srt", "--highlight-words"], "--highlight-words is for --format vtt, ass and lrc"),
        (["--format", "srt", "--max-cue-duration", "0.5"], "less than --min-cue-duration (default 1): lower"),
        (["--diarizer", "other"], "There is no model other"),
        (["--format", "docx"], "Unknown --format docx; known: json, txt, srt, vtt, ctm, textgrid"),
        (["--format", "json,srt"], "--out"),
        (["--format", "ctm"], "needs --words"),
        (["--device", "tpu9"], "Unknown device"),
        (["--vad", "no_such.onnx"], "--vad no_such.onnx: no such file"),
    ],
)
def test_wrong_usage(export, tone, run, options, message):
    code, out, err = run(export(), tone("a.wav", (1, -10)), *options)
    assert (code, out) == (2, "")
    assert message in err and len(err.strip().splitlines()) == 1


def test_an_output_folder_that_cannot_be_made(export, tone, tmp_path, run):
    (tmp_path / "file").write_text("")
    code, _, err = run(export(), tone("a.wav", (1, -10)), "--out", tmp_path / "file" / "out")
    assert code == 2 and "cannot be made" in err


def test_subtitles_of_several_files_need_a_folder(export, tone, run):
    code, _, err = run(export(), tone("a.wav", (1, -10)), tone("b.wav", (1, -10)), "--format", "srt")
    assert code == 2 and "--out" in err


def test_word_times_from_the_start_of_a_long_file(export, tone, tmp_path, run):
    # Tones at 5, 40 and 100 s of two minutes of silence; each window has a word from 0.1 to 0.4 s and one to its end.
    path = tone("long.flac", (5, None), (3, -10), (32, None), (4, -20), (56, None), (20, -30))
    out, folder = tmp_path / "out", export(task="words")
    model = load(folder)
    segments = model.transcribe(path).segments
    np.testing.assert_allclose([(s["start"], s["end"]) for s in segments], [(5, 8), (40, 44), (100, 120)], atol=0.1)
    lengths = [n for batch in model.bundle.model.batches for n in batch]
    assert max(lengths) <= 30 * RATE and sum(lengths) < 35 * RATE
    code, _, err = run(folder, path, "--words", "--out", out, "--format", "json,srt,vtt,ctm,textgrid")
    assert (code, err) == (0, "")
    assert sorted(p.name for p in out.glob("[!.]*")) == [f"long.{s}" for s in ("TextGrid", "ctm", "json", "srt", "vtt")]
    transcript = json.loads((out / "long.json").read_text())
    words = transcript["words"]
    assert [w["word"] for w in words] == ["level", "10", "level", "20", "level", "30"]
    spans = [(w["start"], w["end"]) for w in words]
    at = [4.85, 39.85, 99.85]  # a window begins up to 0.15 s before its speech
    starts = [t for a in at for t in (a + 0.1, a + 0.5)]
    np.testing.assert_allclose([s for s, _ in spans], starts, atol=0.1)
    np.testing.assert_allclose([spans[1][1], spans[3][1], spans[5][1]], [8.15, 44.15, 120], atol=0.1)
    times = [t for span in spans for t in span]
    assert times == sorted(times) and times[-1] <= transcript["duration"]
    assert (out / "long.ctm").read_text().splitlines()[2].split()[2] == f"{words[2]['start']:.3f}"


def test_words_of_neighbouring_windows_do_not_overlap(export, tone, monkeypatch):
    import torch

    path = tone("long.wav", (25, -10), (1, None), (25, -10), (1, None), (22, -20), (1, None), (21, -20))
    model = load(export(task="words"))

    def align(level, length, feature_lengths):
        """The first word before its window begins, the second beyond its end."""
        ends = length / RATE
        times = torch.stack([torch.stack([ends * 0 - 3, ends * 0 - 2], 1), torch.stack([ends, ends + 3], 1)], 1)
        return times, torch.ones(len(ends), 2), torch.zeros(len(ends), 2)

    monkeypatch.setattr(model.bundle.model, "align", align)
    words = model.transcribe(path).words
    times = [t for w in words for t in (w["start"], w["end"])]
    assert len(words) == 8 and times == sorted(times) and times[0] >= 0 and times[-1] <= 96


def test_cues_of_one_word_each(export, tone, run):
    code, out, _ = run(export(task="words"), tone("a.wav", (2, -10)), "--format", "srt", "--cues", "words")
    assert (code, out) == (0, "1\n00:00:00,100 --> 00:00:00,400\nlevel\n\n2\n00:00:00,500 --> 00:00:02,000\n10\n")


def test_subtitles_have_the_word_times_that_the_model_knows(export, tone, tmp_path, run):
    path, folder = tone("a.wav", (2, -10), (6, None), (2, -20)), export(task="words")
    rules = ["--max-line-width", "5", "--max-line-count", "1", "--highlight-words"]
    for name, options in (("plain", []), ("asked", ["--words"])):
        code, _, err = run(folder, path, "--out", tmp_path / name, "--format", "json,srt,vtt", *rules, *options)
        assert (code, err) == (0, "")
    plain, asked = ({p.name: p.read_text() for p in (tmp_path / name).iterdir()} for name in ("plain", "asked"))
    assert (plain["a.srt"], plain["a.vtt"]) == (asked["a.srt"], asked["a.vtt"])
    words = json.loads(asked["a.json"])["words"]
    starts = [float(line[6:12].replace(",", ".")) for line in plain["a.srt"].splitlines() if "-->" in line]
    assert starts == [word["start"] for word in words] and "<c>10</c>" in plain["a.vtt"]
    _, alone, _ = run(folder, path, "--format", "json")
    assert json.loads(plain["a.json"]) == json.loads(alone) and "words" not in alone


def test_a_window_with_more_words_than_it_can_hold_keeps_its_text(export, tone, monkeypatch, capsys):
    path = tone("long.flac", (5, None), (3, -10), (32, None), (4, -20))
    model = load(export(task="words"))
    monkeypatch.setattr(type(model.bundle.model.aligner), "points", lambda self, n: (n > 4 * RATE) * 10)
    transcript = model.transcribe(path)
    assert [s.get("failed") for s in transcript.segments] == [["no_room"], None]
    assert [w["word"] for w in transcript.words] == ["level", "20"]
    from stentor.inference.formats import to_srt

    assert "level 10" in to_srt(transcript) and "level 20" in to_srt(transcript)


def test_a_file_is_the_same_as_its_samples(export, tone):
    path = tone("long.wav", (50, -10), (1, None), (45.3, -20), rate=22050)
    audio, rate = soundfile.read(path)
    model = load(export())
    from_file, from_array = model.transcribe(path), model.transcribe(audio, rate=rate)
    assert from_file["segments"] == from_array["segments"]
    assert len(from_file["segments"]) == 4


def test_formats_that_only_ffmpeg_reads(export, tone, tmp_path):
    av = pytest.importorskip("av")
    wav = tone("a.wav", (40, -10), (5, None), (40, -20), rate=44100)
    audio, rate = soundfile.read(wav, dtype="float32")
    path = tmp_path / "a.m4a"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=rate, layout="mono")
        for at in range(0, len(audio), 1024):
            frame = av.AudioFrame.from_ndarray(audio[None, at : at + 1024], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = rate, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    model = load(export())
    transcript = model.transcribe(path)
    assert transcript["duration"] == pytest.approx(85, abs=0.1)
    levels = [int(s["text"].removeprefix("level ")) for s in transcript["segments"]]
    np.testing.assert_allclose(levels, [10, 10, 20, 20], atol=3)  # AAC overshoots at the ends
    starts = [s["start"] for s in transcript["segments"]]
    np.testing.assert_allclose([starts[0], starts[2]], [0, 45], atol=0.2)


def test_windows_of_all_files_share_batches(export):
    model = load(export())
    rng = np.random.default_rng(0)

    def syllables(seconds):
        time = np.arange(round(seconds * RATE)) / RATE
        return rng.uniform(-0.1, 0.1, len(time)) * (0.55 - 0.45 * np.cos(2 * np.pi * 4 * time))

    recordings = [
        ArrayRecording(syllables(seconds), RATE, RATE, f"{i}") for i, seconds in enumerate(rng.uniform(1, 10, 30))
    ]
    done = []
    transcripts = list(model.transcribe_many(recordings, batch_seconds=20, on_window=done.append))
    assert [t["audio"] for t in transcripts] == [str(i) for i in range(30)]
    lengths = model.bundle.model.batches
    assert sum(map(len, lengths)) == 30 and sum(done) == pytest.approx(sum(map(sum, lengths)) / RATE)
    assert all(max(batch) * len(batch) <= 20 * RATE for batch in lengths)
    padded = sum(max(batch) * len(batch) for batch in lengths)
    assert sum(map(sum, lengths)) / padded > 0.9


def test_first_transcripts_come_before_the_last_file_is_opened(export):
    model = load(export())
    opened = []

    def recordings():
        for i in range(200):
            opened.append(i)
            yield ArrayRecording(np.full(RATE * 10, 0.1) * np.sin(np.arange(RATE * 10)), RATE, RATE, str(i))

    transcripts = model.transcribe_many(recordings(), batch_seconds=20)
    assert next(transcripts)["audio"] == "0"
    assert len(opened) < 50
    assert [t["audio"] for t in transcripts] == [str(i) for i in range(1, 200)]


def test_batches_fill_the_budget():
    planned = list(batches([3, 9, 1, 4, 20, 5], lambda n: n, 12))
    assert planned == [[20], [9], [5, 4], [3, 1]]
    assert list(batches([], len, 5)) == []


def test_blocks_and_pieces_of_a_file_agree(tone):
    path = tone("a.flac", (130.7, -10), rate=RATE)
    recording = FileRecording(path, RATE)
    waveform = np.concatenate(list(recording.blocks()))
    assert len(waveform) == round(130.7 * RATE)
    np.testing.assert_allclose(recording.read(RATE * 59, RATE * 62), waveform[RATE * 59 : RATE * 62], atol=1e-4)
    assert max(len(block) for block in recording.blocks()) < 95 * RATE
