"""Transducers as ONNX graphs, in onnxruntime, onnx-asr and sherpa-onnx, which is compared with untrained models on the
features that it computes: of the quickstart it writes the words that Stentor writes."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path[:0] = [str(Path(__file__).parents[1] / "models"), str(Path(__file__).parent)]
for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs stentor[onnx]")

import recognisers  # noqa: E402
import tiny_transducers  # noqa: E402
from test_ctc import rows, same_as_stentor  # noqa: E402
from tiny_families import loss  # noqa: E402

import stentor  # noqa: E402
from alone import alone  # noqa: E402
from stentor.audio.io import write  # noqa: E402
from stentor.audio.kaldi import KaldiFeatures  # noqa: E402
from stentor.audio.synth import say  # noqa: E402
from stentor.cli import main  # noqa: E402
from stentor.data.batch import Example  # noqa: E402
from stentor.export.onnx.transducer import chunk_encoder, feature_kind, write_tokens  # noqa: E402
from stentor.export.onnx.transducer_graphs import ChunkGraph, EncoderGraph, PredictorGraph, first_states  # noqa: E402
from stentor.export.program import load_program  # noqa: E402
from stentor.export.sherpa.features import BANDS, SherpaFeatures, slaney_filters  # noqa: E402
from stentor.export.sherpa.transducer import TransducerSherpa, recognize, with_tail  # noqa: E402
from stentor.inference.stream.recognisers import StreamOptions, open_recogniser  # noqa: E402
from stentor.inference.stream.stream import Stream  # noqa: E402
from stentor.models.base import Family, TaskRequirements  # noqa: E402
from stentor.models.decoding.transducer import Path as Written  # noqa: E402
from stentor.models.decoding.transducer import follow, greedy, start  # noqa: E402

SAID = ("three seven nine", "one two", "zero eight four")
WHISPER = {"model_type": "whisper", "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2}
WHISPER |= {"encoder_ffn_dim": 32, "num_mel_bins": 80}
WAVE = {"model_type": "wav2vec2", **recognisers.WIDE}


def untrained(encoder=None, **section):
    torch.manual_seed(0)
    encoder = {"config": encoder or {**tiny_transducers.OWN_ENCODER, "num_mel_bins": 80}, **section}
    family = {**tiny_transducers.OWN, "encoder": encoder, "predictor": {"hidden": 48, "layers": 2}}
    texts = TaskRequirements("transcribe", ("rnnt", "ctc", "times"), lambda: iter([*tiny_transducers.TEXTS, *SAID]))
    return Family.model_validate(family).build(texts)


def learnt(**section):
    """A model of ours that knows the texts by heart, also with a pause between them and silence behind."""
    bundle, pause = untrained(**section), np.zeros(32000, np.float32)
    clips = {text: say(text).audio for text in (*SAID, "one")}
    clips[f"{SAID[0]} one"] = np.concatenate([clips[SAID[0]], pause, clips["one"]])
    items = [Example(text, audio, text) for text, audio in clips.items()]
    items.append(Example("silence", np.concatenate([clips[SAID[1]], pause]), SAID[1]))
    optimizer = torch.optim.Adam(bundle.model.train().parameters(), 5e-3)
    for _ in range(220):
        optimizer.zero_grad()
        loss(bundle, items).backward()
        torch.nn.utils.clip_grad_norm_(bundle.model.parameters(), 50.0)
        optimizer.step()
    bundle.model.eval().requires_grad_(False)
    return bundle


def own(encoder=None, **section):
    """A model of ours that writes something: blank is about as likely as all else."""
    bundle = untrained(encoder, **section)
    model = bundle.model.eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("joint", "predictor", "project")):
            parameter.normal_(std=0.5)
    states, frames = model.encode(**inputs_of(bundle))
    head, space = model.joint.head, bundle.processor.tokenizer.get_vocab()[" "]
    head.bias -= model.joint(states, start(model, 1, states.device)[0]).mean((0, 1))
    head.bias[[i for i in bundle.processor.tokenizer.all_special_ids if i != model.blank]] = -99.0
    head.bias[space] += 2.0
    while len(greedy(model, states, frames, [200] * len(SAID))[0].ids) > 30:
        head.bias[model.blank] += 0.5
    model.times_head.bias.copy_(torch.tensor([1.0, 2.0]))
    return bundle


def nemotron(folder):
    """A streaming Nemotron that writes something."""
    source = tiny_transducers.write("nemotron_asr_streaming", folder)
    family = Family.model_validate({"type": "transducer", "from": str(source)})
    bundle = family.build(TaskRequirements("transcribe", ("rnnt",)))
    bundle.model.eval()
    return bundle


def exported(bundle, folder, *options):
    """The folder of a model, and its export."""
    recognisers.save(bundle, folder / "model")
    facts = {"task": {"type": "transcribe", "checks": {"on": False}}, "data": {"eval": {}}}  # no second attempts
    (folder / "model" / "training_config.json").write_text(json.dumps(facts))
    assert main(["export", str(folder / "model"), "--to", str(folder / "to"), *options]) == 0
    return folder / "model", folder / "to"


def inputs_of(bundle):
    return bundle.processor.collate([Example(text, say(text).audio, text) for text in SAID], labels=False).inputs


def energies(audio, stream):
    """What sherpa-onnx 2.0.1 computes, [1, BANDS, T]."""
    kaldi = KaldiFeatures(type="spectrogram", remove_dc_offset=False)
    if stream:
        kaldi.extractor.window = torch.hann_window(400)
    power = torch.from_numpy(kaldi.extract(audio)).double() @ slaney_filters(BANDS, 8000.0 if stream else 7600.0)
    return power.clamp(min=torch.finfo(torch.float32).eps).log().float().T[None]


@torch.no_grad()
def texts_of_files(bundle, clips):
    """Texts of the model for sherpa-onnx's features, with as many tokens at a frame as it allows."""
    model, features = bundle.model.float(), SherpaFeatures(feature_kind(bundle), bundle.processor.shape.mels, False)
    model.max_symbols = 5 if model.durations else 10
    texts = []
    for clip in clips:
        given = energies(clip, False)
        lengths = torch.tensor([given.shape[2]])
        states, frames, *_ = EncoderGraph(model)(features(given, lengths), lengths)
        texts.append(bundle.processor.decode(greedy(model, states, frames, [1000])[0].ids).strip())
    return texts


@torch.no_grad()
def texts_of_streams(bundle, clips):
    """As `texts_of_files`, chunk by chunk as long as there are whole chunks."""
    model, chunks = bundle.model.float(), chunk_encoder(bundle)
    graph, features = ChunkGraph(model, chunks), SherpaFeatures(feature_kind(bundle), bundle.processor.shape.mels, True)
    model.max_symbols, texts = 10, []
    for clip in clips:
        given = energies(clip, True)
        rows = features(given, torch.tensor([given.shape[2]]))
        rows = torch.cat([torch.zeros(1, rows.shape[1], chunks.lead), rows], 2)
        (output, state), cache, ids = start(model, 1, torch.device("cpu")), torch.zeros(1, graph.size), []
        for first in range(0, given.shape[2] - graph.features, graph.step):
            window = rows[:, :, first : first + graph.features]
            states, *_, cache = graph(window, torch.tensor([graph.features]), cache)
            follow(model, states, [path := Written(states.shape[1], 1000)], output, state)
            ids += path.ids
        texts.append(bundle.processor.decode(ids).strip())
    return texts


def words_of_stream(folder, clip, scratch):
    """Words that stream.py of a sherpa export prints for a short clip, where little else can be imported."""
    write(scratch / "clip.wav", clip, 16000)
    lines = [line.split() for line in alone(folder / "stream.py", scratch / "clip.wav").splitlines()]
    assert all(0 <= float(start) <= float(end) <= len(clip) / 16000 for start, end, _ in lines)
    return [word for *_, word in lines]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "parakeet_tdt"])
def test_files_in_all_runtimes(kind, tmp_path):
    """The program gives Stentor's words and times, unmodified onnx-asr its words, sherpa-onnx those of its features."""
    onnx_asr, _ = pytest.importorskip("onnx_asr"), pytest.importorskip("sherpa_onnx")
    bundle = learnt() if kind == "own" else recognisers.transducer(kind, tmp_path / "base")
    options = ["--format", "onnx,sherpa", "--allow-difference"]
    model, to = exported(bundle, tmp_path, *options)
    row = rows(to / "onnx")["float32"]
    assert row["differ"] == 0 and row["times_ms"][1] <= 1
    same_as_stentor(model, to / "onnx", tmp_path)
    clips = [say(text).audio for text in SAID]
    loaded = stentor.load(model, "cpu")
    name = "nemo-conformer-tdt" if kind == "parakeet_tdt" else "nemo-conformer-rnnt"
    theirs = onnx_asr.load_model(name, to / "onnx")
    ours = [loaded.transcribe(clip, 16000).text for clip in clips]
    assert [theirs.recognize(clip).split() for clip in clips] == [text.split() for text in ours] and all(ours)
    heard = [result.text.strip() for result in recognize(to / "sherpa", clips)]
    assert heard == texts_of_files(loaded.bundle, clips) and any(heard)
    assert [words_of_stream(to / "sherpa", clip, tmp_path) for clip in clips] == [text.split() for text in heard]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "nemotron_asr_streaming"])
def test_streams_in_all_runtimes(kind, tmp_path):
    """stream.py writes what Stentor's stream writes; an OnlineRecognizer what the model does on its features."""
    pytest.importorskip("sherpa_onnx")
    bundle = learnt(streaming={}) if kind == "own" else nemotron(tmp_path / "base")
    model, to = exported(bundle, tmp_path, "--format", "onnx,sherpa", "--allow-difference")
    assert rows(to / "onnx")["float32"]["differ"] == 0
    loaded = stentor.load(model, "cpu")
    audio = np.concatenate([say(text).audio for text in SAID])
    stream = Stream(open_recogniser(loaded, StreamOptions()), silence=3600.0)
    events = [*stream.feed(audio), *stream.finish()]
    (to / "onnx" / "__init__.py").write_text("")
    sys.path.insert(0, str(to / "onnx"))
    try:
        program = load_program(to / "onnx", "stream.py")
    finally:
        sys.path.remove(str(to / "onnx"))
        sys.modules.pop("transcribe", None)
    live = program.Stream(program.Recognizer(to / "onnx"))
    for first in range(0, len(audio), 1234):
        live.feed(audio[first : first + 1234], first + 1234 >= len(audio))
    ours = [event["word"] for event in events if event["type"] == "word"]
    assert [word["word"] for word in live.words()] == ours != []
    clips = [with_tail(say(text).audio, loaded.bundle) for text in SAID]
    heard = [result.text.strip() for result in recognize(to / "sherpa", clips, True)]
    assert heard == texts_of_streams(loaded.bundle, clips) and any(heard)
    assert (to / "sherpa" / "encoder.onnx").is_file()  # for files


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whisper", "wave", "nemotron3_5_asr"])
def test_other_encoders_and_language_prompts(kind, tmp_path):
    encoders = {"whisper": WHISPER, "wave": WAVE}
    bundle = own(encoders[kind]) if kind in encoders else recognisers.transducer(kind, tmp_path / "base")
    _, folder = exported(bundle, tmp_path, "--format", "onnx", "--allow-difference")
    row = rows(folder)["float32"]
    # Nemotron's random weights choose between tokens that are as good: states are 1.2e-5 apart, features 1e-4.
    assert row["differ"] <= (0 if kind in encoders else 4) and row["times_ms"][1] <= 1
    assert not (folder / "vocab.txt").exists()  # onnx-asr would compute other features


def test_chunk_graph_carries_the_states_of_an_encoder():
    """One tensor that begins with zeros holds all states."""
    bundle = own(streaming={"lookahead": 0.08})
    chunks = chunk_encoder(bundle)
    graph, cache, states = ChunkGraph(bundle.model, chunks), None, chunks.start()
    for _ in range(3):
        given = graph.example(1)
        cache = given["cache"] if cache is None else cache
        ours, _, _, cache = graph(given["audio_signal"], given["length"], cache)
        hidden, states = chunks.encode(given["audio_signal"].transpose(1, 2), given["length"], states)
        torch.testing.assert_close(ours, bundle.model.project_encoder(hidden))


def test_one_step_of_the_predictor_is_the_predictor(tmp_path):
    for bundle in (own(), recognisers.transducer("parakeet_tdt", tmp_path / "base")):
        model, tokens = bundle.model, torch.tensor([[2], [3]])
        state = tuple(torch.randn(len(s), 2, s.shape[2]) for s in first_states(model))
        with torch.no_grad():
            output, *after = PredictorGraph(model)(tokens, list(state))
            expected, following = model.predict(tokens, state)
        torch.testing.assert_close([output, *after], [expected, *following])


def test_lists_of_tokens_spell_the_text(tmp_path):
    bundle = own()
    write_tokens(bundle, tmp_path / "tokens.txt", "<blk>", [*range(1, len(bundle.processor.tokenizer)), 0])
    lines = [line.split(" ") for line in (tmp_path / "tokens.txt").read_text("utf-8").splitlines()]
    assert [int(number) for _, number in lines] == list(range(len(lines))) and lines[-1][0] == "<blk>"
    ids = bundle.processor.ids("nine two")
    assert "".join(lines[i - 1][0] for i in ids).replace("\u2581", " ") == "nine two"


@pytest.mark.parametrize("kind", ["parakeet", "nemotron", "fixed", "whisper", "fixed_whisper"])
@pytest.mark.parametrize("stream", [False, True])
def test_features_of_training_follow_from_those_of_sherpa(kind, stream, tmp_path):
    bundles = {"parakeet": own, "fixed": lambda: own(streaming={}), "whisper": lambda: own(WHISPER)}
    bundles["fixed_whisper"] = lambda: own(WHISPER, streaming={})
    bundles["nemotron"] = lambda: recognisers.transducer("nemotron_asr_streaming", tmp_path / "base")
    processor, audio = bundles[kind]().processor, say(SAID[0]).audio
    audio = audio + 0.003 * np.random.default_rng(0).standard_normal(len(audio)).astype(np.float32)
    wanted = processor.collate([Example("", audio)], labels=False).inputs["features"]
    given = energies(audio, stream)
    got = SherpaFeatures(kind, processor.shape.mels, stream)(given, torch.tensor([given.shape[2]]))
    size = min(got.shape[2], wanted.shape[2])
    pair = torch.stack([got[0, :, :size].flatten(), wanted[0, :, :size].flatten()])
    assert torch.corrcoef(pair)[0, 1] > 0.96  # 5 ms apart, NeMo and Whisper
    assert (pair[0] - pair[1]).mean().abs() < 0.1 * pair[1].std()


@pytest.mark.parametrize(
    ("encoder", "section", "sentence"),
    [(WAVE, {}, "reads audio samples"), (WHISPER, {"window": "30s"}, "windows of 30 s")],
)
def test_what_sherpa_onnx_cannot_do_is_a_sentence(encoder, section, sentence):
    assert sentence in TransducerSherpa().refusal(own(encoder, **section))


def test_durations_that_are_no_counts_are_refused(tmp_path):
    bundle = recognisers.transducer("parakeet_tdt", tmp_path / "base", durations=[0, 2, 4, 6, 8])
    assert "durations of 0, 1, 2" in TransducerSherpa().refusal(bundle)
