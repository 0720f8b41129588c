"""Every recipe is run: its own config with a handful of records, and small stand-ins for what is not at hand."""

import json
import shutil
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_codecs
import tiny_qwen3_asr
import tiny_voxtral

from codec_shards import token_shards
from stentor.audio.io import write
from stentor.cli import main
from stentor.config.load import load

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
DATA = ROOT.parent / "shared" / "data"
RECORDS = 4
SLOW = (
    "corpus_from_raw",
    "whisper_digits",
    "whisper_librispeech",
    "words_speech_llm",
    "omnivoice_multilingual",
    "english_voice",
    "english_voice_adapt",
    "omnivoice_finetune",
    "digits_ctc_left_out",
    "digits_whisper_left_out",
    "diarize_typical",
    "librispeech_whisper",
    "librispeech_transducer",
    "digits_whisper",
    "digits_synthetic",
    "librispeech",
    "librispeech_overfit",
    "voxlm_9b_global",
    "decoder_language",
    "diarize_ami",
    "voxlm_05b",
    "ctc_librispeech",
    "diarize_librispeech",
    "diarize_whisper",
    "diarize_voice",
    "diarize_ego",
    "voxlm_2b",
    "voxtral_full",
    "omnivoice_finetune_sdpa",
    "qwen3_asr_lora",
    "stream_transducer",
    "stream_delayed",
    "stream_ctc",
    "librispeech_stream",
    "improve_librispeech",
    "improve_digits",
    "full_experiment",
)
"""Recipes like others that are always run."""
SMALL = {
    "encoder": "{from: null, config: {model_type: whisper, num_mel_bins: 80, d_model: 32, encoder_layers: 1, "
    "encoder_attention_heads: 2, encoder_ffn_dim: 64, max_source_positions: 1500}}",
    "llm": "{from: null, config: {model_type: qwen2, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, "
    "num_attention_heads: 2, num_key_value_heads: 2, tie_word_embeddings: true, max_position_embeddings: 512}}",
}
WHISPER = (
    "{model_type: whisper, d_model: 32, encoder_layers: 1, encoder_attention_heads: 2, encoder_ffn_dim: 64, "
    "decoder_layers: 1, decoder_attention_heads: 2, decoder_ffn_dim: 64, num_mel_bins: 80}"
)

BACKBONE = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
WAVE = (
    "{model_type: wav2vec2, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 64, "
    "conv_dim: [16, 16, 16], conv_kernel: [20, 8, 4], conv_stride: [10, 8, 4], num_conv_pos_embeddings: 16, "
    "num_conv_pos_embedding_groups: 4}"
)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder to run in, with what there is of the real data under data/."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    (tmp_path / "data").mkdir()
    for entry in DATA.iterdir() if DATA.is_dir() else ():
        (tmp_path / "data" / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    torch.set_num_threads(threads)


def stand_in(path: Path, corpus: Path) -> None:
    """The tiny corpus as the manifest `path`, unless there is one."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        records = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
        # The names of the real digits, and two of LibriSpeech: recipes select and leave out speakers by them. Two takes
        # and chapters of the training parts.
        speakers = cycle(["george", "jackson", "lucas", "nicolas", "theo", "yweweler", "174", "251"])
        records = [
            r
            | {"id": f"{r['id']}-{take}", "audio_path": str(corpus / r["audio_path"]), "speaker": who}
            | {"take": take, "chapter": chapter}
            for r, who in zip(records, speakers)
            for take, chapter in ((5, "128104"), (40, "141231"))
        ]
        path.write_text("\n".join(map(json.dumps, records)) + "\n")


def published(folder: Path) -> Path:
    """A small model in the published layout, with a codec of the same kind."""
    from stentor.models.base import Family, TaskRequirements

    codec = {"type": "higgs_audio_v2", "from": str(tiny_codecs.build("higgs_audio_v2", folder.with_name("codec")))}
    small = {"type": "omnivoice", "llm": {"config": BACKBONE}, "text": {"type": "characters"}, "codec": codec}
    bundle = Family.model_validate(small).build(
        TaskRequirements("speak", ("codes",), texts=lambda: ["one two three four five six"])
    )
    state = bundle.model.state_dict()
    bundle.family.save(bundle, {name: state[name] for name in bundle.family.exported_tensor_names(bundle)}, folder)
    (folder / "stentor.json").unlink()
    return folder


def sources(data) -> dict[str, Any]:
    """The sources of a `data` section by their keys."""
    by_key = {f"data.train.{i}": s for i, s in enumerate(data.train)}
    if data.replay is not None:
        by_key |= {f"data.replay.sources.{i}": s for i, s in enumerate(data.replay.sources)}
    return by_key | {f"data.{part}.{name}": s for part in ("eval", "test") for name, s in getattr(data, part).items()}


def meetings(corpus: Path) -> str:
    """An RTTM of the tiny corpus, in which two speakers talk in each clip, as a source without its end."""
    path = Path("data/stand-in.rttm")
    turns = [("A", 0.0, 0.25), ("B", 0.2, 0.2)]
    lines = [f"SPEAKER train{i} 1 {at} {s} <NA> <NA> {who} <NA> <NA>" for i in range(6) for who, at, s in turns]
    path.write_text("\n".join(lines) + "\n")
    return f"type: rttm, path: {path}, audio: {corpus}, uem: null"


def less(place: str, source, corpus: Path) -> list[str]:
    """Overrides that leave a few records of a source, or put the tiny corpus in its place."""
    limit = RECORDS if "train" in place.split(".") else 2
    weight = "" if source.weight is None else f", weight: {source.weight}"
    if source.type == "rttm" or (source.type == "corpus" and not source.utterances):
        return [f"{place}={{{meetings(corpus)}, limit: {limit}{weight}}}"]
    if source.type == "shards":
        for path in source.path if isinstance(source.path, list) else [source.path]:
            token_shards(path)
        return [f"{place}.limit={limit}"]
    if source.type in ("corpus", "hub"):  # downloads
        stand_in(Path(f"data/{source.type}.jsonl"), corpus)
        return [f"{place}={{type: jsonl, path: data/{source.type}.jsonl, limit: {RECORDS}{weight}}}"]
    changes = []
    if source.type == "conversation":
        changes += shorter(place, source, corpus)
    changes += inner(place, source, corpus)
    count = [f"{place}.count={RECORDS}"] if "count" in type(source).model_fields else []
    return [*changes, f"{place}.limit={limit}", *count]


def inner(place: str, source, corpus: Path) -> list[str]:
    """Overrides that leave a few records of the sources inside a source; stand-ins for the files that are read."""
    within = getattr(source, "source", [])
    if isinstance(within, list):
        named = {f"{place}.source.{i}": one for i, one in enumerate(within)}
    else:
        named = {f"{place}.source": within}
    changes = [f"{key}.count=40" for key, one in named.items() if "count" in type(one).model_fields]
    if source.type == "jsonl":
        stand_in(source.path, corpus)
    if source.type == "text" and source.path is not None:
        source.path.parent.mkdir(parents=True, exist_ok=True)
        source.path.write_text("one two three\nfour five\none two\nsix\n")
    if source.type == "synth" and isinstance(source.texts, Path) and not source.texts.exists():
        source.texts.write_text("one two three\nfour five\n")
    return changes + [change for key, one in named.items() for change in inner(key, one, corpus)]


def shorter(place: str, conversation, corpus: Path) -> list[str]:
    """Overrides of conversations of the tiny corpus, whose clips are short."""
    changes = [f"{place}.turn=[0.1, 10]", f"{place}.seconds=12"]
    if isinstance(conversation.statistics, Path) and not conversation.statistics.exists():
        changes.append(f"{place}.statistics={{}}")
    if conversation.source.type == "corpus":
        stand_in(Path("data/corpus.jsonl"), corpus)
        changes.append(f"{place}.source={{type: jsonl, path: data/corpus.jsonl}}")
    return changes


def cut_down(loaded, corpus: Path) -> list[str]:
    """Overrides that leave a recipe as it is but for the amount of data and what is not at hand."""
    config = loaded.config
    changes = ["prepare=[]", "data.workers=0", "train.device=cpu", "train.precision=fp32", "train.compile=false"]
    changes.append("train.epochs=1" if config.train.steps is None else "train.steps=2")
    for key, source in sources(config.data).items():
        changes += less(key, source, corpus)
    for number, stage in enumerate(loaded.stages):
        if "epochs" in (config.stages[number].get("train") or {}):
            changes.append(f"stages.{number}.train.epochs=1")
        parts = (config.stages[number].get("data") or {}).keys()  # the rest is the run's own
        for key, source in sources(stage.data).items():
            if key.split(".")[1] in parts:
                changes += less(f"stages.{number}.{key}", source, corpus)
    if config.model.init is not None and not Path(config.model.init).is_dir():  # of another recipe
        changes.append("model.init=null")
    if getattr(config.task, "windows", None) is not None:
        changes.append("task.windows.embedding=null")
    return changes + tiny_model(config.model)


def tiny_model(model) -> list[str]:
    """Overrides that put a tiny model of the same kind in the place of one that is not at hand."""
    match model.type:
        case "seq2seq" if not Path(model.source).is_dir():
            return ["model.from=null", "model.merges=null", f"model.config={WHISPER}", "train.interpolate=null"]
        case "speech_llm" | "transducer":
            origins = {part: getattr(getattr(model, part, None), "source", None) for part in SMALL}
            parts = [part for part, origin in origins.items() if origin is not None and not Path(origin).is_dir()]
            characters = ["model.tokenizer=characters"] if "llm" in parts else []
            return [*(f"model.{part}={SMALL[part]}" for part in parts), *characters]
        case "transformer" if model.ssl is not None and not Path(model.ssl.source).is_dir():
            return ["model.ssl.from=null", f"model.ssl.config={WAVE}", "model.ssl.store=null"]
        case "ctc":
            return ["model.from=null", f"model.config={WAVE}"]
        case "omnivoice":
            return tiny_omnivoice(model)
        case "audio_llm" if "Voxtral" in model.source:
            tokenizer = tiny_voxtral.write_tokenizer(Path("tekken"))
            config = json.dumps(tiny_voxtral.CONFIG)
            return ["model.from=null", f"model.config={config}", f"model.tokenizer={tokenizer}"]
        case "audio_llm":
            tokenizer = tiny_qwen3_asr.write_processor(Path("qwen"))
            config = json.dumps(tiny_qwen3_asr.CONFIG)
            # What an untrained model writes hangs on the last bit.
            dtype = "model.dtype=float32"
            return ["model.from=null", f"model.config={config}", f"model.tokenizer={tokenizer}", dtype]
    return []


def tiny_omnivoice(model) -> list[str]:
    changes = []
    if model.source is not None:
        changes.append(f"model.from={published(Path('OmniVoice'))}")
    elif model.llm.source is not None:
        changes += [f"model.llm={{from: null, config: {json.dumps(BACKBONE)}}}", "model.text=characters"]
    if model.codec is not None and not model.codec.fits:
        changes.append("model.codec=null")
    elif getattr(model.codec, "decoder", None) is not None:
        changes.append("model.codec.decoder.steps=2")
    return changes


def test_there_are_recipes():
    assert {"digits.yaml", "voxlm_2b.yaml"} <= {path.name for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_recipe_is_right_and_short(path, capsys):
    text = path.read_text()
    assert text.startswith("#"), "a recipe begins by saying what it is for and what it needs"
    assert len(text.splitlines()) < 50
    assert str(ROOT.parent) not in text and "../" not in text
    assert main(["config", "check", str(path)]) == 0, capsys.readouterr().err
    train = load(path).config.train
    assert train.steps is None or (train.save_every or train.eval_every or 0) < train.steps, (
        "nothing is saved before the end"
    )


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=[pytest.mark.slow] * (p.stem in SLOW)) for p in RECIPES], ids=lambda p: p.stem
)
@pytest.mark.long
def test_recipe_runs(path, workplace, corpus, capsys):
    loaded = load(path)
    changes = cut_down(loaded, corpus)
    changes += ["improve=null"] if loaded.config.improve else []  # its supervised model: tests/improve has the rounds
    code = main(["train", str(path), *changes, f"output={workplace / 'runs'}", "name=short"])
    assert code == 0, capsys.readouterr().err
    results = json.loads((workplace / "runs" / "short" / "results.json").read_text())
    sets = {*loaded.config.data.eval, *loaded.config.data.test}
    assert set(results["eval"]) == sets and sets
    streamed, used = any(source.streaming for source in loaded.config.data.train), results["data"]["used"]
    assert results["steps"] >= 1 and (used == 0 if streamed else used >= RECORDS)  # a stream has no known length
    assert results["parameters"]["trained"] > 0
    shutil.rmtree(workplace / "runs")  # some exports are large


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] * ("9b" in p.stem)) for p in RECIPES if p.stem.startswith("voxlm")],
    ids=lambda p: p.stem,
)
def test_plan_of_voxlm(path, workplace, corpus, capsys):
    changes = cut_down(load(path), corpus)
    assert main(["train", str(path), *changes, "--plan-only"]) == 0, capsys.readouterr().err
    plan = capsys.readouterr().out
    for part in ("Parameters", "encoder", "projector", "llm", "Data", "Dropped", "Memory", "Time"):
        assert part in plan
    encoder = next(line for line in plan.splitlines() if line.split()[:1] == ["encoder"])
    assert encoder.endswith(" 0"), "the encoder is frozen"
    assert not (workplace / "runs").exists()


@pytest.mark.long
def test_from_a_folder_of_podcasts_to_a_recogniser(workplace, corpus, whisper, capsys, monkeypatch):
    """recipes/corpus_from_raw.yaml with what it prepares: each stage runs, with stand-ins for models that are not at
    hand (tests/inference/test_segments.py has a diarizer), and training reads what they made."""
    from stentor.audio.synth import say
    from stentor.inference.segments.transcribe import TranscribingStage

    texts = {"one.wav": "Seven small islands lie to the north.", "two.flac": "None of them has a name."}
    for name, text in texts.items():
        audio = np.pad(say(text, voice="en-us").audio, (16000, 24000))
        write(Path("podcasts", name), np.concatenate([audio + 1e-4, say(text, voice="en+f3").audio]), 16000)
    stand_in(Path("data/librispeech/dev.jsonl"), corpus)
    monkeypatch.setattr(TranscribingStage, "setup", lambda *_: None)

    def process_many(stage, work):
        heard = ({"text": texts[recording.name], "confidence": 0.9} for recording, segments in work for _ in segments)
        return [[stage.judge(segment, next(heard)) for segment in segments] for _, segments in work]

    monkeypatch.setattr(TranscribingStage, "process_many", process_many)
    path = ROOT / "recipes" / "corpus_from_raw.yaml"
    changes = [c for c in cut_down(load(path), corpus) if not c.startswith(("prepare", "data.train"))]
    place = "prepare.0.stages"
    changes += ["prepare.0.data.path=podcasts", "prepare.0.device=cpu", f"{place}.0.detector=energy"]
    changes += [f"{place}.0.seconds=[0.5, 30]", f"{place}.3={{type: vad, seconds: [0.5, 30]}}"]
    changes += [f"{place}.4.model={whisper}", f"{place}.4.languages=null", f"{place}.4.min_probability=null"]
    changes += [f"{place}.7.agree=false"]  # the tiny Whisper hears any language
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    changes += [f"model.{part}.config.{key}={size}" for part in ("encoder", "llm") for key, size in small.items()]
    changes += ["model.llm.config.num_key_value_heads=2", "model.tokenizer=characters"]
    shutil.rmtree("data/corpus", ignore_errors=True)
    assert main(["train", str(path), *changes, f"output={workplace / 'runs'}", "name=short"]) == 0
    summary = json.loads(Path("data/corpus/summary.json").read_text())
    kept = [(s["name"], s["kept"]) for s in summary["stages"]]
    stages = ["vad", "quality", "duplicates", "vad-2", "language", "transcribe", "hallucinations", "language-2"]
    assert kept == [(name, 4) for name in [*stages, "agreement"]]
    results = json.loads((workplace / "runs" / "short" / "results.json").read_text())
    assert results["data"]["used"] == 4
