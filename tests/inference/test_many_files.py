"""Many files at once: what is held of them, and outputs that cannot be written."""

import multiprocessing
import tracemalloc
import weakref
from functools import partial
from pathlib import Path

import pytest

from stentor.inference.recording import FileRecording

RATE = 16000
FILES = 300


@pytest.fixture
def alive(monkeypatch):
    """The file recordings that are held, counted whenever a new one is opened: the list of the counts."""
    recordings, counts = weakref.WeakSet(), []
    opened = FileRecording.__init__

    def count(self, *arguments):
        opened(self, *arguments)
        recordings.add(self)
        counts.append(len(recordings))

    monkeypatch.setattr(FileRecording, "__init__", count)
    return counts


@pytest.mark.parametrize("level", [-10, None])
@pytest.mark.long
def test_audio_is_held_until_its_transcript_is_there(export, tone, tmp_path, run, alive, level):
    """Of 300 files of 2 s (38 MB), as much as is gathered for batches (16 s), of speech or silence."""
    sound = tone("sound/0.wav", (2, level))
    for i in range(1, FILES):
        (sound.parent / f"{i}.wav").hardlink_to(sound)
    files = [sound.parent / f"{i}.wav" for i in range(FILES)]
    # The first one is speech, which the silent ones behind it wait for.
    files[0] = tone("first.wav", (2, -10))
    command = partial(run, "transcribe", export(), "--out", tmp_path / "out", "--batch-seconds", "1")

    def measure():
        assert command(files[0])[0] == 0  # what is imported is not counted
        tracemalloc.start()
        code, _, err = command(*files)
        peak = tracemalloc.get_traced_memory()[1]
        assert (code, err) == (0, "")
        assert len(alive) == FILES + 1 and max(alive) <= 10
        assert peak < 8e6

    # In a process of its own: what the threads of other tests hold in this one would be counted as well.
    process = multiprocessing.get_context("fork").Process(target=measure)
    process.start()
    process.join()
    assert process.exitcode == 0 and len(list((tmp_path / "out").glob("[!.]*"))) == FILES


def test_a_diarizer_holds_the_audio_of_one_file(run, tone, monkeypatch, alive):
    from types import SimpleNamespace

    from stentor.commands import diarize
    from stentor.inference.diarize import Diarization

    def answers(bundle, task, recordings, *_):
        for recording in recordings:
            yield Diarization(audio=recording.name, duration=1.0, segments=[{"speaker": "A", "start": 0.0, "end": 1.0}])

    bundle = SimpleNamespace(processor=SimpleNamespace(sample_rate=RATE))
    model = SimpleNamespace(bundle=bundle, for_diarization=lambda: None)
    monkeypatch.setattr("stentor.inference.load.load", lambda *_: model)
    monkeypatch.setattr(diarize, "with_speakers", lambda *_: None)
    monkeypatch.setattr(diarize, "diarize", answers)
    files = [tone(f"{name}.wav", (1, -10)) for name in "abcdef"]
    code, out, _ = run("diarize", "model", *files)
    assert code == 0 and [line.split()[1] for line in out.splitlines()] == list("abcdef")
    assert max(alive) <= 2


def test_one_output_that_cannot_be_written_does_not_stop_the_others(export, tone, tmp_path, run):
    files = [tone("a.wav", (1, -10)), tone(f"{'x' * 249}.wav", (1, -20)), tone("b.wav", (1, -30))]
    out = tmp_path / "out"
    code, _, err = run("transcribe", export(task="words"), *files, "--words", "--format", "textgrid", "--out", out)
    assert code == 3
    assert sorted(p.name for p in out.glob("[!.]*")) == ["a.TextGrid", "b.TextGrid"]
    lines = err.strip().splitlines()
    assert len(lines) == 2 and "xxx.TextGrid cannot be written: File name too long" in lines[0]
    assert "1 of 3 files could not be transcribed" in lines[1] and "the others are done" in lines[1]


@pytest.mark.parametrize("verb", ["transcribe", "diarize", "align"])
def test_a_folder_that_cannot_be_written_to_is_noticed_before_the_model_is_loaded(verb, tone, run):
    if not Path("/proc/self").is_dir():
        pytest.skip("there is no folder here that nobody can write to")
    more = ["one two"] if verb == "align" else []
    code, _, err = run(verb, "no_such_model", tone("a.wav", (1, -10)), *more, "--out", "/proc")
    assert code == 2 and err.startswith("stentor: The folder /proc of --out cannot be written to (")
