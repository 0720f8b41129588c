"""The family `transformer`: its layers, its three kinds, its config, its exports."""

import json
import math
from itertools import product

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from stentor.config.load import load as load_config
from stentor.data.batch import Example
from stentor.dataloading.planned import ModelDrops
from stentor.engine.optim import _muon_names
from stentor.errors import ConfigError, DataError
from stentor.losses.base import Loss
from stentor.models.base import Family, TaskRequirements
from stentor.models.encoders.geometry import mask as valid
from stentor.models.transformer.config import Layers, Transformer
from stentor.models.transformer.layers import Convolution, Dropout, FeedForward, Residual, ScaleNorm
from stentor.models.transformer.modeling import Heads, TransformerModel
from stentor.models.transformer.stack import Stack
from stentor.tasks.base import Task
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.language import Language
from stentor.tasks.transcribe import Transcribe
from tiny_configs import WAVE, WHISPER

torch.set_num_threads(1)

SMALL = {"d_model": 32, "layers": 2, "heads": 2, "dropout": 0.0}
FEATURES = {"num_mel_bins": 20, "stack": 4, "subsample": 4}
TEXTS = ("one two three", "nine eight", "zero zero seven", "six")
NORMS = ("layernorm", "rmsnorm", "scalenorm", "rezero")
LINEAR = {"attention": "causal_linear", "attention_features": 64}


def build(task="diarize", terms=None, seed=0, needs=None, **keys):
    """A bundle in evaluation mode; the texts are `TEXTS`."""
    kinds = {"diarize": "encoder", "transcribe": "encoder_decoder", "language": "decoder"}
    section = {"type": "transformer", "kind": kinds[task], "shared": SMALL, "features": FEATURES, **keys}
    torch.manual_seed(seed)
    requirements = needs or {"classes": 3} if task == "diarize" else {"texts": lambda: iter(TEXTS)}
    bundle = Family.model_validate(section).build(TaskRequirements(task, tuple(terms or ("text",)), **requirements))
    bundle.model.eval()
    return bundle


def clips(*seconds, texts=TEXTS):
    generator = np.random.default_rng(0)
    return [
        Example(str(i), generator.normal(0, 0.1, round(16000 * s)).astype(np.float32), text)
        for i, (s, text) in enumerate(zip(seconds, texts))
    ]


def awake(module):
    """Scalars that begin at 0 are given another value, or ReZero's branches would do nothing."""
    for name, parameter in module.named_parameters():
        if name.endswith("alpha"):
            nn.init.constant_(parameter, 0.3)
    return module


# Layers ---------------------------------------------------------------------------------------------------------------


def test_norms_are_what_their_papers_say():
    x = torch.randn(3, 16)
    scale = ScaleNorm(16)
    torch.testing.assert_close(scale(x), math.sqrt(16) * x / x.norm(dim=-1, keepdim=True))
    with torch.no_grad():
        scale.scale.fill_(2.0)
    assert scale(x).norm(dim=-1).tolist() == pytest.approx([2.0] * 3)
    inner = nn.Linear(16, 16)
    torch.testing.assert_close(Residual(inner, "layernorm", 16, 0.0)(x), x + inner(F.layer_norm(x, (16,))))
    torch.testing.assert_close(
        Residual(inner, "rmsnorm", 16, 0.0, 0.5)(x), x + inner(F.rms_norm(x, (16,), eps=1e-6)) / 2
    )
    rezero = Residual(inner, "rezero", 16, 0.0)
    assert torch.equal(rezero(x), x)
    rezero(x).sum().backward()
    assert rezero.alpha.grad.abs() > 0 and not inner.weight.grad.any()
    torch.testing.assert_close(awake(rezero)(x), x + 0.3 * inner(x))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_dropout(share):
    """Each element by itself, scaled so that the mean stays; the same again with the same seed; none in evaluation."""
    torch.manual_seed(0)
    layer = Dropout(share)
    x = torch.ones(1001, 301, requires_grad=True)
    out = layer(x)
    assert {round(v, 4) for v in out.unique().tolist()} == {0.0, round(1 / (1 - share), 4)}
    gone = (out == 0).float()
    assert float(gone.mean()) == pytest.approx(share, abs=0.005)
    for axis, shift in ((0, 1), (1, 1), (1, 2), (1, 3), (1, 4)):  # neighbours know nothing of one another
        pairs = (gone * gone.roll(shift, axis)).mean()
        assert float(pairs) == pytest.approx(share**2, abs=0.01)
    out.sum().backward()
    assert torch.equal(x.grad, out)
    torch.manual_seed(0)
    assert torch.equal(layer(x), out)
    assert torch.equal(layer.eval()(x), x) and not torch.equal(layer.train()(x), out)


@pytest.mark.parametrize(
    ("name", "activation"),
    [(a, a) for a in ("gelu", "relu", "silu")] + [("geglu", "gelu"), ("reglu", "relu"), ("swiglu", "silu")],
)
def test_feed_forward(name, activation):
    """Gated ones have as many parameters as the others."""
    layer, x, act = FeedForward(96, 4.0, name, 0.0), torch.randn(5, 96), getattr(F, activation)
    value, *gate = layer.up(x).chunk(2 if name != activation else 1, -1)
    torch.testing.assert_close(layer(x), layer.down(value * act(*gate) if gate else act(value)))
    assert layer.down.in_features == (256 if gate else 384)


def test_convolution_reads_padding_as_what_is_beyond_the_end():
    torch.manual_seed(0)
    layer = Convolution(8, 5)
    x = torch.randn(2, 12, 8)
    lengths = torch.tensor([12, 7])
    batch = layer(x, valid(lengths, 12))
    torch.testing.assert_close(batch[1, :7], layer(x[1:, :7])[0])
    moved = x.clone()
    moved[1, 6] += 1
    changed = (layer(moved, valid(lengths, 12))[1] - batch[1]).abs().amax(-1) > 1e-6
    assert changed.nonzero()[:, 0].tolist()[:3] == [4, 5, 6]  # two frames on either side
    causal = Convolution(8, 5, causal=True)
    moved = x.clone()
    moved[:, 6] += 1
    assert ((causal(moved) - causal(x)).abs().amax(-1) > 1e-6)[0].nonzero()[:, 0].tolist() == [6, 7, 8, 9, 10]


@pytest.mark.parametrize(("norm", "activation"), product(NORMS, ["gelu", "swiglu"]))
def test_a_deep_stack_starts_out_well(norm, activation):
    """The size of states and gradients stays over 24 layers."""
    torch.manual_seed(0)
    stack = Stack(Layers(d_model=64, layers=24, heads=4, norm=norm, activation=activation, dropout=0.0), False)
    x = torch.randn(4, 30, 64, requires_grad=True)
    seen = []
    for layer in stack.layers:
        layer.register_forward_hook(lambda module, args, out: seen.append(out))
    stack(x)
    seen[-1].square().sum().backward()
    assert 0.9 < seen[-1].std() < 2.0
    assert 0.5 < x.grad.norm() / (2 * seen[-1].detach()).norm() < 3.0


# Encoder --------------------------------------------------------------------------------------------------------------

STACKS = [
    *({"norm": norm, "positions": where} for norm, where in zip(NORMS, ("rope", "sinusoidal", "learned", "none"))),
    *({"attention": kind} for kind in ("linear", "causal_linear")),
    {"conv_kernel": 5, "macaron": True, "activation": "swiglu", "positions": "none"},
    {"attention": "linear", "conv_kernel": 7, "norm": "rmsnorm", "qk_norm": True},
]


@pytest.mark.parametrize("settings", STACKS, ids=lambda s: "-".join(map(str, s.values())))
def test_neither_padding_nor_the_batch_changes_frames(settings):
    torch.manual_seed(0)
    model = awake(TransformerModel(Layers(**SMALL, **settings), inputs=6, heads=Heads(classes=3, embedding=4))).eval()
    features = torch.randn(3, 40, 6)  # noise also where there is nothing
    lengths = torch.tensor([40, 1, 23])
    batch = model.label_frames(features, lengths)
    assert batch.logits.shape == (3, 40, 3) and batch.embeddings.shape == (3, 40, 4)
    for i, n in enumerate(lengths.tolist()):
        alone = model.label_frames(features[i : i + 1, :n], lengths[i : i + 1])
        torch.testing.assert_close(batch.logits[i, :n], alone.logits[0], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(batch.embeddings[i, :n], alone.embeddings[0], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("where", ["rope", "sinusoidal", "learned", "none"])
def test_positions_tell_frames_apart(where):
    torch.manual_seed(0)
    model = TransformerModel(Layers(**SMALL, positions=where), inputs=6, heads=Heads(classes=3)).eval()
    features = torch.randn(1, 20, 6)
    order = torch.randperm(20)
    lengths = torch.tensor([20])
    same = model.label_frames(features, lengths).logits[:, order]
    other = model.label_frames(features[:, order], lengths).logits
    assert torch.allclose(same, other, atol=1e-5) == (where == "none")


def test_learned_positions_end():
    model = TransformerModel(Layers(**SMALL, positions="learned", max_positions=10), inputs=6, heads=Heads(classes=3))
    with pytest.raises(DataError, match=r"11 positions .* 10 of this model"):
        model.label_frames(torch.randn(1, 11, 6), torch.tensor([11]))


def test_forward_gives_what_losses_score():
    bundle = build(embedding=4)
    batch = bundle.processor.collate(clips(1.0, 0.4), labels=False)
    frames = batch.inputs["lengths"].tolist()
    assert frames == [25, 10]
    targets = torch.zeros(2, 25, 3)
    pools = torch.zeros(2, 2, 25)
    pools[0, 0, 3:5] = 0.5
    pools[1, 1, 2] = 1.0
    labels = torch.tensor([[7, -100], [-100, 9]])
    with torch.no_grad():
        outputs = bundle.model(**batch.inputs, targets=targets, pools=pools, pool_labels=labels)
    labelled = bundle.model.label_frames(**batch.inputs)
    assert torch.equal(outputs["logits"]["logits"], labelled.logits) and outputs["logits"]["targets"] is targets
    assert outputs["hidden"]["hidden"].shape == (2, 25, 32) and outputs["hidden"]["lengths"].tolist() == frames
    averages = torch.stack([labelled.embeddings[0, 3:5].mean(0), labelled.embeddings[1, 2]])
    embeddings = outputs["embeddings"]["embeddings"]
    torch.testing.assert_close(embeddings[[0, 3]], F.normalize(averages, dim=-1))
    assert embeddings[1:3].abs().max() == 0 and outputs["embeddings"]["labels"].tolist() == [7, -100, -100, 9]
    with torch.no_grad():
        assert "embeddings" not in bundle.model(**batch.inputs, targets=targets)


def test_ssl_front_end(tmp_path):
    """The encoder reads a mix of the layers of a frozen WavLM; an export brings everything along."""
    bundle = build(ssl={"config": {"model_type": "wavlm", **WAVE}}, features={}).family.build(
        TaskRequirements("diarize", ("speakers",), classes=3)
    )
    model, processor = bundle.model, bundle.processor
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert "frontend.mix" in trained and not any(name.startswith("frontend.encoder") for name in trained)
    assert not model.frontend.encoder.training and model.encoder.training
    model.eval()
    batch = processor.collate(clips(1.0, 0.6), labels=False)
    bundle.family.save(bundle, model.state_dict(), tmp_path)
    one, again = (m.label_frames(**batch.inputs) for m in (model, Transformer.load(tmp_path).model))
    assert torch.equal(again.logits, one.logits)
    assert one.lengths.tolist() == [processor.frames(16000), processor.frames(9600)]


def test_words_are_written_from_a_frozen_whisper(tmp_path):
    config = {**WHISPER, "max_source_positions": 60}
    section = {"type": "transformer", "kind": "encoder", "shared": SMALL, "text": {"type": "words"}}
    texts = ["two one", "one one two"]
    needs = TaskRequirements("transcribe", ("ctc",), lambda: iter(texts))
    torch.manual_seed(0)
    bundle = Transformer.model_validate({**section, "ssl": {"config": config}}).build(needs)
    model, processor = bundle.model, bundle.processor
    assert processor.ctc.units == ["one", "two"] and processor.ids("two one") == [2, 1]
    assert processor.decode([1, 1, 2]) == "one one two" and processor.max_seconds == 1.2
    assert not any(p.requires_grad or name.endswith("mix") for name, p in model.frontend.named_parameters())
    batch = processor.collate([Example(e.id, e.audio, text=t) for e, t in zip(clips(1.0, 0.6, 1.3), [*texts, "one"])])
    assert [reason for _, reason, _ in batch.dropped] == ["too_long"] and batch.counts == {"ctc": 5}
    assert batch.inputs["ctc_targets"].tolist() == [2, 1, 1, 1, 2]
    model.eval()
    inputs = processor.collate(clips(1.0, 0.6), labels=False).inputs
    hidden, frames = model.encode(**inputs)
    assert frames.tolist() == [50, 30]
    Loss.model_validate("ctc").sum(**model(**batch.inputs)["ctc"]).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    bundle.family.save(bundle, model.state_dict(), tmp_path)
    again = Transformer.load(tmp_path)
    assert again.processor.ctc.units == ["one", "two"]
    assert torch.equal(again.model.encode(**inputs)[0], hidden)


# Text -----------------------------------------------------------------------------------------------------------------

DECODERS = [
    {},
    {**LINEAR, "positions": "sinusoidal", "norm": "scalenorm"},
    {**LINEAR, "cross_attention": "softmax", "positions": "learned", "norm": "rezero", "activation": "reglu"},
    {"cross_attention": "linear", "positions": "none", "macaron": True},
]


@pytest.mark.parametrize("settings", DECODERS)
@pytest.mark.parametrize("task", ["transcribe", "language"])
def test_decoding_step_by_step_is_the_whole_pass(task, settings):
    """The log-probabilities of a text, written word by word, are those of teacher forcing, in a batch with a longer
    clip and text."""
    bundle = build(task, decoder=settings)
    model, processor = awake(bundle.model), bundle.processor
    batch = processor.collate(clips(1.2, 0.5))
    with torch.no_grad():
        text = model(**batch.inputs)["text"]
        expected = F.linear(text["hidden"], text["weight"], text["bias"]).log_softmax(-1).view(2, -1, len(text["bias"]))
        states, log_probs = model.decoder.start(), []
        context = mask = None
        if task == "transcribe":
            context, frames = model.encode(batch.inputs["features"], batch.inputs["lengths"])
            mask = valid(frames, context.shape[1])
        for step in range(expected.shape[1]):
            if step == 3:  # a clip and its text change places
                states = [state.select(torch.tensor([1, 0])) for state in states]
                batch.inputs["tokens"] = batch.inputs["tokens"].flip(0)
            token = model.tokens(batch.inputs["tokens"][:, step : step + 1])
            out = model.decoder.step(token, states, *((context, mask) if step == 0 else ()))
            log_probs.append(model.text_head(out[:, 0]).log_softmax(-1))
    log_probs = torch.stack([row if i < 3 else row.flip(0) for i, row in enumerate(log_probs)], 1)
    valid_targets = batch.inputs["targets"] != -100
    torch.testing.assert_close(log_probs[valid_targets], expected[valid_targets], atol=1e-4, rtol=1e-4)


def test_a_language_model_goes_on_with_a_text():
    bundle = build("language", decoder={"positions": "learned", "max_positions": 12})
    start = torch.tensor([[bundle.processor.bos_id, 5, 6], [bundle.processor.bos_id, 7, 8]])
    answers = bundle.model.generate({"tokens": start}, max_new_tokens=50, eos_ids={-1})
    assert [len(ids) for ids, *_ in answers] == [9, 9]  # as many as there are positions
    alone = bundle.model.generate({"tokens": start[1:]}, max_new_tokens=50, eos_ids={-1})
    assert alone[0][0] == answers[1][0]


def test_an_encoder_spells_by_ctc():
    bundle = build("transcribe", ("ctc",), kind="encoder")
    processor, model = bundle.processor, bundle.model
    batch = processor.collate(clips(1.2, 0.9))
    assert batch.counts == {"ctc": len(TEXTS[0]) + len(TEXTS[1])} and "tokens" not in batch.inputs
    outputs = model(**batch.inputs)
    assert set(outputs) == {"ctc"} and Loss.model_validate("ctc").sum(**outputs["ctc"]) > 0
    classes = model.ctc_classes(batch.inputs["features"], batch.inputs["lengths"])
    assert [len(row) for row in classes] == batch.inputs["lengths"].tolist()
    table = torch.full((1, 9, len(processor.ctc)), -5.0)
    table[0, range(9), [0, 1, 1, 0, 1, 2, 2, 0, 3]] = -0.1
    model.ctc_log_probs = lambda hidden: table
    inputs = {"features": batch.inputs["features"][:1, :9], "lengths": torch.tensor([9])}
    ((ids, log_probs, *_),) = model.generate(
        inputs, max_new_tokens=[9], eos_ids={0}, beams=1, temperature=0.0, generator=None
    )
    assert ids == [1, 1, 2, 3] and log_probs == pytest.approx([-0.1] * 4)
    assert processor.ctc.units[:3] == " eg" and processor.decode(ids) == "eg"
    ((ids, *_),) = model.generate(inputs, max_new_tokens=[9], eos_ids={0}, beams=2)
    assert ids == [1, 1, 2, 3]


# Config and exports ---------------------------------------------------------------------------------------------------


def test_shared_settings():
    section = {"type": "transformer", "kind": "encoder_decoder", "shared": {**SMALL, "conv_kernel": 5}}
    family = Family.model_validate({**section, "decoder": {"layers": 1, "d_model": 16}})
    assert (family.encoder.layers, family.encoder.d_model, family.encoder.conv_kernel) == (2, 32, 5)
    assert (family.decoder.layers, family.decoder.d_model, family.decoder.conv_kernel) == (1, 16, None)
    assert family.decoder.dropout == 0.0
    assert Family.model_validate(family.model_dump(mode="json", by_alias=True)) == family
    assert Family.model_validate({"type": "transformer"}).decoder is None
    for kind, task in product(("encoder", "decoder", "encoder_decoder"), ("transcribe", "language")):
        family = Family.model_validate({"type": "transformer", "kind": kind})
        served = family.incompatible_with(Task.model_validate(task)) is None
        assert served == ((kind == "decoder") == (task == "language"))


RUN = """\
task: {task}
model:
  type: transformer
  {model}
data: {{train: [{{type: text, texts: [one]}}]}}
"""
DECODER = "kind: decoder\n  "
WRONG = [
    ("language", "kind: encoder", "4: 'model.kind': a model of the kind encoder cannot language: use decoder"),
    ("transcribe", "kind: decoder", "4: 'model.kind': .* cannot transcribe: use encoder or encoder_decoder"),
    ("transcribe", "shared: {d_model: 30}", r"4: 'model.shared.d_model': d_model \(30\) must be .* of heads \(4\)"),
    ("transcribe", "encoder: {heads: 3}", r"4: 'model.encoder.heads': d_model \(256\) must be a multiple"),
    ("transcribe", "encoder: {d_model: 20}", "4: 'model.encoder.d_model': rope needs heads of even size; .* is 5"),
    ("transcribe", "encoder: {conv_kernel: 8}", "4: 'model.encoder.conv_kernel': must be odd"),
    ("transcribe", "decoder: {layers: 2}", "4: 'model.decoder': a model of the kind encoder has no decoder"),
    ("transcribe", "encoder: {cross_attention: linear}", "4: 'model.encoder.cross_attention': only decoders"),
    (
        "transcribe",
        "shared: {attention: linear, attention_dropout: 0.1}",
        "4: 'model.shared.attention_dropout': linear attention has no weights to drop",
    ),
    ("language", DECODER + "shared: {attention: linear}", "5: 'model.shared.attention': a decoder must not look ahead"),
    ("language", DECODER + "decoder: {conv_kernel: 5}", "5: 'model.decoder.conv_kernel': only encoders have"),
    ("language", DECODER + "embedding: 8", "5: 'model.embedding': only a model of the kind encoder"),
    (
        "language",
        DECODER + "text: {type: words}",
        "5: 'model.text.type': only a model of the kind encoder writes whole",
    ),
    ("language", DECODER + "ssl: {from: x}", "5: 'model.ssl': a decoder alone reads no audio"),
    ("transcribe", "embeding: 8", r"4: unknown key 'model.embeding' \(did you mean 'embedding'\?\)"),
]


@pytest.mark.parametrize(("task", "model", "message"), WRONG)
def test_settings_that_do_not_go_together(task, model, message, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format(task=task, model=model))
    with pytest.raises(ConfigError, match=rf"run\.yaml:{message}"):
        load_config(path)


def test_terms_that_nothing_is_there_for():
    for task, terms, keys, message in (
        ("transcribe", ("ctc",), {}, "encoder_decoder is trained by the term `text` and, if wanted, `ctc`, not by ctc"),
        ("transcribe", ("text",), {"kind": "encoder"}, "is trained by the term `ctc`, not by text: .*{ctc: ctc}"),
        ("language", ("text", "ctc"), {}, "decoder is trained by the term `text`, not by ctc, text"),
        ("transcribe", ("text", "words"), {}, "not by text, words"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(task, terms, **keys)
    scores = {"classes": 3, "scores": ("logits",)}
    with pytest.raises(ConfigError, match=r"model.embedding: no loss term would train"):
        build(embedding=8, needs=scores)
    with pytest.raises(ConfigError, match=r"set `model.embedding: 128`"):
        build(needs=scores | {"scores": ("logits", "embeddings")})
    assert build(embedding=8, needs=scores | {"scores": ("logits", "embeddings")}).model.embedding_head is not None


def test_an_export_that_does_not_fit_its_config_is_refused(tmp_path):
    bundle = build()
    bundle.family.save_merged(bundle, tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    other = {**facts["family"], "shared": {**facts["family"]["shared"], "layers": 1}, "encoder": None, "decoder": None}
    (tmp_path / "config.json").write_text(json.dumps(facts | {"family": other}))
    with pytest.raises(ConfigError, match=r"do not fit config\.json"):
        Transformer.load(tmp_path)


def test_starting_from_an_export(tmp_path, caplog):
    """Weights by name; a head for other classes and the missing parts are initialised again."""
    before = build(seed=1)
    before.family.save(before, before.model.state_dict(), tmp_path)
    after = build(init=str(tmp_path), needs={"classes": 5})
    assert after.model.frame_head.out_features == 5
    for name, tensor in after.model.state_dict().items():
        assert name.startswith("frame_head") or torch.equal(tensor, before.model.state_dict()[name])
    recogniser = build("transcribe", init=str(tmp_path))
    assert torch.equal(recogniser.model.input.weight, before.model.input.weight)
    assert "newly initialised" in caplog.text and "frame_head" in caplog.text
    with pytest.raises(ConfigError, match=r"model.init: input.weight is \[32, 80\] .* \[32, 40\] here"):
        build(init=str(tmp_path), features={**FEATURES, "stack": 2})


def cut_of(text, seconds=1.0):
    from lhotse import MonoCut, SupervisionSegment

    supervision = SupervisionSegment(id="c", recording_id="c", start=0.0, duration=seconds, text=text)
    return MonoCut(id="c", start=0.0, duration=seconds, channel=0, supervisions=[supervision])


def test_records_that_the_model_has_no_room_for():
    short = {"positions": "learned", "max_positions": 30}
    bundle = build("transcribe", ("text", "ctc"), encoder=short, decoder={**short, "max_positions": 10})
    processor = bundle.processor

    def refusal(processor, cut, training, task=None):
        return ModelDrops(task or Transcribe(), processor, training)(cut)

    assert refusal(processor, cut_of("one two"), True) is None
    for text, seconds, training, reason in (
        ("one", 1.3, True, "too_long"),
        ("one", 1.3, False, "too_long"),
        ("one two three", 1.0, True, "text_too_long"),  # 13 letters and the end
        ("one one one one one one", 1.0, True, "text_too_long"),
        ("one quay", 1.0, True, "not_in_alphabet"),
    ):
        dropped = refusal(processor, cut_of(text, seconds), training)
        assert dropped is not None and dropped[0] == reason, (text, dropped)
    assert "a q u y" in refusal(processor, cut_of("one quay"), True)[1]
    assert refusal(processor, cut_of("one two three", 1.0), False) is None
    assert processor.max_seconds == pytest.approx(1.2)  # longer audio is transcribed in windows
    labels = build(encoder=short)
    assert labels.processor.max_seconds is None
    assert refusal(labels.processor, cut_of("", 9.0), False, Diarize()) is None
    assert refusal(labels.processor, cut_of("", 9.0), True, Diarize())[0] == "too_long"
    language = build("language", decoder={**short, "max_positions": 10})
    for training in (True, False):
        dropped = refusal(language.processor, cut_of("one two three"), training, Language())
        assert dropped[0] == "text_too_long" and "`model.decoder.max_positions`" in dropped[1]


def test_muon_takes_the_hidden_matrices():
    bundle = build("transcribe", ("text", "ctc"), encoder={"conv_kernel": 5})
    named = dict(bundle.model.named_parameters())
    taken = _muon_names(bundle.model, named)
    assert {
        "encoder.layers.0.attention.inner.q_proj.weight",
        "decoder.layers.1.feed_forward.inner.down.weight",
    } <= taken
    assert not any("head" in name or name.startswith("tokens") or "depthwise" in name for name in taken)


def test_redrawn_features_travel_with_the_export(tmp_path):
    bundle = build(embedding=4, encoder={"attention": "linear"}, fixed_projection=True)
    for layer in bundle.model.encoder.layers:
        assert layer.attention.inner.favor.fixed
        layer.attention.inner.favor.redraw(torch.Generator().manual_seed(5))
    bundle.family.save(bundle, bundle.model.state_dict(), tmp_path)
    names = [name for name in load_file(tmp_path / "model.safetensors") if name.endswith("favor.projection")]
    assert len(names) == 2
    inputs = bundle.processor.collate(clips(0.5), labels=False).inputs
    one, other = (model.label_frames(**inputs) for model in (bundle.model, Transformer.load(tmp_path).model))
    assert torch.equal(one.logits, other.logits) and torch.equal(one.embeddings, other.embeddings)


def test_half_precision_stays_close():
    """Under autocast to bfloat16 the answers are those of float32, up to its rounding."""
    bundle = build(encoder={"attention": "linear", "norm": "scalenorm", "conv_kernel": 5})
    inputs = bundle.processor.collate(clips(0.8, 0.5), labels=False).inputs
    with torch.autocast("cpu", torch.bfloat16):
        low = bundle.model.label_frames(**inputs).logits
    full = bundle.model.label_frames(**inputs).logits
    assert low.dtype == torch.float32 and 0 < (low - full).abs().max() < 0.05


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("norm", NORMS)
def test_layers_add_up_in_float32_under_autocast(norm):
    model = build(shared={**SMALL, "norm": norm}).model
    awake(model)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        states, _ = model._states(torch.randn(2, 9, 80), torch.tensor([9, 5]))
    assert states.dtype == torch.float32
