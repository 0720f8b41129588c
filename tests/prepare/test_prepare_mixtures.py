"""`stentor prepare mixtures`: stored conversations are those of the source, also after a kill."""

import json
import signal

import numpy as np
import pytest

from stentor.commands.prepare import mixtures
from stentor.commands.prepare_options import MixturesOptions
from stentor.config.load import parse_source
from stentor.data.cut import UnusableRecord, segments_of
from stentor.data.load_audio import load_audio
from stentor.errors import AudioError, ConfigError, DataError, Stopped

SPEC = (
    "type=conversation,source={{type: jsonl, path: {corpus}/train.jsonl}},count={count},seconds=4,speakers=2,"
    "turn=[0.2, 3]"
)


@pytest.fixture
def spec(corpus, tmp_path):
    """A conversation source of two speakers out of the tiny corpus."""
    lines = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines):
        line |= {"speaker": "ab"[i % 2], "audio_path": str(corpus / line["audio_path"])}
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return lambda count=6: SPEC.format(corpus=tmp_path, count=count)


def prepare(data, to, jobs=1, config=None):
    mixtures.prepare_mixtures(MixturesOptions(data=data, to=to, config=config, jobs=jobs))


def records(folder):
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def test_what_is_stored_is_what_the_source_makes(spec, tmp_path, capsys):
    prepare(spec(), tmp_path / "out", jobs=2)
    cuts = list(parse_source(spec()).cuts())
    stored = list(parse_source(str(tmp_path / "out" / "manifest.jsonl")).cuts())
    assert [c.id for c in stored] == [c.id for c in cuts] and len(cuts) == 6
    for ours, theirs in zip(stored, cuts):
        assert np.abs(load_audio(ours) - load_audio(theirs)).max() < 1e-4
        assert len(segments_of(ours)) == len(segments_of(theirs))
        for a, b in zip(segments_of(ours), segments_of(theirs)):
            assert a["speaker"] == b["speaker"] and a["start"] == pytest.approx(b["start"], abs=1e-5)
    assert "parts" not in records(tmp_path / "out")[0] and records(tmp_path / "out")[0]["words"]
    by_rttm = {
        c.id: segments_of(c)
        for c in parse_source(f"type=rttm,path={tmp_path}/out/reference.rttm,audio={tmp_path}/out/audio").cuts()
    }
    assert by_rttm.keys() == {c.id for c in cuts}
    for cut in cuts:
        ends = [[s["start"], s["end"]] for s in segments_of(cut)]
        assert np.allclose([[s["start"], s["end"]] for s in by_rttm[cut.id]], ends, atol=2e-3)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["records"] == 6 and summary["hours"] == pytest.approx(24 / 3600, abs=1e-4)
    assert summary["speakers"] == 2 and summary["speakers_per_record"] == {"2": 6} and summary["speech_hours"] > 0
    assert "6 mixtures, 0.01 hours, 2 speakers" in capsys.readouterr().out
    prepare(spec(), tmp_path / "out")
    assert "is already complete. To create it again" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="has mixtures of other settings"):
        prepare(spec(7), tmp_path / "out")


def test_a_config_file_with_the_keys_of_a_source(spec, tmp_path):
    (tmp_path / "mix.yaml").write_text(
        f"type: conversation\nsource: {{type: jsonl, path: {tmp_path}/train.jsonl}}\n"
        "count: 2\nseconds: 4\nspeakers: 2\nturn: [0.2, 3]\n"
    )
    prepare(None, tmp_path / "by_file", config=tmp_path / "mix.yaml")
    prepare(spec(2), tmp_path / "by_spec")
    assert records(tmp_path / "by_file") == records(tmp_path / "by_spec")
    (tmp_path / "mix.yaml").write_text("type: conversation\ncount: 2\nspeaker: 2\n")
    with pytest.raises(
        ConfigError,
        match=r"mix.yaml:1: 'source' is missing(?s:.)*mix.yaml:3: unknown key 'speaker' \(did you mean 'speakers'",
    ):
        prepare(None, tmp_path / "x", config=tmp_path / "mix.yaml")


def test_it_goes_on_where_it_stopped(spec, tmp_path, monkeypatch, capsys):
    prepare(spec(), tmp_path / "straight")
    mixed = []
    real = mixtures.MixturesWorker._mix

    def mix(self, mixture):
        mixed.append(mixture.index)
        return real(self, mixture)

    def stopping(self, mixture):
        if len(mixed) == 3:
            signal.raise_signal(signal.SIGTERM)
        return mix(self, mixture)

    monkeypatch.setattr(mixtures.MixturesWorker, "_mix", stopping)
    with pytest.raises(Stopped, match=r"Stopped by SIGTERM; 3 of 6 mixtures are in .*Run the same command"):
        prepare(spec(), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.jsonl").exists()
    # A line that was being written, and audio that was lost.
    with open(tmp_path / "out" / "manifest.jsonl.part", "ab") as file:
        file.write(b'{"id": "conversation-0-00003", "rec')
    (lost,) = (tmp_path / "out" / "audio" / "0000").glob("conversation-0-00001-*.flac")
    lost.unlink()
    monkeypatch.setattr(mixtures.MixturesWorker, "_mix", mix)
    prepare(spec(), tmp_path / "out")
    assert mixed == [0, 1, 2, 1, 3, 4, 5]
    assert "Resuming: 2 of 6 mixtures are already done." in capsys.readouterr().out
    assert records(tmp_path / "out") == records(tmp_path / "straight")
    assert (tmp_path / "out" / "reference.rttm").read_text() == (tmp_path / "straight" / "reference.rttm").read_text()
    left = {p.name for p in (tmp_path / "out").iterdir()}
    assert left == {"audio", "manifest.jsonl", "reference.rttm", "summary.json"}


def test_what_cannot_be_mixed_is_counted_and_named(spec, tmp_path, monkeypatch):
    real = mixtures.load_audio

    def broken(cut, rate):
        raise AudioError(f"{cut.id} is broken.", "unreadable")

    with monkeypatch.context() as patch:
        patch.setattr("stentor.commands.prepare.mixtures.load_audio", broken)
        with pytest.raises(
            DataError, match=r"(?s)6 of 6 records cannot be used.*conversation-0-00000-[0-9a-f]{6} is broken"
        ):
            prepare(spec(), tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["dropped"]["unreadable"]["count"] == 6 and real is mixtures.load_audio
    monkeypatch.setattr(
        "stentor.sources.conversation.Conversation.records",
        lambda self: iter([UnusableRecord("a", "missing", "a is gone.")]),
    )
    with pytest.raises(DataError, match=r"(?s)1 of 1 records cannot be used.*a is gone"):
        prepare(spec(), tmp_path / "other")
