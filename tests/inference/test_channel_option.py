"""`--channel` of transcribe, align and diarize, `channel=` in Python, and nobody who talks in digital silence."""

import json

import numpy as np
import pytest
import soundfile

from stentor.inference.load import load

RATE = 16000


@pytest.fixture
def call(tone, tmp_path):
    """Both sides of a telephone call: -10 dB on the first, -20 dB on the second."""
    sides = [soundfile.read(tone(f"{level}.wav", (2, level)))[0] for level in (-10, -20)]
    path = tmp_path / "call.wav"
    soundfile.write(path, np.stack(sides, 1), RATE)
    return path


@pytest.mark.parametrize(("channel", "level"), [(0, 10), (1, 20)])
def test_transcribe_one_side(export, call, run, channel, level):
    folder = export(task="words")
    options = ("transcribe", folder, call, "--channel", channel)
    assert run(*options) == (0, f"level {level}\n", "")
    transcript = json.loads(run(*options, "--format", "json")[1])
    assert (transcript["text"], transcript["channel"]) == (f"level {level}", channel)
    code, out, _ = run(*options, "--words", "--format", "ctm")
    assert code == 0 and [line.split()[1] for line in out.splitlines()] == [str(channel + 1)] * 2
    audio, rate = soundfile.read(call)
    assert load(folder).transcribe(audio, rate, channel=channel).text == f"level {level}"
    (many,) = load(folder).transcribe_many([call.read_bytes()], channel=channel)
    assert many.text == f"level {level}"


def test_a_side_that_is_not_there(export, call, run):
    code, out, err = run("transcribe", export(), call, "--channel", 2)
    assert (code, out) == (3, "") and "has 2 channels, counted from 0: there is no channel 2" in err


@pytest.fixture
def film(tone, tmp_path):
    """Two audio tracks: -10 dB, and in German -20 dB."""
    av = pytest.importorskip("av")
    path = tmp_path / "film.mka"
    with av.open(str(path), "w") as container:
        streams = [container.add_stream("pcm_s16le", rate=RATE, layout="mono") for _ in range(2)]
        streams[1].metadata.update(language="deu", title="Ton")
        for stream, level in zip(streams, (-10, -20)):
            audio = soundfile.read(tone(f"{level}.wav", (2, level)), dtype="int16")[0]
            frame = av.AudioFrame.from_ndarray(audio[None], layout="mono")
            frame.sample_rate, frame.pts = RATE, 0
            container.mux([*stream.encode(frame), *stream.encode(None)])
    return path


def test_one_of_several_tracks(export, film, run, caplog):
    options = ("transcribe", export(), film, "--format", "json")
    for track, level in ((0, 10), (1, 20)):
        transcript = json.loads(run(*options, "--track", track)[1])
        assert (transcript["text"], transcript["track"], "notes" in transcript) == (f"level {level}", track, False)
    transcript = json.loads(run(*options)[1])
    (note,) = transcript["notes"]
    assert "2 audio tracks: 0 (1 channel), 1 (deu, Ton, 1 channel); the first is used, --track takes another" in note
    assert caplog.messages == [f"{film}: {note}."] and transcript["text"] == "level 10"
    code, _, err = run(*options, "--track", 2)
    assert code == 3 and "film.mka has no audio track 2. It has 2 audio tracks: 0 (1 channel), 1 (deu, Ton, " in err


def test_align_one_side(call, run, monkeypatch):
    import stentor.commands.align as command
    from stentor.inference.align.base import Aligned, Word

    class Loud:
        rate = RATE

        def align(self, clips, transcribe=False):
            levels = [float(np.abs(clip.recording.read(0, clip.samples)).max()) for clip in clips]
            return [Aligned([Word("one", 0.0, 1.0, level)]) for level in levels]

    monkeypatch.setattr(command, "open_aligner", lambda *arguments: Loud())
    code, out, _ = run("align", "model", call, "one", "--channel", 1)
    answer = json.loads(out)
    assert code == 0 and (answer["words"][0]["confidence"], answer["channel"]) == (pytest.approx(0.1, abs=0.005), 1)


def test_diarize_one_side(diarizer, talk, tmp_path, run):
    sides = [soundfile.read(talk(f"{k}.wav", 6, [(k, 1.0 + k, 4.0)]))[0] for k in (0, 1)]
    soundfile.write(tmp_path / "call.wav", np.stack(sides, 1), RATE)
    model = diarizer()
    code, out, _ = run("diarize", model, tmp_path / "call.wav", "--channel", 1)
    assert (code, out) == (0, "SPEAKER call 2 2.000 2.000 <NA> <NA> speaker_1 <NA> <NA>\n")
    result = load(model).diarize(tmp_path / "call.wav", channel=0)
    assert (
        result["channel"] == 0 and result.rttm("call") == "SPEAKER call 1 1.000 3.000 <NA> <NA> speaker_1 <NA> <NA>\n"
    )


@pytest.fixture
def hears_somebody_everywhere(tones, monkeypatch):
    """Models of `tones` to which one voice speaks all the time."""
    import torch

    from stentor.models.transformer.modeling import FrameOutput

    def load_deaf(folder, trainable=False):
        bundle = original(folder, trainable)

        def label_frames(features, lengths):
            logits = torch.full((len(features), features.shape[1], 2), -3.0)
            logits[:, :, 0] = 3.0
            return FrameOutput(logits, None, lengths)

        bundle.model.label_frames = label_frames
        return bundle

    original = tones.load
    monkeypatch.setattr(tones, "load", staticmethod(load_deaf))


@pytest.mark.usefixtures("hears_somebody_everywhere")
@pytest.mark.parametrize("seconds", [3, 20])
def test_nobody_talks_in_digital_silence(diarizer, tmp_path, run, seconds):
    soundfile.write(tmp_path / "silence.wav", np.zeros(seconds * RATE), RATE)
    code, out, _ = run("diarize", diarizer(), tmp_path / "silence.wav", "--format", "json")
    result = json.loads(out)
    assert code == 0 and (result["speakers"], result["segments"], result["duration"]) == ([], [], seconds)


@pytest.mark.usefixtures("hears_somebody_everywhere")
def test_silence_ends_a_turn_and_a_short_pause_does_not(diarizer, talk, run):
    path = talk("a.wav", 30, [(0, 5.0, 8.0), (0, 8.3, 12.0)])
    code, out, _ = run("diarize", diarizer(), path, "--format", "json")
    (segment,) = json.loads(out)["segments"]
    assert code == 0 and (segment["start"], segment["end"]) == pytest.approx((5.0, 12.0), abs=0.2)
