"""Simulated conversations: what is labelled is what is heard, and everything is a function of (seed, number)."""

import itertools
import json
import os
import random

import numpy as np
import pytest

from data_plans import dataset, facts, starts_at
from stentor.audio.io import write
from stentor.audio.synth import say
from stentor.config.load import Mistakes, parse_source
from stentor.data import load_audio as load_audio_module
from stentor.data.activity import join_spans, loud_spans, speech_spans
from stentor.data.cut import UnusableRecord, record_from_cut, segments_of, text_of, words_of
from stentor.data.load_audio import load_audio, load_record
from stentor.dataloading.section import Data
from stentor.errors import DataError
from stentor.sources.base import Source
from stentor.sources.conversation import Conversation
from stentor.sources.turn_taking import TurnStatistics, estimate

SYNTH = {"type": "synth", "texts": "sentences", "count": 12, "voices": {"count": 4}}
QUIET = {"noise": None, "level": [-20, -20], "level_change": [0, 0]}


def source(**keys):
    return Conversation.model_validate({"source": SYNTH, "count": 4, **keys})


def listed(**keys):
    return [c for c in source(**keys).cuts() if not isinstance(c, UnusableRecord)]


def activity(cut, step=0.01):
    """bool [frames, speakers] by the labels."""
    names = sorted({s["speaker"] for s in segments_of(cut)})
    frames = np.zeros((round(cut.duration / step), len(names)), bool)
    for s in segments_of(cut):
        frames[round(s["start"] / step) : round(s["end"] / step), names.index(s["speaker"])] = True
    return frames


@pytest.fixture(scope="module")
def plain():
    return listed(count=12, **QUIET)


def assert_heard_as_labelled(cut):
    audio, speech = load_audio(cut), np.repeat(activity(cut).any(1), 160)
    assert audio.dtype == np.float32 and len(audio) == round(cut.duration * 16000)
    # Margins around the words are all that sounds beside the labels, and words differ in loudness.
    assert np.mean(audio[~speech] ** 2) < 0.01 * np.mean(audio[speech] ** 2)
    # What is not labelled as silence is loud: a label where nobody speaks would be a hole here.
    blocks = len(audio) // 8000
    spoken = speech[: blocks * 8000].reshape(blocks, -1).all(1)
    assert (np.sqrt(np.mean(audio[: blocks * 8000].reshape(blocks, -1) ** 2, axis=1))[spoken] > 0.01).all()


def test_what_is_labelled_is_what_is_heard(plain):
    for cut in plain[:4]:
        assert_heard_as_labelled(cut)


def test_words_lie_within_their_speakers_segments(plain):
    for cut in plain:
        assert words_of(cut)
        for word in words_of(cut):
            assert any(s["start"] - 2e-3 <= word["start"] and word["end"] <= s["end"] + 2e-3 for s in segments_of(cut))
        assert len(words_of(cut)) == len(text_of(cut).split())


def test_turn_taking_keeps_its_rules(plain):
    for cut in plain:
        frames = activity(cut)
        assert frames.shape[1] in (2, 3, 4)
        # Nobody talks over himself: the turns of a speaker do not overlap before they are merged either.
        by_speaker = {}
        for track in cut.tracks:
            for s in track.cut.supervisions:
                by_speaker.setdefault(s.speaker, []).append((track.offset + s.start, track.offset + s.end))
        for spans in by_speaker.values():
            assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(sorted(spans)))
    assert any((activity(c).sum(1) > 1).any() for c in plain)
    assert {activity(c).shape[1] for c in plain} == {2, 3, 4}


def test_the_same_conversation_everywhere(plain):
    again = listed(count=5, **QUIET)
    assert [c.to_dict() for c in again] == [c.to_dict() for c in plain[:5]]
    assert np.array_equal(load_audio(again[3]), load_audio(plain[3]))
    marks = {c.id.rpartition("-")[2] for c in plain}
    assert len(marks) == 1 and [c.id.rpartition("-")[0] for c in plain[:2]] == [
        "conversation-0-00000",
        "conversation-0-00001",
    ]
    other = listed(count=2, seed=1, **QUIET)
    assert [segments_of(c) for c in other] != [segments_of(c) for c in plain[:2]]


def test_other_conversations_have_other_ids(plain):
    """Also with the same seed, as training and test data have it; a part of a source keeps its ids."""
    ids = {c.id for c in plain}
    assert ids >= {c.id for c in listed(count=3, limit=2, repeat=2.0, **QUIET)}
    assert not ids & {c.id for c in listed(count=3, **{**QUIET, "speakers": 2})}


@pytest.mark.parametrize("keys", [QUIET, {"reverb": {"p": 1.0}, "noise": {"builtin": ["hum", "brown"], "p": 1.0}}])
def test_a_window_sounds_like_that_part_of_the_whole(keys):
    cut = listed(count=1, seconds=70, **keys)[0]
    audio = load_audio(cut)
    window = cut.truncate(offset=25.0, duration=12.0, preserve_id=True)
    # After the echo of what was said before the window.
    assert np.abs(load_audio(window)[16000:] - audio[416000:592000]).max() < 1e-6
    inner = [s for s in segments_of(cut) if s["start"] > 25 and s["end"] < 37]
    assert inner and all(
        any(abs(s["start"] - 25 - t["start"]) < 1e-5 and s["speaker"] == t["speaker"] for t in segments_of(window))
        for s in inner
    )


def test_levels_noise_and_rooms():
    still = {"speakers": 1, "seconds": None, "turns": [1, 1], "level": [-30, -30], "level_change": [0, 0], "count": 2}
    for cut in listed(noise=None, **still):
        assert len({s["speaker"] for s in segments_of(cut)}) == 1
        (track,) = cut.tracks[:-1]
        first, last = round(track.offset * 16000), round((track.offset + track.cut.duration) * 16000)
        assert 10 * np.log10(np.mean(load_audio(cut)[first:last] ** 2)) == pytest.approx(-30, abs=0.1)
    noisy = listed(noise={"builtin": ["pink"], "snr": [10, 10], "p": 1.0}, **still)[0]
    clean = listed(noise=None, **still)[0]
    noise = load_audio(noisy)[: round(clean.duration * 16000)] - load_audio(clean)
    assert 10 * np.log10(np.mean(noise**2)) == pytest.approx(-40, abs=0.2)
    wet = listed(noise=None, reverb={"rt60": [0.5, 0.5], "p": 1.0}, **still)[0]
    (track,) = wet.tracks[:-1]
    last = round((track.offset + track.cut.duration) * 16000)
    # It echoes after the same turn, and before it nothing is heard.
    assert segments_of(wet) == segments_of(clean)
    assert (
        np.abs(load_audio(wet)[last + 800 : last + 3200]).max() > 1e-4 > np.abs(load_audio(clean)[last:]).max(initial=0)
    )
    assert np.abs(load_audio(wet)[: round(track.offset * 16000)]).max(initial=0) == 0


def test_rooms_and_noise_from_files(tmp_path):
    response = np.zeros(4000, np.float32)
    response[[100, 3000]] = 0.8, 0.4
    for i in range(3):
        write(tmp_path / "rooms" / f"{i}.wav", response, 16000)
    write(tmp_path / "noise.wav", np.random.default_rng(0).normal(0, 0.1, 8000), 16000)
    config = {
        "count": 1,
        "speakers": 3,
        "reverb": {"paths": [str(tmp_path / "rooms")], "simulated": False, "p": 1.0},
        "noise": {"paths": [str(tmp_path / "noise.wav")], "snr": [20, 20], "p": 1.0},
    }
    (cut,) = listed(**config)
    rooms = {
        t.cut.supervisions[0].speaker: t.cut.custom["mixed_turn"]["room"]["path"]
        for t in cut.tracks
        if t.cut.supervisions
    }
    assert len(set(rooms.values())) == len(rooms) == 3  # one impulse response for each speaker
    echo = load_audio_module.apply_room_and_level(
        np.eye(1, 100, dtype=np.float32)[0], {"level": -20.0, "room": {"path": rooms.popitem()[1]}}, 16000
    )
    assert np.argmax(echo) == 0 and np.argmax(echo[1:]) == 2899  # the direct sound keeps its time
    assert len(load_audio(cut)) == 320000
    # The record of it holds all that is needed to hear it again.
    record = json.loads(json.dumps(record_from_cut(cut)))
    assert np.abs(load_record(record) - load_audio(cut)).max() < 1e-3
    window = cut.truncate(offset=6.0, duration=5.0)
    assert np.abs(load_record(json.loads(json.dumps(record_from_cut(window)))) - load_audio(window)).max() < 1e-3


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Clips of two speakers with pauses, without word times: (manifest, when speech is heard in each)."""
    folder = tmp_path_factory.mktemp("clips")
    lines, truth = [], {}
    for i in range(6):
        speech = [
            say("where did you put the other key", voice=["en-us", "en+f3"][i % 2], speed=150 + i).audio for _ in "ab"
        ]
        gap = np.zeros(round(16000 * (0.3 if i < 3 else 0.9)), np.float32)
        audio = np.concatenate([np.zeros(8000, np.float32), speech[0], gap, speech[1], np.zeros(8000, np.float32)])
        audio += np.random.default_rng(i).normal(0, 0.0003, len(audio)).astype(np.float32)
        write(folder / f"{i}.wav", audio, 16000)
        lines.append({"id": str(i), "audio_path": f"{i}.wav", "duration": len(audio) / 16000, "speaker": "ab"[i % 2]})
        end = 0.5 + len(speech[0]) / 16000
        truth[str(i)] = (0.5, end, end + len(gap) / 16000, len(audio) / 16000 - 0.5)
    (folder / "clips.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder / "clips.jsonl", truth


def test_speech_is_found_by_its_energy(clips):
    manifest, truth = clips
    for cut in parse_source(str(manifest)).cuts():
        runs = join_spans(speech_spans(cut), 0.2)
        assert len(runs) == 2
        assert np.allclose([t for run in runs for t in run], truth[cut.id], atol=0.1)
    assert loud_spans(np.zeros(100, np.float32), 16000) == []


def test_turns_without_word_times_are_labelled_by_energy_and_cut_at_pauses(clips, tmp_path, monkeypatch):
    manifest, truth = clips
    config = {
        "source": {"type": "jsonl", "path": str(manifest)},
        "speakers": 2,
        "count": 6,
        "turn": [0.5, 6.0],
        "cache": str(tmp_path / "speech.json"),
        **QUIET,
    }
    cuts = listed(**config)
    durations = {k: v[3] - v[0] for k, v in truth.items()}
    seen = set()
    for cut in cuts:
        audio = load_audio(cut)
        assert np.mean(audio[~np.repeat(activity(cut).any(1), 160)] ** 2) < 0.02 * np.mean(audio**2)
        for track in cut.tracks[:-1]:
            inner = [b.start - a.end for a, b in itertools.pairwise(track.cut.supervisions)]
            assert all(pause >= 0.5 for pause in inner)
            seen.add((len(inner), track.cut.duration < 0.75 * min(durations.values())))
    # Long pauses split the labels, and clips were cut in two at their pauses.
    assert {(1, False), (0, True)} <= seen
    # What is no cache is neither read nor written over.
    other = tmp_path / "other.json"
    other.write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(DataError, match=r"other\.json: this is not the cache of a `conversation` source"):
        listed(**{**config, "cache": str(other)})
    # The second listing reads no audio: the file remembers.
    monkeypatch.setattr("stentor.data.activity.loud_spans", lambda *a: pytest.fail("listened again"))
    assert [c.to_dict() for c in listed(**config)] == [c.to_dict() for c in cuts]
    # ... but of files that were changed since.
    heard = []
    monkeypatch.setattr("stentor.data.activity.loud_spans", lambda *a: heard.append(a) or loud_spans(*a))
    changed = manifest.parent / "1.wav"
    os.utime(changed, (1, 1))
    assert [c.to_dict() for c in listed(**config)] == [c.to_dict() for c in cuts]
    assert len(heard) == 1


def test_utterances_that_cannot_be_used_are_counted(clips, tmp_path):
    manifest, _ = clips
    write(tmp_path / "short.wav", np.full(1600, 0.1), 16000)
    write(tmp_path / "hush.wav", np.concatenate([np.full(800, 0.3), np.zeros(32000)]), 16000)
    (tmp_path / "broken.wav").write_bytes(b"RIFFnonsense" * 40)
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    for line in lines:
        line["audio_path"] = str(manifest.parent / line["audio_path"])
    lines += [
        {"id": "short", "audio_path": "short.wav", "duration": 0.1, "speaker": "a"},
        {"id": "nobody", "audio_path": "hush.wav", "duration": 2.05},
        {"id": "hush", "audio_path": "hush.wav", "duration": 2.05, "speaker": "a"},
        {"id": "broken", "audio_path": "broken.wav", "duration": 2.0, "speaker": "b"},
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    config = {"source": {"type": "jsonl", "path": str(tmp_path / "m.jsonl")}, "speakers": 2, "count": 6}
    left = {u.id: u.reason for u in source(**config).cuts() if isinstance(u, UnusableRecord)}
    assert left == {"short": "too_short", "nobody": "no_speaker", "hush": "too_short", "broken": "unreadable"}
    # A cache of speech knows what was heard, not what was refused: that hangs on `turn`, and files are mended.
    config["cache"] = str(tmp_path / "speech.json")

    def refused(**turn):
        cuts = source(**config, **turn).cuts()
        return {u.id for u in cuts if isinstance(u, UnusableRecord) and u.reason in ("too_short", "unreadable")}

    left = refused(turn=(4.5, 6.0))
    assert left == refused(turn=(4.5, 6.0)) > {"short", "hush", "broken"}
    (tmp_path / "broken.wav").write_bytes((manifest.parent / "1.wav").read_bytes())
    assert refused(turn=(0.5, 6.0)) == {"short", "hush"}
    with pytest.raises(
        DataError, match=r"Conversations of 3 speakers need as many in the jsonl source; it has 2 .*1 no_s"
    ):
        list(source(**{**config, "speakers": [2, 3]}).cuts())


def test_every_speaker_is_heard_and_the_numbers_follow_their_weights():
    cuts = listed(count=60, speakers=[1, 4], noise=None, speaker_weights=[1, 3], seconds=30)
    counts = [len({s["speaker"] for s in segments_of(c)}) for c in cuts]
    assert counts.count(4) + counts.count(1) >= 58
    assert 35 <= counts.count(4) <= 54
    turns = listed(seconds=None, turns=[6, 6], speakers=3, statistics={"backchannel": 0.0}, noise=None)
    assert all(len(c.tracks) == 7 for c in turns) and len({c.duration for c in turns}) == len(turns)
    lengths = [c.duration for c in listed(seconds=[5, 9], count=8, noise=None)]
    assert min(lengths) >= 5 and max(lengths) <= 9 and len(set(lengths)) == 8


def test_averages_of_turn_taking_are_kept():
    statistics = {"same_speaker": 0.0, "overlap_share": 0.0, "gap": 0.5, "backchannel": 0.0}
    cuts = listed(count=10, seconds=60, statistics=statistics, noise=None)
    ordered = [segments_of(c) for c in cuts]
    gaps = [b["start"] - a["end"] for s in ordered for a, b in itertools.pairwise(s) if a["speaker"] != b["speaker"]]
    assert min(gaps) > -1e-3 and 0.35 < np.mean(gaps) < 0.65
    statistics = {"same_speaker": 0.0, "overlap_share": 1.0, "overlap": 0.4, "backchannel": 0.0}
    cuts = listed(count=10, seconds=60, statistics=statistics, noise=None)
    shared = [activity(c).sum(1) for c in cuts]
    assert np.mean([(n > 1).sum() / (n > 0).sum() for n in shared]) > 0.06
    assert max(n.max() for n in shared) == 2


def test_turn_taking_is_estimated_from_an_rttm(tmp_path):
    rng = random.Random(0)
    segments, end, speaker = [], 0.0, "a"
    for i in range(400):
        shift = rng.expovariate(2) if rng.random() < 0.7 else -rng.uniform(0, 0.5)
        segments.append({"speaker": speaker, "start": end + shift + 1, "end": end + shift + 3})
        end += shift + 2
        if i % 5 == 0:
            segments.append({"speaker": "c", "start": end + 0.1, "end": end + 0.5})
        speaker = "b" if speaker == "a" else "a"
    segments.sort(key=lambda s: s["start"])
    sampler = estimate({"talk": segments}, tmp_path)
    assert sampler.overlap_share == pytest.approx(0.3, abs=0.06) and sampler.same_speaker == 0
    assert np.mean(sampler.gap) == pytest.approx(0.5, abs=0.1) and max(sampler.overlap) <= 0.5
    assert sampler.backchannel == pytest.approx(0.2, abs=0.05)
    shifts = [sampler.shift(False, rng) for _ in range(4000)]
    assert np.mean([s < 0 for s in shifts]) == pytest.approx(sampler.overlap_share, abs=0.03)
    assert np.mean([s for s in shifts if s >= 0]) == pytest.approx(np.mean(sampler.gap), abs=0.08)
    (tmp_path / "x.rttm").write_text("SPEAKER a 1 1.0 2.0 <NA> <NA> ann <NA> <NA>\n")
    with pytest.raises(DataError, match="has only 0 changes of speaker"):
        listed(statistics=str(tmp_path / "x.rttm"))
    assert TurnStatistics().sampler().shift(True, rng) > 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"turns": [2, 3]}, "`seconds` or after `turns`: give one"),
        ({"seconds": None}, "`seconds` or after `turns`: give one"),
        ({"seconds": 0.2}, "lasts 0.5 s at least"),
        ({"speaker_weights": [1.0]}, "one weight for each number"),
        ({"speakers": 0}, "greater than or equal to 1"),
        ({"speakers": []}, "at least 1 item"),
        ({"seconds": None, "turns": [0, 0]}, "in fewer than 4 turns not all of 4 `speakers` are heard"),
        ({"seconds": None, "turns": [2, 5], "speakers": [2, 3]}, "in fewer than 3 turns"),
        ({"noise": {"builtin": ["babble"]}}, "babble is made of one utterance"),
    ],
)
def test_configs_that_do_not_fit(keys, message):
    with pytest.raises(ValueError, match=message):
        source(**keys)


def test_what_is_played_faster_or_slower_is_another_speaker_and_labelled_as_it_is_heard():
    cuts = listed(count=4, seconds=12, speeds=[0.8, 1.0, 1.25], **QUIET)
    names = {s["speaker"] for cut in cuts for s in segments_of(cut)}
    assert {name.partition("@")[2] for name in names} == {"", "0.8", "1.25"}
    lengths = {"": [], "0.8": [], "1.25": []}
    for cut in cuts:
        assert_heard_as_labelled(cut)
        for track in cut.tracks[:-1]:
            for s in track.cut.supervisions:
                inside = [(w["start"], w["end"]) for w in words_of(track.cut)]
                assert all(-2e-3 <= a < b <= track.cut.duration + 2e-3 for a, b in inside)
                lengths[s.speaker.partition("@")[2]] += [(b - a) / len(s.text or "x") for a, b in inside]
    slow, plain, fast = (np.median(lengths[mark]) for mark in ("0.8", "", "1.25"))
    assert fast < plain < slow
    # From its record, as reports play it, it sounds the same.
    assert load_record(record_from_cut(cuts[0])) == pytest.approx(load_audio(cuts[0]), abs=1e-4)


def segments_in_order(lanes):
    return [segments_of(c) for lane in lanes for c in lane.cuts()]


def test_fresh_conversations_are_a_function_of_seed_and_epoch():
    fresh = source(fresh=True, count=6, **QUIET)
    assert fresh.streaming and not source().streaming
    epochs = {order: segments_in_order([fresh.lane(0, 1, order)]) for order in [(0, 0), (0, 1), (1, 0)]}
    assert len({json.dumps(s) for segments in epochs.values() for s in segments}) == 18
    other_process = source(fresh=True, count=6, **QUIET)
    assert segments_in_order([other_process.lane(0, 1, (0, 1))]) == epochs[0, 1]
    # Two lanes share an epoch; without an order they are the conversations of a source that is not fresh.
    parts = [segments_in_order([fresh.lane(number, 2, (1, 0))]) for number in range(2)]
    assert [parts[i % 2][i // 2] for i in range(6)] == epochs[1, 0]
    assert segments_in_order([fresh]) == segments_in_order([source(count=6, **QUIET)])


@pytest.mark.parametrize("taken", [3, 17])
def test_training_on_fresh_conversations_goes_on_where_it_stopped(taken):
    def plan():
        keys = {"type": "conversation", "source": SYNTH, "count": 8, "seconds": 5, "fresh": True}
        section = Data.model_validate({"train": [keys], "batch_tokens": 20, "lanes": 2})
        return dataset(section).batch_sampler(lambda cut, _: 10)

    first, later = plan(), plan()
    expected = facts(first.batches(), 24)
    assert len({name for _, items in expected for name, *_ in items}) == 48  # six epochs, and none came twice
    later.resume_at(starts_at(taken, first))
    assert facts(later.batches(index=taken), 24 - taken) == expected[taken:]


def test_the_command_line_and_plugins_see_it():
    assert Source.choices()["conversation"] is Conversation
    source = parse_source(
        "type=conversation,source={type: synth, texts: sentences},count=3,statistics.gap=1.5,noise=null"
    )
    assert source.statistics.gap == 1.5 and source.noise is None and source.source.texts == "sentences"
    with pytest.raises(Mistakes, match="statistics"):
        parse_source("type=conversation,source={type: synth},statistics.gab=1.5")
