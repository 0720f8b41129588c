"""Whole recordings with segments out of corpora by name: miniatures laid out as their publishers unpack."""

import logging

import numpy as np
import pytest
import soundfile

from corpora_in_miniature import Sound, cuts_of, lay_out, recordings, rttm, samples, spans, unusable, utterances
from stentor.commands.prepare.corpus import prepare_corpus
from stentor.commands.prepare_options import CorpusOptions
from stentor.config.load import parse_source
from stentor.data.cut import UnusableRecord, field_of, segments_of, uem_of
from stentor.data.load_audio import load_audio
from stentor.errors import ConfigError, DataError


def ami(root, *meetings, microphones=("Headset-0", "Headset-1", "Array1-01", "Array1-02", "Mix-Headset")):
    """Meetings (id, seconds of silence before the first speaker) of two speakers each."""
    notes, files, listed = "ami_public_manual_1.6.2", {}, []
    for meeting, shift in meetings:
        speakers = ""
        for channel, (agent, name, start) in enumerate((("A", "MEE001", 0.5), ("B", "FEE002", 1.5))):
            start += shift
            speakers += f'<speaker nxt_agent="{agent}" global_name="{name}" channel="{channel}"/>'
            files[f"{notes}/segments/{meeting}.{agent}.segments.xml"] = (
                f'<root><segment transcriber_start="{start}" transcriber_end="{start + 1.5}"/></root>'
            )
            files[f"{notes}/words/{meeting}.{agent}.words.xml"] = (
                f'<root><w starttime="{start}" endtime="{start + 0.5}">hello</w>'
                f'<w starttime="{start + 0.6}" endtime="{start + 1.4}">there</w></root>'
            )
        listed.append(f'<meeting observation="{meeting}">{speakers}</meeting>')
        for number, microphone in enumerate(microphones):
            files[f"{meeting}/audio/{meeting}.{microphone}.wav"] = Sound(level=0.05 * (number + 1))
    files[f"{notes}/corpusResources/meetings.xml"] = f"<root>{''.join(listed)}</root>"
    return lay_out(root, files)


def level(cut):
    return np.std(load_audio(cut))


def test_ami_by_microphone_split_and_partition(tmp_path):
    root = ami(tmp_path / "ami", ("ES2002a", 0.0), ("ES2011a", 0.5), ("ES2004a", 1.0), ("IB4001", 0.2))
    for microphone, loud in {"sdm": 0.15, "ihm-mix": 0.25, "mdm": 0.175, "ihm": 0.075}.items():
        cuts = {c.id: c for c in cuts_of("ami", root, utterances=False, split="dev", options={"mic": microphone})}
        assert sorted(cuts) == ["ES2011a", "IB4001"], microphone
        assert spans(cuts["ES2011a"]) == [("MEE001", 1.0, 2.4), ("FEE002", 2.0, 3.4)], microphone
        assert level(cuts["ES2011a"]) == pytest.approx(loud, rel=0.05), microphone
    scenario = {"mic": "ihm-mix", "partition": "scenario-only"}
    assert list(recordings("ami", root, split="dev", options=scenario)) == ["ES2011a"]  # IB4001 is none of them
    assert recordings("ami", root, split="test")["ES2004a"][0] == ("MEE001", 1.5, 2.9)
    with pytest.raises(DataError, match="Mic sdn not supported"):
        recordings("ami", root, split="dev", options={"mic": "sdn"})
    with pytest.raises(ConfigError, match=r"no option 'micro'; it has: .*mic, partition"):
        recordings("ami", root, split="dev", options={"micro": "sdm"})
    with pytest.raises(DataError, match="set `split` to one of train, dev, test"):
        recordings("ami", root)


def test_ami_reads_what_is_there(tmp_path):
    """One part, one kind of microphone, the annotation beside the audio: all there is is read."""
    root = ami(tmp_path / "ami", ("ES2011a", 0.5), microphones=("Headset-0", "Headset-1"))
    (root / "ami_public_manual_1.6.2").rename(tmp_path / "ami_public_manual_1.6.2")
    assert recordings("ami", root) == {"ES2011a": [("MEE001", 1.0, 2.4), ("FEE002", 2.0, 3.4)]}
    assert utterances("ami", root, split="dev") == {"ES2011a-0-0": "HELLO THERE", "ES2011a-1-0": "HELLO THERE"}
    with pytest.raises(DataError, match=r"part 'train' of the corpus ami is not there; it has: dev"):
        recordings("ami", root, split="train")
    with pytest.raises(DataError, match=r"ami \(`from: .*/ami`\): there are no recordings with an annotation. The f.*"):
        recordings("ami", root, options={"mic": "sdm"})
    lay_out(root, {"ES2011b/audio/ES2011b.Headset-0.wav": 4.0})
    assert next(iter(unusable("ami", root))) == "ES2011b"
    silent = {c.id: field_of(c, "segments") for c in cuts_of("ami", root, utterances=False, empty=True)}
    assert silent == {"ES2011a": None, "ES2011b": []}


@pytest.mark.parametrize("microphone", [None, "ihm", "mdm"])
def test_prepared_manifests_keep_segments_and_utterances(tmp_path, microphone):
    root = ami(tmp_path / "ami", ("ES2011a", 0.5))
    options = {} if microphone is None else {"mic": microphone}
    for whole in (True, False):
        to = tmp_path / f"to-{whole}"
        given = [f"{key}={value}" for key, value in options.items()]
        prepare_corpus(CorpusOptions(name="ami", to=to, source=root, recordings=whole, option=given))
        prepared = {c.id: c for c in parse_source(str(to / "dev.jsonl")).cuts()}
        there = {c.id: c for c in cuts_of("ami", root, utterances=not whole, options=options)}
        assert {k: segments_of(v) for k, v in prepared.items()} == {k: segments_of(v) for k, v in there.items()}
        for name, cut in prepared.items():
            np.testing.assert_allclose(load_audio(cut), load_audio(there[name]), atol=1e-4)


def test_voxconverse(tmp_path):
    """As its three archives unpack, and as lhotse downloads it."""
    notes = {
        f"{part}/{name}.rttm": rttm(name, (0.5, 2.0, "spk00"), (2.0, 1.5, "spk01"))
        for part, name in (("dev", "abcde"), ("test", "fghij"), ("test", "klmno"))
    }
    audio = {"audio/abcde.wav": 4.0, "voxconverse_test_wav/fghij.wav": 4.0, "voxconverse_test_wav/klmno.wav": 4.0}
    unpacked = lay_out(tmp_path / "a", {f"voxconverse-master/{k}": v for k, v in notes.items()} | audio)
    there = [("spk00", 0.5, 2.5), ("spk01", 2.0, 3.5)]
    assert recordings("voxconverse", unpacked, split="dev") == {"abcde": there}
    assert recordings("voxconverse", unpacked, split="test") == {"fghij": there, "klmno": there}
    lhotse = lay_out(tmp_path / "b", notes | {name.replace(".rttm", ".wav"): 4.0 for name in notes})
    assert recordings("VoxConverse", lhotse, split="test") == {"fghij": there, "klmno": there}
    # The option of lhotse's recipe: the published test part halved.
    assert list(recordings("voxconverse", lhotse, split="dev", options={"split_test": True})) == ["fghij"]
    (unpacked / "audio" / "abcde.wav").unlink()
    lay_out(unpacked, {"audio/other.wav": 4.0, "voxconverse_test_wav/zzzzz.wav": 4.0})
    assert unusable("voxconverse", unpacked, split="dev")["abcde"][0] == "missing"
    assert unusable("voxconverse", unpacked, split="test")["zzzzz"][0] == "no_segments"
    lay_out(unpacked, {"copy/fghij.wav": 3.0})
    assert unusable("voxconverse", unpacked, split="test")["fghij"][0] == "ambiguous"


def test_msdwild(tmp_path):
    files = {f"rttms/{part}.rttm": rttm(name, (0.0, 1.5, "0"), (1.0, 2.0, "1"), channel=0) for part, name in MSDWILD}
    root = lay_out(tmp_path, files | {f"wav/{name}.wav": 4.0 for _, name in MSDWILD})
    for splits in (("few_train", "few_val", "many_val"), ("train", "val", "test")):
        for split, (_, name) in zip(splits, MSDWILD):
            assert recordings("msdwild", root, split=split) == {name: [("0", 0.0, 1.5), ("1", 1.0, 3.0)]}
    # The annotation in a folder of its own, and the name that TS-DIA has.
    (root / "rttms").rename(tmp_path / "notes")
    (root / "wav").rename(tmp_path / "w")
    options = {"annotations": str(tmp_path / "notes")}
    assert list(recordings("mswild", tmp_path / "w", split="many_val", options=options)) == ["00003"]


MSDWILD = (("few.train", "00001"), ("few.val", "00002"), ("many.val", "00003"))


def test_ava_avd(tmp_path):
    """Clips of a video: as AVA-AVD's script cuts them, with its table of offsets, on the grid, and out of the video."""
    lines = {
        name: rttm(name, (at + 0.5, 1.0, "spk00"), (at + 1.0, 2.0, "spk01"))
        for name, at in (("V_c_01", 900), ("V_c_02", 1200), ("W_c_01", 900), ("X_c_01", 900), ("Y_c_01", 0))
    }
    root = lay_out(
        tmp_path,
        {f"dataset/rttms/{name}.rttm": text for name, text in lines.items()}
        | {
            "dataset/split/train.list": "V_c_01\nV_c_02\n",
            "dataset/split/val.list": "W_c_01\nZ_c_01\n",
            "dataset/split/test.list": "X_c_01\nY_c_01\n",
            "dataset/split/offsets.txt": "V_c_02 1200.25\n",
            "dataset/waves/V_c_01.wav": 2.5,  # from the first segment to the last
            "dataset/waves/V_c_02.wav": 4.0,
            "dataset/denoised_waves/V_c_02.wav": 4.0,
            "dataset/waves/Y_c_01.wav": 4.0,
            "dataset/waves/X_c_01.wav": 4.0,
            "dataset/videos/W.wav": Sound(904.0, rate=1000),
        },
    )
    assert recordings("ava_avd", root, split="train") == {
        "V_c_01": [("spk00", 0.0, 1.0), ("spk01", 0.5, 2.5)],
        "V_c_02": [("spk00", 0.25, 1.25), ("spk01", 0.75, 2.75)],
    }
    grid = [("spk00", 0.5, 1.5), ("spk01", 1.0, 3.0)]
    assert recordings("AVA-AVD", root / "dataset", split="test") == {"X_c_01": grid, "Y_c_01": grid}
    clip, bad = cuts_of("ava_avd", root, split="dev", utterances=False)
    for part in ("train", "val", "test"):
        (root / f"dataset/split/{part}.list").unlink()
    assert sorted(recordings("ava_avd", root)) == ["V_c_01", "V_c_02", "W_c_01", "X_c_01", "Y_c_01"]
    assert (clip.id, clip.start, clip.duration) == ("W_c_01", 900.5, 2.5)
    assert spans(clip) == [("spk00", 0.0, 1.0), ("spk01", 0.5, 2.5)] and len(load_audio(clip)) == 40000
    assert (bad.id, bad.reason) == ("Z_c_01", "no_segments") and "Z_c_01.rttm does not exist" in bad.message


def voices(*segments):
    return [{"start_time": start, "end_time": end} for start, end in segments]


def test_ego4d(tmp_path):
    def clip(name, **keys):
        wearer = {"person_id": "0", "camera_wearer": True, "voice_segments": voices((0.25, 1.25))}
        persons = [wearer, {"person_id": "1", "camera_wearer": False, "voice_segments": voices((1.0, 3.0))}]
        span = {"video_uid": "video", "video_start_sec": 2.0, "video_end_sec": 6.0}
        return {"clip_uid": name, "valid": True, **span, "camera_wearer": wearer, "persons": persons, **keys}

    clips = [clip("own"), clip("part"), clip("bad", valid=False), clip("quiet", camera_wearer=None, persons=[])]
    root = lay_out(
        tmp_path,
        {
            "v2/annotations/av_train.json": {"version": "2.0", "videos": [{"video_uid": "video", "clips": clips}]},
            "v2/annotations/av_val.json": {"videos": [{"clips": [clip("gone", video_uid="none")]}]},
            "v2/annotations/av_test_unannotated.json": {"videos": [{"clips": [{"clip_uid": "test"}]}]},
            "v2/clips/own.wav": 4.0,
            "v2/full_scale/video.wav": 8.0,
        },
    )
    own, part, bad, quiet = cuts_of("ego4d", root, split="train", utterances=False)
    assert spans(own) == spans(part) == [("0", 0.25, 1.25), ("1", 1.0, 3.0)]
    assert (own.start, own.duration) == (0.0, 4.0) and (part.start, part.duration) == (2.0, 4.0)
    assert (bad.reason, quiet.reason) == ("no_segments", "no_segments")
    assert field_of(cuts_of("ego4d", root, split="train", empty=True, utterances=False)[3], "segments") == []
    assert unusable("ego4d", root, split="val")["gone"][0] == "missing"


def test_librimix(tmp_path):
    name = "4077-13754-0001_5142-33396-0065"
    split = "Libri2Mix/wav16k/max/dev"
    root = lay_out(tmp_path, {f"{split}/mix_clean/{name}.wav": 3.0, f"{split}/s1/{name}.wav": 3.0})
    (root / split / "s2").mkdir()
    padded = samples(Sound((2.0, 3.0)))[:, 0]
    soundfile.write(root / split / "s2" / f"{name}.wav", padded, 16000)
    assert recordings("librimix", root) == {name: [("5142", 0.0, 2.0), ("4077", 0.0, 3.0)]}
    lay_out(root, {f"Libri2Mix/wav8k/min/dev/mix_clean/{name}.wav": 2.0})
    assert list(recordings("librimix", root, options={"rate": "16k"})) == [name]
    with pytest.raises(DataError, match=r"there are .*wav16k/max, .*wav8k/min: choose one with `options: \{n_src"):
        recordings("librimix", root)
    assert unusable("librimix", root, options={"mode": "min"})[name][0] == "missing"


def test_libriheavy_mix(tmp_path):
    def cut(name, source):
        recording = {"id": name, "sources": [{"type": "file", "channels": [0], "source": source}]}
        recording |= {"sampling_rate": 16000, "num_samples": 64000, "duration": 4.0, "channel_ids": [0]}
        heard = [("a", 0.0, 2.0), ("b", 1.5, 2.0)]
        supervisions = [
            {"id": f"{name}-{i}", "recording_id": name, "start": at, "duration": d, "channel": 0, "speaker": who}
            for i, (who, at, d) in enumerate(heard)
        ]
        keys = {"id": name, "start": 0, "duration": 4.0, "channel": 0, "supervisions": supervisions}
        return {**keys, "recording": recording, "type": "MonoCut"}

    root = lay_out(
        tmp_path,
        {
            "dev-lhotse/lsheavymix_cuts_dev_2spk_snr_aug_mono_rir_fixed.jsonl.gz": [
                cut("m1", "/data/dev_2spk/m1.flac"),
                cut("m2", "/data/dev_2spk/m2.flac"),
            ],
            "dev-lhotse/lsheavymix_cuts_dev_2spk.jsonl.gz": [cut("dry", "/data/dev_2spk/dry.flac")],
            "small/3spk/lsheavymix_cuts_dev_3spk_snr_aug_mono.jsonl.gz": [cut("m1", "/data/dev_3spk/m1.flac")],
            "audio/dev_2spk/m1.flac": 4.0,
            "small/3spk/audio/audio/dev_3spk/m1.flac": 4.0,
        },
    )
    (m1, m2) = cuts_of("libriheavy_mix", root, split="dev_2spk", utterances=False)
    assert spans(m1) == [("a", 0.0, 2.0), ("b", 1.5, 3.5)] and len(load_audio(m1)) == 64000
    assert "audio/dev_2spk" in m1.recording.sources[0].source and m2.reason == "missing"
    (other,) = cuts_of("LibriheavyMix", root, options={"dataset_parts": "small", "speaker_counts": [3]})[:1]
    assert "small/3spk" in other.recording.sources[0].source


def tier(name, start, end):
    """A TextGrid of one tier with one interval."""
    return (
        'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\nxmax = 4\ntiers? <exists>\nsize = 1\n'
        f'item []:\nitem [1]:\nclass = "IntervalTier"\nname = "{name}"\nxmin = 0\nxmax = 4\nintervals: size = 1\n'
        f'intervals [1]:\nxmin = {start}\nxmax = {end}\ntext = "\u4f60\u597d"\n'
    )


def test_aishell4_and_alimeeting(tmp_path, monkeypatch):
    session = "20200616_M_R001S01C01"
    aishell = {f"test/wav/{session}.flac": Sound((4.0, 4.0)), f"test/TextGrid/{session}.TextGrid": tier("001-M", 1, 3)}
    assert recordings("AISHELL-4", lay_out(tmp_path / "a", aishell)) == {session: [("SPK0001", 1.0, 3.0)]}
    far, near = "Eval_Ali/Eval_Ali_far", "Eval_Ali/Eval_Ali_near"
    ali = lay_out(
        tmp_path / "b",
        {
            f"{far}/audio_dir/R8001_M8004_MS801.wav": Sound((4.0,) * 8),
            f"{far}/textgrid_dir/R8001_M8004.TextGrid": tier("R8001_M8004_F_SPK8013", 1, 3),
            f"{near}/audio_dir/R8001_M8004_F_SPK8013.wav": 4.0,
            f"{near}/textgrid_dir/R8001_M8004_F_SPK8013.TextGrid": tier("R8001_M8004_F_SPK8013", 1, 3),
        },
    )
    for microphone in ("far", "mdm", "sdm"):
        assert recordings("alimeeting", ali, options={"mic": microphone}) == {"R8001_M8004": [("8013", 1.0, 3.0)]}
        (cut,) = cuts_of("alimeeting", ali, utterances=False, options={"mic": microphone})
        assert level(cut) == pytest.approx(0.1 if microphone == "sdm" else 0.1 / np.sqrt(8), rel=0.05), microphone
    for microphone in ("near", "ihm"):
        heard = recordings("ali_meeting", ali, split="eval", options={"mic": microphone})
        assert heard == {"R8001_M8004_F_SPK8013": [("8013", 1.0, 3.0)]}
    monkeypatch.setattr("stentor.errors.installed", lambda module: False)
    missing = r"aishell4 needs textgrid, which is not installed: pip install 'stentor\[corp"
    with pytest.raises(ConfigError, match=missing):
        recordings("aishell4", tmp_path / "a")


def test_callhome(tmp_path):
    key = rttm("iaaa", (0.5, 1.0, "A"), (1.0, 2.0, "B")) + rttm("iaab", (0.0, 1.0, "A"))
    audio = {f"r65_8_1/{name}.sph": Sound(4.0, rate=8000) for name in ("iaaa", "iaab")}
    root = lay_out(tmp_path, audio | {"sre2000-key/fullref.rttm": key})
    expected = {"iaaa": [("A", 0.5, 1.5), ("B", 1.0, 3.0)], "iaab": [("A", 0.0, 1.0)]}
    assert recordings("callhome_english", root) == expected
    (root / "sre2000-key").rename(tmp_path / "key")
    given = {"rttm_dir": str(tmp_path / "key")}
    assert recordings("callhome_english", root / "r65_8_1", options=given) == expected


def test_chime6(tmp_path):
    files = {}
    for session in ("S02", "S09"):
        said = [
            {"speaker": who, "start_time": f"0:00:0{a}.00", "end_time": f"0:00:0{b}.00", "words": "hi [noise]"}
            for who, a, b in (("P05", 1, 2), ("P06", 2, 3))
        ]
        files[f"CHiME6/transcriptions/dev/{session}.json"] = said
        for microphone, channels in (("U01.CH1", 1), ("U01.CH2", 1), ("P05", 2), ("P06", 2)):
            loud = 0.2 if microphone == "P05" else 0.1
            files[f"CHiME6/audio/dev/{session}_{microphone}.wav"] = Sound((4.0,) * channels, loud)
    root = lay_out(tmp_path, files)
    expected = [("P05", 1.0, 2.0), ("P06", 2.0, 3.0)]
    for microphone in ("mdm", "ihm"):
        assert recordings("chime6", root, options={"mic": microphone}) == {"S02": expected, "S09": expected}
    (root / "CHiME6/transcriptions/dev/S09.json").unlink()  # what is not there is left out
    first = cuts_of("CHiME-6", root, split="dev", options={"mic": "ihm"})[0]
    assert field_of(first, "speaker") == "P05" and level(first) == pytest.approx(0.2 / np.sqrt(2), rel=0.05)


def test_dihard_with_its_uem(tmp_path):
    def part(kind):
        name = f"DH_{kind}_0001"
        return {
            f"data/flac/{name}.flac": 4.0,
            f"data/rttm/{name}.rttm": rttm(name, (0.5, 2.0, "S1")),
            f"data/uem/{name}.uem": f"{name} 1 0.25 3.75\n",
            "docs/recordings.tbl": f"head\n{name} True eng meeting x 1 2 3 4\n",
        }

    both = {"LDC2020E12": part("DEV"), "LDC2021E02": part("EVAL")}
    root = lay_out(tmp_path / "ldc", {f"{disc}/{k}": v for disc, files in both.items() for k, v in files.items()})
    for split, name, disc in (("dev", "DH_DEV_0001", "LDC2020E12"), ("eval", "DH_EVAL_0001", "LDC2021E02")):
        for keys in ({"folder": root, "split": split}, {"folder": root / disc}):
            for _ in range(2):  # prepared, then from the folder `to`
                (cut,) = cuts_of("dihard3", **keys, utterances=False, to=str(tmp_path / disc / str(len(keys))))
                assert (cut.id, spans(cut), uem_of(cut)) == (name, [("S1", 0.5, 2.5)], [[0.25, 3.75]])
    old = {k.replace("data/", "LDC2019E31/data/single_channel/"): v for k, v in part("DEV").items()}
    (cut,) = cuts_of("dihard2", lay_out(tmp_path / "old", old), utterances=False)
    assert (cut.id, spans(cut), uem_of(cut)) == ("DH_DEV_0001", [("S1", 0.5, 2.5)], [[0.25, 3.75]])


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("ego4d", {}, r"The corpus ego4d \(`from: .*\): there is no annotation in .*av_train.json"),
        (
            "chime6",
            {"split": "dev"},
            r"corpus chime6 .* failed: IndexError: list index out of range \(chime6.py:\d+: a",
        ),
        ("displace", {}, r"has no recipe for DISPLACE; load its RTTM files directly: \{type: rttm"),
        ("ego4d", {"options": {"subset": "av"}}, "ego4d has no option 'subset'; it has: annotations"),
        ("msdwild", {"download": True}, "lhotse cannot download msdwild: get it from its publishers"),
        ("dihart", {}, "did you mean .*dihard"),
        ("ami", {"from": "gone"}, r"corpus ami \(`from: .*/gone`\): .*does not exist.*MEETING.*`download: true` f"),
    ],
)
def test_failures_say_corpus_key_path_and_option(tmp_path, name, keys, message):
    lay_out(tmp_path, {"transcriptions/dev/S02.json": []})
    with pytest.raises((ConfigError, DataError), match=message):
        recordings(name, tmp_path, **keys)


def test_warnings_of_recipes_are_repeated_once(tmp_path, caplog):
    root = ami(tmp_path / "ami", ("ES2011a", 0.5))
    lay_out(root, {"ami_public_manual_1.6.2/segments/ES2011a.C.segments.xml": "<root/>"})
    with caplog.at_level(logging.WARNING, "stentor"):
        assert len(recordings("ami", root)) == 1
    said = [r.getMessage() for r in caplog.records if r.name == "stentor"]
    assert said == ["lhotse's prepare_ami: No speaker ES2011a.C found! Skipping annotation."]


def test_silent_windows_of_cuts_are_kept_where_asked(tmp_path):
    from lhotse import CutSet

    root = ami(tmp_path / "ami", ("ES2011a", 0.5))
    windows = CutSet.from_cuts(cuts_of("ami", root, utterances=False)).cut_into_windows(0.5)
    windows.to_file(tmp_path / "windows.jsonl.gz")
    for empty, silent in ((False, None), (True, [])):
        cuts = list(parse_source(f"type=manifest,path={tmp_path}/windows.jsonl.gz,empty={empty}").cuts())
        assert not any(isinstance(c, UnusableRecord) for c in cuts) and len(cuts) == 8
        assert [field_of(c, "segments") for c in cuts] == [silent, silent, *[None] * 5, silent]
