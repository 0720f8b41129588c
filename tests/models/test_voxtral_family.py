"""Voxtral: prompts, features, loss, batches, decoding, freezing and exports, on a tiny model."""

import json
import pickle

import numpy as np
import pytest
import torch
from tiny_voxtral import CONFIG, LORA, build, examples, write_tokenizer

from stentor.errors import ConfigError, DataError
from stentor.losses.base import Loss
from stentor.models.base import Family
from stentor.models.parameters import parameter_table
from stentor.models.peft import is_adapter
from stentor.tasks.base import Task

torch.set_num_threads(1)

LENGTHS = (0.5, 5.0, 29.9, 30.0, 30.1, 61.0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tekken"))


@pytest.fixture(scope="module")
def bundle(tokenizer):
    return build(tokenizer)


def request(bundle, items):
    """What transformers' processor makes of the same items."""
    return bundle.processor.hf.apply_transcription_request(
        audio=[e.audio for e in items],
        language=[e.language for e in items],
        model_id="x",
        sampling_rate=16000,
        format=["WAV"] * len(items),
    )


def loss(bundle, items):
    batch = bundle.processor.collate(items)
    with torch.no_grad():
        outputs = bundle.model(**batch.inputs)
    return Loss.model_validate("cross_entropy").sum(**outputs["text"]).item(), batch


def plain(bundle):
    """transformers' model with the weights of a bundle."""
    from transformers import VoxtralForConditionalGeneration

    from stentor.models.audio_llm.modeling import transformers_name

    model = VoxtralForConditionalGeneration(bundle.model.config)
    model.load_state_dict({transformers_name(n): t for n, t in bundle.model.state_dict().items()})
    return model.eval()


def test_prompts_are_those_of_the_processor(bundle):
    items = examples(LENGTHS)
    theirs = request(bundle, items)
    batch = bundle.processor.collate(items, labels=False)
    assert torch.equal(batch.inputs["input_ids"], theirs["input_ids"])
    assert torch.equal(batch.inputs["attention_mask"], theirs["attention_mask"])
    assert len(set(map(tuple, [bundle.processor.around(e.language)[1] for e in items]))) == 3


def test_features_are_those_of_the_processor(bundle):
    items = examples((*LENGTHS, 60.0))  # the end of the last window is mirrored, which clips that reach it show
    hf = bundle.processor.hf
    padded = [np.pad(e.audio, (0, -len(e.audio) % 480000)) for e in items]
    theirs = hf._retrieve_input_features(
        padded,
        3000,
        sampling_rate=16000,
        padding=True,
        truncation=False,
        pad_to_multiple_of=480000,
        return_tensors="pt",
    )
    ours = bundle.processor.features(items)
    assert ours.shape == theirs.shape == (11, 128, 3000)
    assert (ours - theirs).abs().max() < 1e-4


def test_the_loss_is_the_models_own(bundle):
    items = examples(LENGTHS)
    ours, batch = loss(bundle, items)
    inputs = batch.inputs
    ids = inputs["input_ids"]
    labels = torch.full_like(ids, -100)
    labels.view(-1)[inputs["label_index"] + 1] = inputs["targets"]
    assert torch.equal(labels[labels >= 0], ids[labels >= 0])
    mask = (ids != bundle.processor.pad_id).long()
    with torch.no_grad():
        own = plain(bundle)(
            input_ids=ids, input_features=inputs["features"], attention_mask=mask, labels=labels
        ).loss.item()
    assert ours / batch.counts["text"] == pytest.approx(own, abs=1e-5)


def test_a_batch_is_its_items(bundle):
    items = examples(LENGTHS)
    together, _ = loss(bundle, items)
    assert together == pytest.approx(sum(loss(bundle, [item])[0] for item in items), abs=1e-4)


def test_the_end_token_is_learnt(bundle):
    batch = bundle.processor.collate(examples((1.0, 2.0)))
    ends = [i for i, t in enumerate(batch.inputs["targets"].tolist()) if t == bundle.processor.eos_id]
    assert len(ends) == 2 and ends[-1] == len(batch.inputs["targets"]) - 1
    assert not (batch.inputs["targets"] == bundle.processor.pad_id).any()


def test_long_transcripts_are_refused_and_counted(bundle):
    items = examples((1.0, 1.0), texts=("one", "word " * 65))
    batch = bundle.processor.collate(items)
    assert batch.ids == ["0"] and len(batch.inputs["input_ids"]) == 1
    ((name, reason, message),) = batch.dropped
    assert (name, reason) == ("1", "text_too_long") and "`model.max_text_tokens` is 64" in message
    nothing = bundle.processor.collate(items[1:])
    assert nothing.inputs == {} and len(nothing.dropped) == 1


def test_long_clips_are_refused(bundle):
    assert bundle.processor.max_seconds == 300
    (item,) = examples((301.0,))
    assert bundle.processor.collate([item]).dropped[0][1] == "too_long"
    with pytest.raises(DataError, match="Cut longer audio into windows first"):
        bundle.processor.collate([item], labels=False)


def test_an_unknown_language_is_refused_and_counted(bundle):
    from lhotse import MonoCut, SupervisionSegment

    items = examples((1.0, 1.0), languages=("en", "klingon"))  # a language, but without a code of two letters
    batch = bundle.processor.collate(items)
    assert batch.ids == ["0"]
    ((name, reason, message),) = batch.dropped
    assert (name, reason) == ("1", "unknown_language") and "can name no language 'klingon'" in message
    with pytest.raises(DataError, match="1: Voxtral's prompt can name no language 'klingon': give a code"):
        bundle.processor.collate(items, labels=False)
    for language, refused in (("klingon", True), ("en", False), (None, False)):  # before batches are planned
        segment = SupervisionSegment("a", "r", 0, 1.0, text="one", language=language)
        answer = bundle.family.drop_reason(bundle.processor, MonoCut("a", 0, 1.0, 0, supervisions=[segment]), True)
        assert (answer is not None) == refused
        if refused:
            assert answer[0] == "unknown_language" and answer[1].startswith("a: Voxtral's prompt can name")


@pytest.mark.parametrize("name", ["fr", "FR", "fr-CA", "fr_fr", "French", "fra"])
def test_languages_are_known_by_code_locale_and_name(bundle, name):
    assert bundle.processor.prompt(name, 16000) == bundle.processor.prompt("fr", 16000)
    assert bundle.processor.prompt(name, 16000) != bundle.processor.prompt("", 16000)
    assert bundle.processor.prompt("", 16000) == bundle.processor.prompt(None, 16000)


def test_costs_are_the_lengths_of_the_sequences(bundle):
    from lhotse import MonoCut, SupervisionSegment

    for item, seconds in zip(examples(LENGTHS), LENGTHS):
        segment = SupervisionSegment("a", "r", 0, seconds, text=item.text, language=item.language)
        cut = MonoCut("a", 0, seconds, 0, supervisions=[segment])
        assert bundle.processor.tokens(cut, seconds) == bundle.processor.collate([item]).tokens


def test_the_processor_pickles(bundle):
    again = pickle.loads(pickle.dumps(bundle.processor))
    items = examples((1.0, 31.0))
    ours, theirs = bundle.processor.collate(items).inputs, again.collate(items).inputs
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_decoding_is_that_of_transformers(bundle):
    items = examples((0.5, 5.0, 30.1))
    batch = bundle.processor.collate(items, labels=False)
    answers = bundle.model.generate(batch.inputs, max_new_tokens=[6] * 3, eos_ids={bundle.processor.eos_id})
    inputs = batch.inputs
    out = plain(bundle).generate(
        input_ids=inputs["input_ids"],
        input_features=inputs["features"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=bundle.processor.eos_id,
        pad_token_id=bundle.processor.pad_id,
    )
    for (ids, log_probs), row in zip(answers, out[:, inputs["input_ids"].shape[1] :].tolist()):
        assert ids == [t for t in row if t not in (bundle.processor.eos_id, bundle.processor.pad_id)]
        assert len(log_probs) == len(ids) and all(p <= 0 for p in log_probs)


def test_predictions_of_a_batch_are_those_of_its_items(bundle):
    task = Task.model_validate("transcribe")
    items = examples((0.5, 5.0, 30.1))
    together = task.predict(bundle, items)
    for item, output in zip(items, together):
        (alone,) = task.predict(bundle, [item])
        assert alone["text"] == output["text"] and alone["log_prob"] == pytest.approx(output["log_prob"], abs=1e-3)


def table(bundle):
    return {name: trained for name, _, trained in parameter_table(bundle.model, bundle.parts())}


def test_a_frozen_tower_has_no_trainable_parameter_adapters_included(tokenizer):
    made = build(tokenizer, lora={**LORA, "targets": ["*.q_proj"]}, freeze=["audio_tower.*"])
    assert table(made)["audio_tower"] == 0 and table(made)["language_model"] > 0
    assert not any(is_adapter(n) for n, _ in made.model.audio_tower.named_parameters())


def test_with_adapters_nothing_else_is_trained(tokenizer):
    made = build(tokenizer, lora={**LORA, "targets": ["*.q_proj"]})
    trained = {n for n, p in made.model.named_parameters() if p.requires_grad}
    assert trained and all(map(is_adapter, trained))
    assert table(made)["audio_tower"] > 0


@pytest.mark.parametrize("keys", [{}, {"lora": LORA}, {"freeze": ["audio_tower.*"]}])
def test_every_trainable_parameter_gets_a_gradient(tokenizer, keys):
    made = build(tokenizer, **keys, gradient_checkpointing=True)
    made.model.train()
    batch = made.processor.collate(examples((0.5, 31.0)))
    Loss.model_validate("cross_entropy").sum(**made.model(**batch.inputs)["text"]).backward()
    trained = {n for n, p in made.model.named_parameters() if p.requires_grad}
    assert trained == {n for n, p in made.model.named_parameters() if p.grad is not None}
    assert "audio_tower.embed_positions.weight" not in trained


@pytest.mark.parametrize(
    "keys, small",
    [
        ({"lora": LORA}, {"audio_tower", "multi_modal_projector", "language_model", "lm_head"}),
        ({"freeze": ["audio_tower.*"]}, {"audio_tower"}),
        ({"freeze": ["language_model.*"]}, {"language_model"}),
    ],
)
def test_parts_that_are_not_trained_may_be_in_bfloat16(tokenizer, keys, small):
    items = examples((0.5, 31.0))
    want, _ = loss(build(tokenizer, **keys), items)
    made = build(tokenizer, **keys, dtype="bfloat16")
    kinds = {n: p.dtype for n, p in made.model.named_parameters()}
    assert {n.split(".")[0] for n, kind in kinds.items() if kind == torch.bfloat16} == small
    assert all(kinds[n] == torch.float32 for n, p in made.model.named_parameters() if p.requires_grad)
    assert loss(made, items)[0] == pytest.approx(want, rel=0.01)
    assert len(Task.model_validate("transcribe").predict(made, items)) == 2


def shake(bundle, size=0.05):
    """Change what is trained, as training would."""
    torch.manual_seed(1)
    for parameter in bundle.model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(size * torch.randn_like(parameter))


def export(bundle, folder):
    state = bundle.model.state_dict()
    bundle.family.save(bundle, {n: state[n] for n in bundle.family.exported_tensor_names(bundle)}, folder)
    return folder


def own_loss(model, batch):
    """Summed loss of transformers' model."""
    inputs = batch.inputs
    labels = torch.full_like(inputs["input_ids"], -100)
    labels.view(-1)[inputs["label_index"] + 1] = inputs["targets"]
    with torch.no_grad():
        mean = model(input_ids=inputs["input_ids"], input_features=inputs["features"], labels=labels).loss
    return mean.item() * batch.counts["text"]


def test_a_full_export_loads_in_transformers_and_here(tokenizer, tmp_path):
    from transformers import VoxtralForConditionalGeneration, VoxtralProcessor

    made = build(tokenizer)
    shake(made)
    want, batch = loss(made, examples((0.5, 31.0)))
    export(made, tmp_path)
    theirs = VoxtralForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert own_loss(theirs, batch) == pytest.approx(want, 1e-5)
    assert VoxtralProcessor.from_pretrained(tmp_path).audio_token_id == 24
    for trainable in (False, True):
        again = Family.choices()["voxtral"].load(tmp_path, trainable)
        again.model.eval()
        assert loss(again, examples((0.5, 31.0)))[0] == pytest.approx(want, 1e-5)
        assert any(p.requires_grad for p in again.model.parameters()) == trainable


def test_an_adapter_export_is_small_and_loads_in_peft_and_here(tokenizer, tmp_path):
    from peft import PeftModel
    from transformers import VoxtralForConditionalGeneration

    base = export(build(tokenizer), tmp_path / "base")
    made = build(None, **{"from": str(base)}, lora=LORA)
    shake(made, 0.5)
    want, batch = loss(made, examples((0.5, 31.0)))
    folder = export(made, tmp_path / "adapter")
    assert not list(folder.glob("model*.safetensors"))
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    peft = PeftModel.from_pretrained(VoxtralForConditionalGeneration.from_pretrained(base), folder).eval()
    assert own_loss(peft, batch) == pytest.approx(want, 1e-5)
    assert own_loss(VoxtralForConditionalGeneration.from_pretrained(base).eval(), batch) != pytest.approx(want, 1e-3)
    for trainable in (False, True):
        again = Family.choices()["voxtral"].load(folder, trainable)
        again.model.eval()
        assert loss(again, examples((0.5, 31.0)))[0] == pytest.approx(want, 1e-5)
    made.family.save_merged(made, tmp_path / "merged")
    merged = VoxtralForConditionalGeneration.from_pretrained(tmp_path / "merged").eval()
    assert own_loss(merged, batch) == pytest.approx(want, 1e-4)
    further = build(None, **{"from": str(base)}, lora=LORA, init=str(folder))  # goes on with the adapters
    assert loss(further, examples((0.5, 31.0)))[0] == pytest.approx(want, 1e-5)
    full = build(None, **{"from": str(base)}, init=str(folder))  # folds them in
    assert loss(full, examples((0.5, 31.0)))[0] == pytest.approx(want, 1e-4)


def test_adapters_on_a_base_in_bfloat16_stay_apart(tokenizer, tmp_path):
    """Folded in, most of what small adapters learnt would be rounded away."""
    base = export(build(tokenizer), tmp_path / "base")
    made = build(None, **{"from": str(base)}, lora=LORA, dtype="bfloat16")
    items = examples((0.5, 31.0))
    untrained, _ = loss(made, items)
    shake(made, 0.02)
    made.model.eval()
    want, _ = loss(made, items)
    assert want != pytest.approx(untrained, abs=1e-5)
    again = Family.choices()["voxtral"].load(export(made, tmp_path / "adapter"))
    assert loss(again, items)[0] == want
    assert not any(p.requires_grad for p in again.model.parameters()) and not again.model.training
    assert any(map(is_adapter, again.model.state_dict()))


def test_adapters_on_weights_of_our_own_are_folded_into_the_export(tokenizer, tmp_path):
    from transformers import VoxtralForConditionalGeneration

    made = build(tokenizer, lora=LORA)
    shake(made, 0.5)
    want, batch = loss(made, examples((0.5, 31.0)))
    export(made, tmp_path)
    assert not (tmp_path / "adapter_model.safetensors").exists()
    theirs = VoxtralForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert own_loss(theirs, batch) == pytest.approx(want, 1e-5)


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"freeze": ["tower.*"]}, r"model\.freeze: 'tower\.\*' matches nothing"),
        ({"lora": {"targets": ["language_model.*.q"]}}, r"model\.lora\.targets: .* matches nothing"),
        ({"max_text_tokens": 4000}, "leave no room for 30 s"),
    ],
)
def test_impossible_settings_are_refused(tokenizer, keys, message):
    with pytest.raises(ConfigError, match=message):
        build(tokenizer, **keys)


def test_another_model_is_refused(tmp_path):
    from transformers import Qwen2Config

    Qwen2Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="is a model of the type qwen2, not voxtral"):
        build(None, **{"from": str(tmp_path)})


RUN = """\
task: {{type: transcribe, normalizer: none}}
model: {model}
data:
  train: [{{type: jsonl, path: "{folder}/train.jsonl"}}]
  eval: {{dev: {{type: jsonl, path: "{folder}/dev.jsonl"}}}}
  batch_tokens: 1000
  max_items: 2
  workers: 0
optim: {{type: adamw, lr: 1e-3}}
train: {{steps: 3, log_every: 1, eval_every: 3, save_every: 3, device: cpu}}
output: "{runs}"
name: tiny
"""


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_few_steps_through_the_command_line(tokenizer, corpus, tmp_path, cli, rows, lora):
    if lora:
        base = export(build(tokenizer), tmp_path / "base")
        model = {"type": "voxtral", "from": str(base), "lora": lora}
    else:
        model = {"type": "voxtral", "config": CONFIG, "tokenizer": str(tokenizer)}
    file = tmp_path / "run.yaml"
    model = json.dumps({**model, "max_text_tokens": 64, "token_rate": 1.0})
    file.write_text(RUN.format(model=model, folder=corpus, runs=tmp_path / "runs"))
    cli("train", file)
    run = tmp_path / "runs" / "tiny"
    losses = [row["train/loss"] for row in rows(run)]
    assert len(losses) == 3 and (lora or losses[-1] < losses[0])
    if lora:  # the second of the two matrices starts from zero
        from safetensors.torch import load_file

        adapters = load_file(run / "export" / "adapter_model.safetensors")
        assert all(t.any() for t in adapters.values()) and len(adapters) == 8
    assert (run / "export" / "adapter_model.safetensors").exists() == bool(lora)
    assert (run / "export" / "model.safetensors").exists() != bool(lora)
    said = cli("transcribe", run, corpus / "dev0.wav")
    assert said.returncode == 0
