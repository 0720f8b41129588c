"""Which phrases a data set reads: built-in, own, of the Hub."""

import base64
import json
import socket
import sys

import numpy as np
import pytest

from stentor.errors import ConfigError, DataError
from stentor.studio.dataset import prompts
from stentor.studio.dataset.prompts import own_list, phrases_of, prompt_id, readable, set_source, source_of, sources
from stentor.studio.phrases import NAMES, checked_language


@pytest.fixture
def swedish(projects):
    return projects.create("rosten", "sv")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Nothing but `set_source` with a corpus may open a connection."""

    def refuse(*_, **__):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_languages_are_those_of_phrases_and_of_models():
    languages = prompts.languages()
    codes = [code for _, code in languages]
    assert len(codes) == len(set(codes)) == len(NAMES) and ("Swedish (svenska)", "sv") in languages
    assert {"yue", "haw", "la"} <= set(codes)  # of Whisper, without phrases
    assert dict(map(reversed, languages))["la"] != "Latin"
    with pytest.raises(ConfigError, match="There is no language"):
        checked_language("klingon")
    assert [checked_language(c) for c in ("no", "pt-BR", " SV ", "", None)] == ["nb", "pt", "sv", None, None]


def test_recordings_belong_to_their_phrase_whatever_the_source(swedish):
    first = phrases_of(swedish)[0]
    record = swedish.add(np.full(8000, 0.1, np.float32), 8000, "something else", prompt=prompt_id(first, "sv"))
    set_source(swedish, "own", own_list("Ett\nTvå"))
    assert phrases_of(swedish) == ["Ett", "Två"] and swedish.records() == [record]
    set_source(swedish, "builtin")
    assert [t for t in phrases_of(swedish) if prompt_id(t, "sv") == record["prompt"]] == [first]
    assert len({prompt_id(t, "sv") for t in phrases_of(swedish)}) == len(phrases_of(swedish))
    assert prompt_id("Hej", "sv") != prompt_id("Hej", "da") and prompt_id(" a\u0308 ", None) == prompt_id("ä", None)
    assert set_source(swedish, "own").startswith("2 ")  # the list that was given before


def test_a_language_without_phrases(projects):
    latin = projects.create("latina", "la")
    assert phrases_of(latin) == [] and [s.key for s in sources("la")] == ["own"]
    with pytest.raises(ConfigError, match="FLEURS has no sentences in Latin"):
        set_source(latin, "fleurs")
    with pytest.raises(ConfigError, match="no phrase on the list"):
        set_source(latin, "own")
    set_source(latin, "own", ["Salve amice"])
    assert phrases_of(latin) == ["Salve amice"]
    assert phrases_of(projects.create("unknown")) == []


def test_own_lists():
    assert own_list("\ufeffEtt\r\n\r\nTvå  ord\nett!\n") == ["Ett", "Två ord"]
    assert own_list(name="x.csv", data=b'id,text\n1,"Ett, ja"\n') == ["Ett, ja"]
    assert own_list(name="x.txt", data="Ett\r\nTvå".encode("utf-16")) == ["Ett", "Två"]
    with pytest.raises(DataError) as error:
        own_list("Ett\n\x1b[31mrött\n" + "x" * 301 + "\n\u202etxet\n123\n")
    assert [line.split(": ")[0] for line in str(error.value).splitlines()] == [
        f"the pasted lines:{n}" for n in (2, 3, 4, 5)
    ]
    with pytest.raises(DataError, match=r"x.txt:2: this is not UTF-8"):
        own_list(name="x.txt", data=b"a\n\xff")
    with pytest.raises(ConfigError, match="larger than 2 MB"):
        own_list("x" * (2 * 2**20 + 1))
    assert own_list("<script>alert(1)</script>") == ["<script>alert(1)</script>"]


def test_too_many_phrases(swedish):
    with pytest.raises(DataError, match="5001 phrases are too many"):
        set_source(swedish, "own", [f"Ord {i}" for i in range(5001)])
    assert source_of(swedish) == "builtin"


def test_a_damaged_list_gives_way_to_the_built_in_one(swedish):
    builtin = phrases_of(swedish)
    set_source(swedish, "own", ["Ett"])
    (swedish.folder / "phrases.txt").write_bytes(b"\n\n")
    assert phrases_of(swedish) == builtin
    (swedish.folder / "phrases.txt").write_bytes(b"\xff\x00\x07a" + b"x" * 999)
    assert len(phrases_of(swedish)[0]) <= 300
    (swedish.folder / "dataset.json").write_text('{"language": "sv", "phrases": {"source": "../../etc"}}')
    assert phrases_of(swedish) == builtin


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("Hunden sprang över vägen.", True),
        ("  \u201cHej du där, kom hit!\u201d ", True),
        ("Nej.", False),
        ("Det kostar 25 kronor om dagen.", False),
        ("word " * 21, False),
        ("SHOUTED TEXT OF A CORPUS", False),
        ("Se http://x.se/a för mer", False),
        ("<b>fet text här</b>", False),
        ("今日はとても天気がいいですね。", True),
        ("はい", False),
        ("- - - a - - -", False),
    ],
)
def test_sentences_that_can_be_read_aloud(text, accepted):
    assert (readable(text) is not None) == accepted


def test_pieces_of_speech_are_no_sentences():
    assert (
        readable("and then we went", sentences_only=True) is None
        and readable("Then we went,", sentences_only=True) is None
    )
    assert readable("Then we went home.", sentences_only=True) == "Then we went home."
    sentences = prompts.sentences(
        iter(["One two three.", "one two three!", "Four five six.", "7 8 9", "Seven a b."]), 3
    )
    assert list(sentences) == ["One two three.", "Four five six.", "Seven a b."]


@pytest.fixture
def answering(monkeypatch):
    """The process that streams, replaced by one that runs this code."""
    monkeypatch.setattr("stentor.studio.runs.settings.reachable", lambda: True)

    def answer(code):
        popen = prompts.subprocess.Popen
        monkeypatch.setattr(
            prompts.subprocess, "Popen", lambda command, **rest: popen([sys.executable, "-c", code], **rest)
        )

    return answer


def test_phrases_of_the_hub(swedish, answering):
    rows = [json.dumps({"text": f"Mening nummer {chr(97 + i)}."}) for i in range(12)]
    answering("print(" + repr("\n".join([*rows, '{"end": true}'])) + ")")
    assert set_source(swedish, "fleurs", count=11).startswith("11 ")
    assert phrases_of(swedish) == [f"Mening nummer {chr(97 + i)}." for i in range(11)]
    assert swedish.about["phrases"] == {"source": "fleurs", "name": "FLEURS", "licence": "CC-BY-4.0"}
    set_source(swedish, "builtin")
    answering("raise SystemExit(1)")  # what was fetched before needs no Hub
    assert set_source(swedish, "fleurs", count=11).startswith("11 ") and len(phrases_of(swedish)) == 11


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ('print(\'{"error": "it is gated, hf_canarycanary said"}\')', "gave no sentences.*it is gated, \\*\\*\\* said"),
        ("print('{\"end\": true}')", "too few sentences in Swedish"),
        ('import time; print(\'{"text": "Hej du"}\', flush=True); time.sleep(60)', "did not answer within 1 seconds"),
        ("", "did not answer"),
    ],
)
def test_a_hub_that_gives_nothing_changes_nothing(swedish, answering, monkeypatch, code, message):
    monkeypatch.setattr(prompts.fetch, "__defaults__", (1.0,))
    answering(code)
    before = phrases_of(swedish)
    with pytest.raises(DataError, match=message) as error:
        set_source(swedish, "fleurs")
    assert "the phrases stay as they are" in str(error.value)
    assert phrases_of(swedish) == before and source_of(swedish) == "builtin"


def test_a_hub_out_of_reach_is_told_at_once(swedish, monkeypatch):
    monkeypatch.setattr("stentor.studio.runs.settings.reachable", lambda: False)
    with pytest.raises(DataError, match="Hub cannot be reached"):
        set_source(swedish, "granary")


def test_texts_are_streamed_without_their_audio(tmp_path, monkeypatch, capsys):
    """A parquet data set as FLEURS lies on the Hub: only the column of texts is asked for."""
    datasets = pytest.importorskip("datasets")
    rows = [
        {"audio": {"bytes": b"no audio", "path": "a.wav"}, "raw_transcription": f"Det är mening {chr(97 + i)} här."}
        for i in range(5)
    ]
    (tmp_path / "data").mkdir()
    dataset = datasets.Dataset.from_list(rows).cast_column("audio", datasets.Audio())
    dataset.to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    calls = []
    load = datasets.load_dataset
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda name, config, **rest: (
            calls.append((name, rest)) or load(str(tmp_path), split="train", streaming=True, columns=rest["columns"])
        ),
    )
    prompts.main("fleurs", "sv", "3")
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [r.get("text") for r in printed] == [f"Det är mening {c} här." for c in "abc"] + [None]
    [(name, rest)] = calls
    assert name == "google/fleurs" and rest["columns"] == ["raw_transcription"] and rest["streaming"]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_texts_of_any_format(tmp_path, kind):
    """Where columns do not lie apart, and where the column has another usual name, rows are read whole."""
    datasets = pytest.importorskip("datasets")
    from stentor.sources.base import Source

    rows = [{"sentence": f"Det är mening {c} här.", "audio": "a.wav"} for c in "abc"]
    (tmp_path / "set").mkdir()
    if kind == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "set" / "train-00000-of-00001.parquet")
    else:
        (tmp_path / "set" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"type": "hub", "name": str(tmp_path / "set"), "cache": str(tmp_path / "cache")}
    assert list(Source.model_validate(source).texts()) == [row["sentence"] for row in rows]
    with pytest.raises(DataError, match=r"has no column said; it has: .*sentence"):
        list(Source.model_validate({**source, "columns": {"text": "said"}}).texts())


def test_the_page_changes_phrases(client, monkeypatch):
    client.projects.create("voices", "sv")
    answer = client.get("/studio/phrases/voices").json()
    assert answer["source"] == "builtin" and answer["count"] >= 40
    assert [s["key"] for s in answer["sources"]] == ["builtin", "own", "fleurs", "common_voice", "granary"]
    file = {"name": "../x.csv", "data": base64.b64encode(b"text\nTre\n").decode()}
    answer = client.post("/studio/phrases/voices", json={"source": "own", "own": "Ett\nTvå", "file": file})
    assert answer.json()["own"] == ["Ett", "Två", "Tre"] and answer.json()["said"].startswith("3 ")
    for wrong in (
        {"source": "own", "own": "\x07"},
        {"source": "/etc/passwd"},
        {"source": "own", "file": {"data": "?"}},
        [],
    ):
        assert client.post("/studio/phrases/voices", json=wrong).status_code == 400
    assert phrases_of(client.projects.dataset("voices")) == ["Ett", "Två", "Tre"]
