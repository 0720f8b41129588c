"""`stentor prepare tokens`: shards in the contract's format, the same bytes after a kill."""

import io
import json
import os
import re
import signal
import tarfile
from pathlib import Path

import numpy as np
import pytest

from stentor.audio.io import read, write
from stentor.cli import main
from stentor.commands.prepare.tokens import plan, worker
from stentor.commands.prepare.tokens.command import prepare_tokens
from stentor.commands.prepare.tokens.worker import NoisyPrompts
from stentor.commands.prepare_options import TokensOptions
from stentor.config.load import parse_source
from stentor.data.codec_tokens import has_codes, load_codes
from stentor.data.cut import UnusableRecord
from stentor.data.load_audio import load_audio
from stentor.errors import ConfigError, DataError, Stopped
from stentor.models.codecs.base import at_peak, open_codec
from stentor.pipeline.executor import device_names


@pytest.fixture
def few(monkeypatch):
    """Groups of two records, so that there is something to go on with."""
    monkeypatch.setattr(plan, "GROUP_ITEMS", 2)


@pytest.fixture
def prepare(corpus, codec, tmp_path):
    """Prepares the corpus (or other `data`) into a folder of a name."""

    def run(name="out", data=corpus / "train.jsonl", **options) -> Path:
        settings = {"codec": str(codec), "min_shards": 3, "device": "cpu", **options}
        prepare_tokens(TokensOptions(data=str(data), to=tmp_path / name, **settings))
        return tmp_path / name

    return run


@pytest.fixture
def manifest(corpus, tmp_path):
    """Writes a manifest of the corpus' clips with other keys."""

    def make(*records: dict) -> Path:
        lines = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
        clips = [{**lines[i], "audio_path": str(corpus / lines[i]["audio_path"]), **r} for i, r in enumerate(records)]
        path = tmp_path / "manifest.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in clips))
        return path

    return make


def labels(folder: Path) -> list[dict]:
    return [json.loads(line) for file in sorted(folder.glob("shard-*.jsonl")) for line in file.open()]


def members(folder: Path) -> dict[str, bytes]:
    files = {}
    for file in sorted(folder.glob("shard-*.tar")):
        with tarfile.open(file) as tar:
            files |= {member.name: tar.extractfile(member).read() for member in tar}
    return files


def errors(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "errors.jsonl").read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the one that says who made them."""
    return {
        str(f.relative_to(folder)): f.read_bytes().replace(str(folder).encode(), b"DIR")
        for f in folder.rglob("*")
        if f.is_file() and f.name != "settings.json"
    }


def test_format(manifest, codec, tmp_path, capsys):
    data = manifest({"language": "en", "speaker": "anna", "instruct": "female", "text_pinyin": "p"}, {}, {}, {}, {})
    to = tmp_path / "out"
    command = f"prepare tokens {data} --codec {codec} --to {to} --samples-per-shard 4 --min-shards 2 --device cpu"
    assert main(command.split()) == 0
    assert "kept         5  0.00 hours in 2 shards" in capsys.readouterr().out
    shards = [f"shard-00000{i}.{kind}" for i in range(2) for kind in ("jsonl", "tar")]
    lists = {"data.lst", "errors.jsonl", "settings.json", "summary.json"}
    assert {p.name for p in to.iterdir()} == lists | set(shards)
    samples, opened = labels(to), open_codec(str(codec))
    assert [f"{label['id']}.npy" for label in samples] == list(members(to))  # in the order of the tar
    assert sorted(label["id"] for label in samples) == [f"train{i}" for i in range(5)] != [x["id"] for x in samples]
    for label in samples:
        codes = np.load(io.BytesIO(members(to)[label["id"] + ".npy"]))
        audio = read(label["audio_path"], rate=16000)
        assert codes.dtype == np.int16 and codes.shape == (2, label["num_tokens"])
        assert label["audio_duration"] == pytest.approx(len(audio) / 16000)
        assert np.array_equal(codes, opened.encode([audio / np.abs(audio).max() * np.float32(0.9)])[0])
    first = next(label for label in samples if label["id"] == "train0")
    assert first["language_id"] == first["language"] == "en" and first["speaker"] == "anna"
    assert first["instruct"] == "female" and first["text_pinyin"] == "p" and first["words"] and first["text"]
    tar, jsonl, count, seconds = (to / "data.lst").read_text().splitlines()[0].split(" ")
    assert (tar, jsonl, count) == (f"{to}/shard-000000.tar", f"{to}/shard-000000.jsonl", "2")
    assert float(seconds) == pytest.approx(sum(label["audio_duration"] for label in samples[:2]), abs=1e-3)
    summary = json.loads((to / "summary.json").read_text())
    assert summary["tokens"] == sum(label["num_tokens"] for label in samples) and summary["samples"] == 5
    seconds = {code: sum(x["audio_duration"] for x in samples if x.get("language", "") == code) for code in ("en", "")}
    assert summary["languages"] == {c: pytest.approx(s / 3600, abs=1e-6) for c, s in seconds.items() if s}
    assert errors(to) == []


def test_what_is_written_is_read(prepare, corpus, codec):
    """By the source `shards`: listed, and as a stream in more lanes than shards."""
    to = prepare()
    opened = open_codec(str(codec))
    originals = {cut.id: cut for cut in parse_source(str(corpus / "train.jsonl")).cuts()}
    cuts = list(parse_source(f"type=shards,path={to}").cuts())
    assert sorted(cut.id for cut in cuts) == sorted(originals) and len(list(to.glob("*.tar"))) == 3
    for cut in cuts:
        assert has_codes(cut) and cut.duration == pytest.approx(originals[cut.id].duration, abs=1e-3)
        audio = load_audio(originals[cut.id], 16000)
        assert np.array_equal(load_codes(cut), opened.encode([at_peak(audio)])[0])
        assert cut.supervisions[0].text == originals[cut.id].supervisions[0].text
    stream = parse_source(f"type=shards,path={to}/data.lst,stream=true")
    lanes = stream.num_shards(8)
    dealt = [cut.id for number in range(lanes) for cut in stream.lane(number, lanes, (0, 0)).cuts()]
    assert sorted(dealt) == sorted(originals)


def test_shards_follow_the_seed_and_the_sizes(prepare):
    orders = [[label["id"] for label in labels(prepare(f"seed{seed}", seed=seed))] for seed in (0, 1)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    assert [int(line.split()[2]) for line in (prepare("fives", samples_per_shard=5) / "data.lst").open()] == [4] * 4
    assert len(list(prepare("many", min_shards=100).glob("*.tar"))) == 16


def test_going_on_after_a_signal(prepare, tmp_path, monkeypatch, capsys, few):
    """What was being made is finished; what a kill leaves behind is cut off; the result is that of a straight run."""
    straight = contents(prepare("straight"))
    done = []
    real = worker.TokensWorker.process

    def stopping(self, group):
        done.append(group.id)
        if len(done) == 5:
            signal.raise_signal(signal.SIGTERM)
        return real(self, group)

    with monkeypatch.context() as patch:
        patch.setattr(worker.TokensWorker, "process", stopping)
        with pytest.raises(Stopped, match=r"Stopped by SIGTERM; what is done is in .*/out\. Run the same command"):
            prepare()
    out = tmp_path / "out"
    assert done == ["0/0+2", "0/2+2", "0/4+1", "1/0+2", "1/2+2"] and len(list(out.glob("shard-*.tar"))) == 1
    part, journal = out / ".shard-000001.tar.part", out / "tokens.part"
    with part.open("ab") as tar, journal.open("ab") as lines:
        tar.write(b"half a member")
        lines.write(b'{"id": "1/4+1", "en')
    monkeypatch.setattr(worker.TokensWorker, "process", lambda self, group: done.append(group.id) or real(self, group))
    prepare()
    assert done[5:] == ["1/4+1", "2/0+2", "2/2+2", "2/4+2"] and contents(out) == straight
    assert "Resuming: 9 of 16 records are already done." in capsys.readouterr().out
    prepare()
    assert "out is complete; delete it" in capsys.readouterr().out and len(done) == 9


@pytest.mark.parametrize("size", [None, 2048, 0])
def test_going_on_before_a_shard_had_its_name(prepare, tmp_path, monkeypatch, few, size):
    """Killed when a shard was made and not yet named; the journal is not believed beyond what is left of the tar."""
    straight = contents(prepare("straight"))
    done = []
    real = worker.TokensWorker.process
    with monkeypatch.context() as patch:
        patch.setattr("stentor.commands.prepare.tokens.shards.ShardWriter._finish", None)
        with pytest.raises(TypeError):
            prepare()
    (part,) = (tmp_path / "out").glob(".shard-*.part")
    if size is not None:
        os.truncate(part, size)
    monkeypatch.setattr(worker.TokensWorker, "process", lambda self, group: done.append(group.id) or real(self, group))
    out = prepare()
    again = {None: [], 2048: ["0/2+2", "0/4+1"], 0: ["0/0+2", "0/2+2", "0/4+1"]}[size]
    assert done == [*again, "1/0+2", "1/2+2", "1/4+1", "2/0+2", "2/2+2", "2/4+2"] and contents(out) == straight


def test_what_cannot_be_used_is_named(manifest, prepare, tmp_path, capsys):
    quiet = tmp_path / "quiet.wav"
    write(quiet, np.zeros(16000, np.float32), 16000)
    short = tmp_path / "short.wav"
    write(short, np.full(100, 0.1, np.float32), 16000)
    data = manifest(
        {},
        {"id": "gone", "audio_path": "gone.wav", "duration": 1.0},
        {"id": "mute", "text": " "},
        {"id": "long", "duration": 90.0},
        {"id": "quiet", "audio_path": str(quiet)},
        {"id": "short", "audio_path": str(short)},
    )
    with pytest.raises(DataError, match=r"(?s)4 of 6 records cannot be used\. The first are:.*mute has no text"):
        prepare(data=data, max_seconds=60)
    reasons = {error["id"]: error["reason"] for error in errors(tmp_path / "out")}
    reasons_of_use = {"gone": "missing", "mute": "empty_text", "long": "too_long"}
    assert reasons == {**reasons_of_use, "quiet": "silent", "short": "too_short"}
    assert [label["id"] for label in labels(tmp_path / "out")] == ["train0"]
    assert re.search(r"dropped: too_long +1\n", capsys.readouterr().out)
    # What was asked for is no fault of the data; a shard without samples is not listed.
    to = prepare("asked", min_seconds=0.6, max_seconds=1.2)
    left = len(errors(to))
    assert 0 < left < 16 and {e["reason"] for e in errors(to)} <= {"too_short", "too_long"}
    with pytest.raises(DataError, match=r"No record could be used; .*errors\.jsonl says why"):
        prepare("none", min_seconds=100)
    assert (tmp_path / "none" / "data.lst").read_text() == ""


def test_ids_become_names(manifest, prepare, monkeypatch):
    to = prepare(data=manifest({"id": "a/b.c"}, {"id": "a_b_c"}, {"id": "d e"}, {"id": "x" * 200}, {"id": "größe+1"}))
    names = {label.get("source_id", label["id"]): label["id"] for label in labels(to)}
    assert names["a_b_c"] == "a_b_c" and names["d e"] == "d_e" and names["größe+1"] == "größe+1"
    assert names["a/b.c"].startswith("a_b_c-") and names["x" * 200] == "x" * 120
    assert {f"{name}.npy" for name in names.values()} == set(members(to))
    assert {cut.id for cut in parse_source(f"type=shards,path={to}").cuts()} == set(names.values())
    twice = [UnusableRecord(name, "missing", "x") for name in "abca"]
    monkeypatch.setattr("stentor.sources.manifest.Jsonl.records", lambda self: iter(twice))
    with pytest.raises(DataError, match=r"(?s)1 id\(s\) occur more than once.*'a': records 1, 4"):
        prepare("other")


def test_other_settings_are_refused(prepare, tmp_path, codec, corpus):
    prepare()
    for options, message in (
        ({"seed": 3}, "seed was 0 and is 3"),
        ({"min_shards": 4}, "min_shards was 3 and is 4"),
        ({"data": corpus / "dev.jsonl"}, "records was '16:"),
        ({"noisy_prompts": True}, "noisy_prompts was None"),
    ):
        with pytest.raises(ConfigError, match=f"out holds shards of other settings .*{message}.*give another folder"):
            prepare(**options)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "shard-000000.tar").touch()
    with pytest.raises(ConfigError, match="holds shards that this command did not make"):
        prepare("foreign")


def test_devices(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert device_names("auto") == ["cuda:0", "cuda:1", "cuda:2"] and device_names("cpu") == ["cpu"]
    assert device_names("cuda:0,2") == ["cuda:0", "cuda:2"]
    with pytest.raises(ConfigError, match="There is no device cuda:3"):
        device_names("cuda:0,3")


def test_noisy_prompts(prepare):
    to, clean = prepare(noisy_prompts=True), prepare("clean")
    before = {label["id"]: label for label in labels(clean)}
    noisy, plain = members(to), members(clean)
    for label in labels(to):
        assert label["num_tokens"] == before[label["id"]]["num_tokens"]
        share = label["clean_start_token_idx"] / label["num_tokens"]
        assert 0.05 < share <= 0.3
    assert sum(noisy[name] != plain[name] for name in plain) > 8  # the tiny codec hears not all of it


def test_a_noisy_beginning(tmp_path, corpus):
    """At the SNR that is asked for, and nowhere else; in a room where one is drawn; the same again."""
    speech, noise = read(corpus / "train2.wav", rate=16000), tmp_path / "noise.wav"
    write(noise, np.random.default_rng(0).uniform(-1, 1, 16000).astype(np.float32), 16000)
    hop, frames = 320, -(-len(speech) // 320)
    shares, levels, wet = [], [], 0
    for seed in range(40):
        noisy, start = NoisyPrompts((noise,)).apply(speech, frames, hop, 16000, np.random.default_rng(seed))
        again, _ = NoisyPrompts((noise,)).apply(speech, frames, hop, 16000, np.random.default_rng(seed))
        assert np.array_equal(noisy, again) and np.array_equal(noisy[start * hop :], speech[start * hop :])
        shares.append(start / frames)
        added, there = noisy[: start * hop] - speech[: start * hop], speech[: start * hop]
        snr = 10 * np.log10(np.mean(there**2) / np.mean(added**2))
        if 4.9 < snr < 15.1:
            levels.append(snr)
        else:
            wet += 1
    assert 0.08 < min(shares) < 0.14 and 0.26 < max(shares) <= 0.3
    assert len(levels) > 20 and min(levels) < 7 and max(levels) > 13 and wet > 3


def test_raw_audio(prepare, corpus):
    """FLAC members at their level, that the source reads as audio, and that are encoded to the same tokens later."""
    to = prepare("raw", codec="none", rate=16000)
    assert all(name.endswith(".flac") and data[:4] == b"fLaC" for name, data in members(to).items())
    originals = {cut.id: cut for cut in parse_source(str(corpus / "train.jsonl")).cuts()}
    cuts = list(parse_source(f"type=shards,path={to}").cuts())
    assert len(cuts) == 16 and "num_tokens" not in labels(to)[0]
    for cut in cuts:
        assert np.array_equal(load_audio(cut, 16000), load_audio(originals[cut.id], 16000))
    again = prepare("again", f"type=shards,path={to}")
    assert members(again).items() == members(prepare("straight")).items()


def test_a_codec_is_fitted_first(prepare, tmp_path, monkeypatch, few, capsys):
    from stentor.models.codecs.mel_rvq.config import MelRVQ

    fitted = []
    fit = MelRVQ.fit
    monkeypatch.setattr(MelRVQ, "fit", lambda self, *a: fitted.append(self) or fit(MelRVQ(entries=8, rounds=2), *a))
    real = worker.TokensWorker.process

    def stopping(self, group):
        if group.id == "1/0+2":
            signal.raise_signal(signal.SIGINT)
        return real(self, group)

    with monkeypatch.context() as patch:
        patch.setattr(worker.TokensWorker, "process", stopping)
        with pytest.raises(Stopped, match="Stopped by SIGINT"):
            prepare(codec="mel_rvq")
    out = prepare(codec="mel_rvq")
    assert len(fitted) == 1 and open_codec(str(out / "codec")).vocabulary == 8
    assert "mel_rvq is fitted on the data, into" in capsys.readouterr().out
    assert contents(out) == contents(prepare("straight", codec="mel_rvq"))
    facts = json.loads((out / "settings.json").read_text())["codec_found"]
    assert facts["type"] == "mel_rvq" and facts["codebooks"] == 4 and len(facts["sha256"]) == 64
