"""Corpora of transcribed utterances in miniature, laid out as their publishers' archives unpack.

Layouts: LibriTTS (openslr 60) and LibriTTS-R (openslr 141), VCTK 0.92, LJSpeech 1.1, Common Voice 17, FLEURS and
Emilia (their repositories on the Hub), VoxPopuli (its `get_asr_data`), MLS (openslr 94), TED-LIUM 3 (openslr 51),
GigaSpeech (its GigaSpeech.json), Granary (its manifests).
"""

import json

import pytest

from codec_shards import write_tar
from corpora_in_miniature import Sound, cuts_of, lay_out, unusable
from stentor.data.cut import UnusableRecord, field_of, language_of, speaker_of, text_of
from stentor.data.load_audio import load_audio
from stentor.errors import DataError
from stentor.sources.base import Source

SPLITS = ("train", "dev", "test")
CV_HEADER = "client_id path sentence_id sentence sentence_domain up_votes down_votes age gender accents variant locale"


def common_voice(number):
    cells = [f"s{number}", f"common_voice_sv-SE_{number}.mp3", "x", f'Hej "{number}', "", "2", "0", *["", "", "", ""]]
    return "\t".join(CV_HEADER.split()) + "\n" + "\t".join([*cells, "sv-SE"]) + "\n"


GIGASPEECH = {
    "dataset": "GigaSpeech",
    "audios": [
        {
            "aid": "POD1",
            "path": "audio/podcast/P0001/POD1.opus",
            "duration": 4.0,
            "segments": [
                {
                    "sid": f"POD1_S{i}",
                    "speaker": "N/A",
                    "begin_time": start,
                    "end_time": start + 1.5,
                    "text_tn": text,
                    "subsets": ["{XL}", "{XS}"],
                }
                for i, (start, text) in enumerate([(0.0, "HELLO <COMMA> WORLD <PERIOD>"), (2.0, "<MUSIC>")])
            ],
        }
    ],
}
LIBRITTS = {
    "dev-clean/84/121123/84_121123_000007_000001.wav": Sound(1.0, rate=24000),
    "dev-clean/84/121123/84_121123.trans.tsv": "84_121123_000007_000001\tMr. X.\tMister X.\n",
}
CORPORA = {
    "libritts": (
        {
            **{f"LibriTTS/{name}": content for name, content in LIBRITTS.items()},
            "LibriTTS/dev-clean/84/121123/84_121123.book.tsv": "84_121123_000007_000001\tMister X.\tMr. X.\t3\t20.1\n",
            "LibriTTS/SPEAKERS.txt": ";ID |SEX| SUBSET |MINUTES| NAME\n84 | F | dev-clean | 8.02 | Christie Nowak\n",
        },
        "dev-clean",
        ("84_121123_000007_000001", "Mister X.", "84", "en"),
    ),
    "LibriTTS-R": (
        {f"LibriTTS_R/{name}": content for name, content in LIBRITTS.items()},
        "dev-clean",
        ("84_121123_000007_000001", "Mister X.", "84", "en"),
    ),
    "vctk": (
        {
            "speaker-info.txt": "ID  AGE  GENDER  ACCENTS  REGION COMMENTS\np225  23  F    English    Southern\n",
            "txt/p225/p225_001.txt": "Please call Stella.\n",
            **{f"wav48_silence_trimmed/p225/p225_001_mic{mic}.flac": Sound(1.0, rate=48000) for mic in (1, 2)},
        },
        None,
        ("p225_001_mic2", "Please call Stella.", "p225", "en"),
    ),
    "ljspeech": (
        {
            "metadata.csv": "LJ001-0001|Printing, in 1440|Printing, in fourteen forty\n",
            "wavs/LJ001-0001.wav": Sound(1.0, rate=22050),
        },
        None,
        ("LJ001-0001", "Printing, in 1440", None, "en"),
    ),
    "commonvoice": (
        {
            **{
                f"cv-corpus-17.0-2024-03-15/sv-SE/{split}.tsv": common_voice(i)
                for i, split in enumerate([*SPLITS, "validated"])
            },
            **{f"cv-corpus-17.0-2024-03-15/sv-SE/clips/common_voice_sv-SE_{i}.mp3": 1.0 for i in range(4)},
        },
        "train",
        ("common_voice_sv-SE_0", 'Hej "0', "s0", "sv"),
    ),
    "fleurs": (
        {
            **{
                f"data/sv_se/{split}.tsv": f"7\t{i}00.wav\tHej, {i}.\thej {i}\th e j |\t16000\tFEMALE\n"
                for i, split in enumerate(SPLITS)
            },
            **{f"data/sv_se/audio/{split}/{i}00.wav": 1.0 for i, split in enumerate(SPLITS)},
        },
        "sv_se/train",
        ("000", "Hej, 0.", None, "sv"),
    ),
    "voxpopuli": (
        {
            "transcribed_data/en/asr_train.tsv": (
                "id\traw_text\tnormalized_text\tspeaker_id\tsplit\tgender\tis_gold_transcript\taccent\n"
                "20100101-0900-PLENARY-3_20100101-09:00:30_1\tHello, Sir.\thello sir\t77\ttrain\tmale\tFalse\tNone\n"
            ),
            "transcribed_data/en/2010/20100101-0900-PLENARY-3_20100101-09:00:30_1.ogg": 1.0,
        },
        None,
        ("20100101-0900-PLENARY-3_20100101-09:00:30_1", "Hello, Sir.", "77", "en"),
    ),
    "mls": (
        {
            "mls_polish_opus/metainfo.txt": " SPEAKER | GENDER | PARTITION | MINUTES | BOOK ID | TITLE\n",
            **{f"mls_polish_opus/{s}/transcripts.txt": f"68_10_00{i}\tbyło {i}\n" for i, s in enumerate(SPLITS)},
            **{
                f"mls_polish_opus/{s}/audio/68/10/68_10_00{i}.opus": Sound(1.0, rate=48000)
                for i, s in enumerate(SPLITS)
            },
        },
        "test",
        ("68_10_002", "było 2", "68", "pl"),
    ),
    "tedlium": (
        {
            **{
                f"legacy/{split}/stm/Talk_{i}.stm": (
                    f"Talk_{i} 1 Talk_{i} 0.50 1.50 <o,f0,male> so {{NOISE}} it 's here <unk>\n"
                    f"Talk_{i} 1 Talk_{i} 1.5 2.0 <o,f0,male> ignore_time_segment_in_scoring\n"
                    f"Talk_{i} 1 Talk_{i} 2.0 2.0 <o,f0,male> <unk>\nTalk_{i} 1 Talk_{i} 2.0 - <o,f0,male> x\n"
                )
                for i, split in enumerate(SPLITS)
            },
            **{f"legacy/{split}/sph/Talk_{i}.sph": 3.0 for i, split in enumerate(SPLITS)},
        },
        "dev",
        ("Talk_1-0", "so it's here", "Talk_1", "en"),
    ),
    "gigaspeech": (
        {"GigaSpeech.json": GIGASPEECH, "audio/podcast/P0001/POD1.opus": Sound(4.0, rate=48000)},
        "XS",
        ("POD1_S0", "HELLO, WORLD.", None, "en"),
    ),
    "emilia": (
        {
            "raw/DE/DE_B00000.jsonl": [
                {
                    "id": "DE_B00000_S00000_W000029",
                    "wav": "DE_B00000/DE_B00000_S00000/mp3/DE_B00000_S00000_W000029.mp3",
                    "text": " Und es gibt.",
                    "duration": 1.0,
                    "speaker": "DE_B00000_S00000",
                    "language": "de",
                }
            ],
            "raw/DE/DE_B00000/DE_B00000_S00000/mp3/DE_B00000_S00000_W000029.mp3": 1.0,
        },
        None,
        ("DE_B00000_S00000_W000029", "Und es gibt.", "DE_B00000_S00000", "de"),
    ),
}


@pytest.mark.parametrize("name", CORPORA)
def test_the_published_layout_is_read(name, tmp_path):
    files, split, expected = CORPORA[name]
    folder = lay_out(tmp_path / "corpus", files)
    used = [cut for cut in cuts_of(name, folder, split=split) if not isinstance(cut, UnusableRecord)]
    assert [(cut.id, text_of(cut), speaker_of(cut), language_of(cut)) for cut in used] == [expected]
    assert 0.9 < len(load_audio(used[0])) / 16000 < 1.6
    if name == "ljspeech":  # what its recipe has besides
        there = field_of(used[0], "normalized_text"), field_of(used[0], "gender")
        assert there == ("Printing, in fourteen forty", "female")
    # The folder inside the one that was unpacked is fine too, where the names above it are not needed.
    if name in ("commonvoice", "libritts", "LibriTTS-R"):
        assert len(cuts_of(name, next(folder.iterdir()), split=split)) == 1


def test_missing_audio_is_counted(tmp_path):
    files, split, _ = CORPORA["mls"]
    folder = lay_out(tmp_path, files)
    next(folder.glob("*/test/audio/*/*/*")).unlink()
    ((name, (reason, message)),) = unusable("mls", folder, split=split).items()
    assert (name, reason) == ("68_10_002", "missing")
    assert "transcripts.txt:1: there is no audio" in message


def test_segments_without_speech_and_broken_rows_are_counted(tmp_path):
    folder = lay_out(tmp_path, CORPORA["gigaspeech"][0])
    assert unusable("gigaspeech", folder, split="XS")["POD1_S1"][0] == "no_speech"
    bad = unusable("tedlium", lay_out(tmp_path, CORPORA["tedlium"][0]), split="dev")
    assert [reason for reason, _ in bad.values()] == ["empty", "unreadable"]
    assert "Talk_1.stm:4: could not convert string to float: '-'" in bad["Talk_1:4"][1]
    files = CORPORA["fleurs"][0] | {"data/sv_se/train.tsv": "1\ttwo\n"}
    ((_, (reason, message)),) = unusable("fleurs", lay_out(tmp_path, files), split="sv_se/train").items()
    assert reason == "unreadable" and "train.tsv:1: this line does not have the 7 columns" in message


@pytest.mark.parametrize("name", ["commonvoice", "mls", "tedlium", "gigaspeech", "emilia"])
def test_an_empty_folder_is_explained(name, tmp_path):
    with pytest.raises(DataError, match=rf"The corpus {name} .*there (is|are) no .*The folder should hold"):
        cuts_of(name, tmp_path)


def test_original_tars_of_emilia(tmp_path):
    """As on the Hub: Emilia/EN/EN-B000000.tar with ID.mp3 and ID.json."""
    audio = (lay_out(tmp_path, {"x.mp3": 1.0}) / "x.mp3").read_bytes()
    label = {"id": "EN_B00000_S00000_W000000", "wav": "EN_B00000/x.mp3", "text": " Hello.", "duration": 1.0}
    label |= {"speaker": "EN_B00000_S00000", "language": "en", "dnsmos": 3.3}
    members = {
        "EN_B00000_S00000_W000000.json": json.dumps(label).encode(),
        "EN_B00000_S00000_W000000.mp3": audio,
        "EN_B00000_S00000_W000001.mp3": audio,
        "EN_B00000_S00000_W000002.json": b"{broken",
    }
    (tmp_path / "EN").mkdir()
    write_tar(tmp_path / "EN" / "EN-B000000.tar", members)
    cut, broken, alone = Source.model_validate({"type": "shards", "path": str(tmp_path / "EN")}).cuts()
    assert (cut.id, text_of(cut).strip(), speaker_of(cut)) == ("EN_B00000_S00000_W000000", "Hello.", "EN_B00000_S00000")
    assert language_of(cut) == "en" and len(load_audio(cut)) == 16000
    assert broken.reason == "unreadable" and alone.reason == "no_label"
    with pytest.raises(DataError, match="its tar files are read by `type: shards, path: "):
        cuts_of("emilia", tmp_path)


def test_manifests_of_granary(tmp_path):
    """As NeMo has them; the audio was downloaded apart."""
    row = {"audio_filepath": "en/a.wav", "text": "Hello.", "duration": 1.0, "source_lang": "en", "utt_id": "a"}
    lay_out(
        tmp_path,
        {"manifests/en/yodas.jsonl": [row, {**row, "audio_filepath": "b.wav", "utt_id": "b"}], "audio/en/a.wav": 1.0},
    )
    options = {"audio_folder": str(tmp_path / "audio")}
    cut, gone = cuts_of("granary", tmp_path / "manifests", options=options)
    assert (cut.id, text_of(cut), language_of(cut)) == ("a", "Hello.", "en") and len(load_audio(cut)) == 16000
    assert (gone.id, gone.reason) == ("b", "missing") and "yodas.jsonl:2" in gone.message
