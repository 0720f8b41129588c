"""Whole recordings with segments out of corpora by name: miniatures laid out as lhotse's recipes expect them."""

import numpy as np
import pytest
import soundfile

from stentor.commands.prepare.corpus import prepare_corpus
from stentor.commands.prepare_options import CorpusOptions
from stentor.config.load import parse_source
from stentor.data.cut import UnusableRecord, segments_of, uem_of
from stentor.data.load_audio import load_audio
from stentor.errors import ConfigError, DataError


def wav(path, seconds=4.0, level=0.1):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).normal(0, level, round(seconds * 16000))
    soundfile.write(path, noise, 16000)


def listed(spec):
    cuts = list(parse_source(f"type=corpus,utterances=false,{spec}").cuts())
    assert not any(isinstance(c, UnusableRecord) for c in cuts)
    return {c.id: c for c in cuts}


def spans(cut):
    return [(s["speaker"], s["start"], s["end"]) for s in segments_of(cut)]


@pytest.fixture
def ami(tmp_path):
    """One meeting of each part, two speakers each, as AMI's archives unpack."""
    root, notes = tmp_path / "ami", tmp_path / "ami" / "ami_public_manual_1.6.2"
    for folder in ("corpusResources", "segments", "words"):
        (notes / folder).mkdir(parents=True)
    meetings = []
    for meeting, shift in (("ES2002a", 0.0), ("ES2011a", 0.5), ("ES2004a", 1.0), ("IB4001", 0.2)):
        speakers = ""
        for channel, (agent, name, start) in enumerate((("A", "MEE001", 0.5), ("B", "FEE002", 1.5))):
            start += shift
            speakers += f'<speaker nxt_agent="{agent}" global_name="{name}" channel="{channel}"/>'
            (notes / "segments" / f"{meeting}.{agent}.segments.xml").write_text(
                f'<root><segment transcriber_start="{start}" transcriber_end="{start + 1.5}"/></root>'
            )
            (notes / "words" / f"{meeting}.{agent}.words.xml").write_text(
                f'<root><w starttime="{start}" endtime="{start + 0.5}">hello</w>'
                f'<w starttime="{start + 0.6}" endtime="{start + 1.4}">there</w></root>'
            )
            wav(root / meeting / "audio" / f"{meeting}.Headset-{channel}.wav")
        meetings.append(f'<meeting observation="{meeting}">{speakers}</meeting>')
        wav(root / meeting / "audio" / f"{meeting}.Array1-01.wav", level=0.05)
        wav(root / meeting / "audio" / f"{meeting}.Mix-Headset.wav", level=0.2)
    (notes / "corpusResources" / "meetings.xml").write_text(f"<root>{''.join(meetings)}</root>")
    return root


def test_ami_by_microphone_split_and_partition(ami):
    cuts = listed(f"name=ami,from={ami},split=dev,options={{mic: sdm, partition: full-corpus-asr}}")
    assert sorted(cuts) == ["ES2011a", "IB4001"]
    assert spans(cuts["ES2011a"]) == [("MEE001", 1.0, 2.4), ("FEE002", 2.0, 3.4)]
    assert np.std(load_audio(cuts["ES2011a"])) == pytest.approx(0.05, rel=0.05)
    cuts = listed(f"name=ami,from={ami},split=dev,options={{mic: ihm-mix, partition: scenario-only}}")
    assert list(cuts) == ["ES2011a"]  # IB4001 is not one of the scenario's meetings
    assert np.std(load_audio(cuts["ES2011a"])) == pytest.approx(0.2, rel=0.05)
    assert spans(listed(f"name=ami,from={ami},split=test,options={{mic: sdm}}")["ES2004a"])[0] == ("MEE001", 1.5, 2.9)
    with pytest.raises(DataError, match="Mic sdn not supported"):
        listed(f"name=ami,from={ami},split=dev,options={{mic: sdn}}")
    with pytest.raises(ConfigError, match=r"no option 'micro'; it has: .*mic, partition"):
        listed(f"name=ami,from={ami},split=dev,options={{micro: sdm}}")
    with pytest.raises(DataError, match="set `split` to one of train, dev, test"):
        listed(f"name=ami,from={ami},options={{mic: sdm}}")


def test_prepared_manifests_keep_the_segments(ami, tmp_path):
    prepare_corpus(
        CorpusOptions(name="ami", to=tmp_path / "to", source=ami, split="dev", recordings=True, option=["mic=sdm"])
    )
    prepared = {c.id: c for c in parse_source(str(tmp_path / "to" / "dev.jsonl")).cuts()}
    there = listed(f"name=ami,from={ami},split=dev,options={{mic: sdm}}")
    assert {k: segments_of(v) for k, v in prepared.items()} == {k: segments_of(v) for k, v in there.items()}


def test_voxconverse(tmp_path):
    for part, name in (("dev", "abcde"), ("test", "fghij"), ("test", "klmno")):
        wav(tmp_path / "vox" / part / f"{name}.wav")
        (tmp_path / "vox" / part / f"{name}.rttm").write_text(
            f"SPEAKER {name} 1 0.5 2.0 <NA> <NA> spk00 <NA> <NA>\nSPEAKER {name} 1 2.0 1.5 <NA> <NA> spk01 <NA> <NA>\n"
        )
    cuts = listed(f"name=voxconverse,from={tmp_path}/vox,split=test")
    assert sorted(cuts) == ["fghij", "klmno"]
    assert spans(cuts["fghij"]) == [("spk00", 0.5, 2.5), ("spk01", 2.0, 3.5)]
    # The recipe's own option: the published test part halved.
    assert list(listed(f"name=voxconverse,from={tmp_path}/vox,split=dev,options={{split_test: true}}")) == ["fghij"]


def test_dihard_with_its_uem(tmp_path):
    root = tmp_path / "LDC2020E12"
    wav(root / "data" / "flac" / "DH_DEV_0001.flac")
    for kind, line in (
        ("rttm", "SPEAKER DH_DEV_0001 1 0.5 2.0 <NA> <NA> S1 <NA> <NA>\n"),
        ("uem", "DH_DEV_0001 1 0.25 3.75\n"),
    ):
        (root / "data" / kind).mkdir()
        (root / "data" / kind / f"DH_DEV_0001.{kind}").write_text(line)
    (root / "docs").mkdir()
    (root / "docs" / "recordings.tbl").write_text("head\nDH_DEV_0001 True eng meeting x 1 2 3 4\n")
    options = "options={eval_audio_dir: null}"
    (cut,) = listed(f"name=dihard3,from={root},split=dev,{options}").values()
    assert spans(cut) == [("S1", 0.5, 2.5)] and uem_of(cut) == [[0.25, 3.75]]
    # Kept prepared, with the UEM.
    for _ in range(2):
        (cut,) = listed(f"name=dihard3,from={root},split=dev,to={tmp_path}/to,{options}").values()
        assert uem_of(cut) == [[0.25, 3.75]]
    with pytest.raises(ConfigError, match="also needs eval_audio_dir; give them in `options`"):
        listed(f"name=dihard3,from={root},split=dev")


def test_corpora_without_a_recipe_are_told_what_to_do():
    for name in ("msdwild", "AVA-AVD"):
        with pytest.raises(ConfigError, match=r"has no recipe for .*; load its RTTM files directly: \{type: rttm"):
            listed(f"name={name},from=x")
    for name, near in (("alimeeting", "ali_meeting"), ("aishell-4", "aishell4"), ("dihard", "dihard3")):
        with pytest.raises(ConfigError, match=f"did you mean .*{near}"):
            listed(f"name={name},from=x")
