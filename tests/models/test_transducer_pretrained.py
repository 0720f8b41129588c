"""transformers' transducers: what the family computes is what transformers computes, and exports are its folders."""

import dataclasses
import json

import pytest
import tiny_transducers
import torch
from peft import PeftConfig, PeftModel
from safetensors.torch import load_file
from tiny_families import save
from tiny_transducers import TEXTS, examples, term
from transformers import AutoModelForRNNT, AutoModelForTDT, AutoProcessor

from stentor.errors import ConfigError, DataError
from stentor.inference.load import load
from stentor.losses.base import Loss
from stentor.models.base import Family, TaskRequirements
from stentor.models.decoding.transducer import Item, greedy, search
from stentor.tasks.base import Task

torch.set_num_threads(1)

KINDS = tuple(tiny_transducers.CONFIGS)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A folder for each kind of model."""
    folder = tmp_path_factory.mktemp("transducers")
    return {kind: tiny_transducers.write(kind, folder / kind) for kind in KINDS}


def build(kind, folder=None, texts=TEXTS, seed=0, made=None, **keys):
    torch.manual_seed(seed)
    origin = (
        {"config": {"model_type": kind, **tiny_transducers.CONFIGS[kind]}} if folder is None else {"from": str(folder)}
    )
    bundle = Family.model_validate({"type": "transducer", **origin, **keys}).build(
        TaskRequirements("transcribe", (term(kind),), lambda: iter(texts), resumed_export=made)
    )
    bundle.model.eval()
    return bundle


def plain(kind, folder):
    """transformers' model, with the adapters that PEFT loads into it, and processor."""
    auto = AutoModelForTDT if kind == "parakeet_tdt" else AutoModelForRNNT
    if (folder / "adapter_config.json").exists():
        base = auto.from_pretrained(PeftConfig.from_pretrained(folder).base_model_name_or_path)
        return PeftModel.from_pretrained(base, folder).eval(), AutoProcessor.from_pretrained(folder)
    return auto.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)


def loss_sum(bundle, items):
    ((name, arguments),) = bundle.model(**bundle.processor.collate(items).inputs).items()
    return Loss.model_validate(name).sum(**arguments)


def all_paths(logits, frames, ids, blank):
    """Negative log-probability of all alignments of RNN-T, from the joint's logits [T, U + 1, V] of one item."""
    scores = logits.double().log_softmax(-1)
    sums = torch.full((frames, len(ids) + 1), -torch.inf, dtype=torch.float64)
    sums[0, 0] = 0.0
    for t in range(frames):
        for u in range(len(ids) + 1):
            if t:
                sums[t, u] = torch.logaddexp(sums[t, u], sums[t - 1, u] + scores[t - 1, u, blank])
            if u:
                sums[t, u] = torch.logaddexp(sums[t, u], sums[t, u - 1] + scores[t, u - 1, ids[u - 1]])
    return -(sums[-1, -1] + scores[frames - 1, len(ids), blank])


@pytest.mark.parametrize("kind", KINDS)
def test_features_and_loss_are_those_of_transformers(kind, checkpoints):
    bundle = build(kind, checkpoints[kind])
    reference, processor = plain(kind, checkpoints[kind])
    items = examples()
    ours = bundle.processor.collate(items).inputs
    theirs = processor([e.audio for e in items], sampling_rate=16000)["input_features"].transpose(1, 2)
    torch.testing.assert_close(ours["features"], theirs[..., : ours["features"].shape[-1]], atol=1e-5, rtol=1e-5)
    expected = 0.0
    for item in items:
        inputs = processor([item.audio], text=[item.text], sampling_rate=16000)
        with torch.no_grad():
            if kind == "parakeet_tdt":
                expected += reference(**inputs).loss * inputs["labels"].shape[1]  # a mean over the tokens
                continue
            labels = inputs.pop("labels")[0]  # the loss for which transformers needs torchaudio
            logits = reference(**inputs).logits[0]
            frames = int(
                reference.get_audio_features(
                    **{n: t for n, t in inputs.items() if n != "decoder_input_ids"}
                ).attention_mask.sum()
            )
            expected += all_paths(logits, frames, labels, reference.config.blank_token_id)
    with torch.no_grad():
        torch.testing.assert_close(loss_sum(bundle, items).double(), expected.double(), rtol=1e-5, atol=1e-3)


def emissions(sequence, steps, blank, frames):
    """Tokens and their frames from a row of what transformers generates."""
    at, ids, times = 0, [], []
    for token, step in zip(sequence.tolist()[1:], steps.tolist()[1:]):
        if at < frames and token != blank:
            ids.append(token)
            times.append(at)
        at += step
    return ids, times


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_their_frames_are_those_of_transformers(kind, checkpoints):
    bundle = build(kind, checkpoints[kind])
    reference, processor = plain(kind, checkpoints[kind])
    items = examples()
    with torch.no_grad():
        generated = reference.generate(**processor([e.audio for e in items], sampling_rate=16000), max_length=2000)
    inputs = bundle.processor.collate(items, labels=False).inputs
    answers = bundle.model.generate(inputs, [5000] * len(items))
    frames = [bundle.processor.frames(len(e.audio)) for e in items]
    for i, (ids, log_probs, spans, *_) in enumerate(answers):
        expected, times = emissions(generated.sequences[i], generated.durations[i], bundle.model.blank, frames[i])
        assert ids == expected and len(ids) == len(log_probs) > 2
        step = bundle.model.frame_seconds
        assert [first for first, _ in spans] == pytest.approx([t * step for t in times])
        assert all(first < last for first, last in spans)
    assert len(set(map(tuple, (ids for ids, *_ in answers)))) == len(items)
    # transformers goes on to write after the end of clips that are shorter than the longest one of a batch.
    assert bundle.processor.decode(answers[0][0]) == processor.decode(generated.sequences[0], skip_special_tokens=True)


def adapted(kind, folder, **keys):
    """A model with adapters that do something, and with predictor and joint as if they had been trained beside them."""
    bundle = build(kind, folder, lora={"rank": 2, "alpha": 4, "dropout": 0.0}, **keys)
    trained = {n: p for n, p in bundle.model.named_parameters() if p.requires_grad}
    for name in trained:
        if "lora_" in name:
            trained[name].data.normal_(std=0.3)
    for name in trained:
        if "lora_" not in name:
            trained[name].data += 0.01 * torch.randn_like(trained[name])
    bundle.model.calibration.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return bundle


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("merged", [False, True])
def test_an_export_with_lora_says_the_same_everywhere(kind, merged, checkpoints, tmp_path):
    bundle, folder = adapted(kind, checkpoints[kind]), tmp_path
    if merged:
        bundle.family.save_merged(bundle, folder)
    else:
        save(bundle, folder)
    assert (folder / "model.safetensors").exists() is merged is not (folder / "adapter_model.safetensors").exists()
    task = Task.model_validate("transcribe")
    answers = [a["text"] for a in task.predict(bundle, examples())]
    again = load(folder, device="cpu")
    assert again.bundle.processor.trained_speech == bundle.processor.trained_speech
    assert again.bundle.family.type == "transducer" and again.bundle.model.calibration.tolist() == [1.0, 2.0, 3.0]
    assert [a["text"] for a in task.predict(again.bundle, examples())] == answers and any(answers)
    assert not torch.equal(loss_sum(bundle, examples()), loss_sum(build(kind, checkpoints[kind]), examples()))
    torch.testing.assert_close(loss_sum(again.bundle, examples()), loss_sum(bundle, examples()), rtol=1e-5, atol=1e-3)
    model, processor = plain(kind, folder)
    for example, answer in zip(examples(), answers):
        with torch.no_grad():
            generated = model.generate(**processor([example.audio], sampling_rate=16000), max_length=2000)
        assert processor.batch_decode(generated.sequences, skip_special_tokens=True)[0].strip() == answer


def test_adapters_are_exported_with_what_was_trained_beside_them_and_gone_on_from(checkpoints, tmp_path):
    base = checkpoints["parakeet_tdt"]
    bundle = adapted("parakeet_tdt", base, freeze=["joint.*"])
    folder = save(bundle, tmp_path / "adapters")
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(base) and settings["r"] == 2
    assert settings["modules_to_save"] == [
        "decoder.decoder_projector",
        "decoder.embedding",
        "decoder.lstm",
        "encoder_projector",
    ]
    files = {name.split(".")[2] for name in load_file(folder / "adapter_model.safetensors")}
    assert files == {"decoder", "encoder", "encoder_projector"}
    names = bundle.family.exported_tensor_names(bundle)
    again = Family.choices()["transducer"].load(folder, trainable=True)
    state, expected = again.model.state_dict(), bundle.model.state_dict()
    assert state.keys() == expected.keys() and all(torch.equal(state[n], expected[n]) for n in expected)
    trained = [{n for n, p in b.model.named_parameters() if p.requires_grad} for b in (bundle, again)]
    assert trained[0] == trained[1] == {n for n in names if n != "calibration"}
    assert again.family.exported_tensor_names(again) == names
    loss = loss_sum(bundle, examples())
    for keys in ({"folder": folder}, {"folder": base, "init": str(folder)}):
        other = build("parakeet_tdt", **keys, lora={"rank": 4})
        torch.testing.assert_close(loss_sum(other, examples()), loss, rtol=1e-5, atol=1e-3)
        whole = save(other, tmp_path / f"whole{len(keys)}")  # what it was started from is no longer the base's
        assert not (whole / "adapter_config.json").exists() and (whole / "model.safetensors").exists()
    with pytest.raises(ConfigError, match="holds adapters for another"):
        build("parakeet_tdt", folder, tokenizer={"type": "characters"})


@pytest.mark.parametrize(
    "keys",
    [
        {"lora": {"targets": ["decoder.decoder_projector"]}},
        {"lora": {"rank": 2}, "tokenizer": {"type": "characters"}},
        {"lora": {"rank": 2}, "folder": None},
    ],
)
def test_where_adapters_alone_would_not_do_the_export_is_whole(keys, checkpoints, tmp_path):
    bundle = build("parakeet_tdt", **{"folder": checkpoints["parakeet_tdt"], **keys})
    folder = save(bundle, tmp_path)
    assert not (folder / "adapter_config.json").exists()
    again = load(folder, device="cpu").bundle
    torch.testing.assert_close(loss_sum(again, examples()), loss_sum(bundle, examples()), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_from_a_config_writes_with_the_letters_of_the_transcripts(kind, tmp_path):
    bundle = build(kind, texts=("ab c", "bé!"))
    tokens = bundle.processor.tokenizer
    assert bundle.model.blank == len(tokens) - 1 == bundle.model.recogniser.config.vocab_size - 1
    assert bundle.processor.decode(bundle.processor.ids("cab é")) == "cab é"
    assert bundle.processor.unknown_letters("ab ж") == "ж"
    batch = bundle.processor.collate(examples(texts=("ab", "c", "bé!")))
    assert batch.counts == {term(kind): 6} and batch.inputs["target_lengths"].tolist() == [2, 1, 3]
    model, processor = plain(kind, save(bundle, tmp_path))
    assert processor.batch_decode([bundle.processor.ids("bé !c")]) == ["bé !c"]
    assert model.generation_config.decoder_start_token_id == bundle.model.blank


def test_a_pretrained_model_gets_a_new_tokenizer_where_it_is_asked_for(checkpoints, tmp_path):
    before = build("parakeet_tdt", checkpoints["parakeet_tdt"])
    bundle = build("parakeet_tdt", checkpoints["parakeet_tdt"], texts=("äöü",), tokenizer={"type": "characters"})
    tensors = bundle.model.recogniser.state_dict()
    for name, tensor in before.model.recogniser.state_dict().items():
        changed = name in ("decoder.embedding.weight", "joint.head.weight", "joint.head.bias")
        assert changed or torch.equal(tensors[name], tensor), name
    assert bundle.processor.decode(bundle.processor.ids("öä")) == "öä"
    assert loss_sum(bundle, examples(texts=("ä", "öü", ""))).isfinite()
    other = build("parakeet_tdt", init=str(save(bundle, tmp_path)), texts=("other words",))
    characters = {"texts": ("xyz",), "tokenizer": {"type": "characters"}}
    resumed = build("parakeet_tdt", checkpoints["parakeet_tdt"], made=tmp_path, **characters)
    assert resumed.processor.ids("äöü") == bundle.processor.ids("äöü") == other.processor.ids("äöü")
    assert torch.equal(
        loss_sum(other, examples(texts=("ä", "ö", "ü"))), loss_sum(bundle, examples(texts=("ä", "ö", "ü")))
    )


def test_languages_are_told_where_a_model_takes_them(checkpoints):
    bundle = build("nemotron3_5_asr", checkpoints["nemotron3_5_asr"])
    _, processor = plain("nemotron3_5_asr", checkpoints["nemotron3_5_asr"])
    items = [dataclasses.replace(e, language=name) for e, name in zip(examples(), ("de", "en_GB", None))]
    prompts = bundle.processor.collate(items, labels=False).inputs["prompt_ids"].tolist()
    assert prompts == [processor.prompt_dictionary[name] for name in ("de", "en-GB", "auto")]
    bundle.processor.collate(examples(language="de-AT"))
    with pytest.raises(DataError, match="does not know the language xx"):
        bundle.processor.collate(examples(language="xx"), labels=False)
    assert "xx" in bundle.processor.unknown_language("xx") and bundle.processor.unknown_language("en") is None
    with torch.no_grad():
        losses = {str(loss_sum(bundle, examples(language=name))) for name in (None, "de", "fr")}
    assert len(losses) == 3
    assert build("parakeet_tdt", checkpoints["parakeet_tdt"]).processor.unknown_language("xx") is None


@pytest.mark.parametrize(
    "keys, message", [({"config": {"model_type": "parakeet_ctc"}}, "not served by the family transducer")]
)
def test_what_cannot_be_is_said(keys, message):
    with pytest.raises(ConfigError, match=message):
        build("parakeet_tdt", keys.pop("from", None), **keys)


def test_the_loss_term_is_the_model_s(checkpoints):
    family = Family.model_validate({"type": "transducer", "from": str(checkpoints["parakeet_tdt"])})
    with pytest.raises(ConfigError, match=r"losses: \{tdt: tdt\}"):
        family.build(TaskRequirements("transcribe", ("rnnt",), lambda: iter(TEXTS)))


@pytest.mark.parametrize("key, value", [("predictor", {"hidden": 8}), ("times", True), ("ctc", {})])
def test_parts_of_ours_go_with_an_encoder_of_ours(key, value):
    with pytest.raises(ValueError, match="goes with `encoder`"):
        Family.model_validate({"type": "transducer", "config": {"model_type": "parakeet_tdt"}, key: value})


# Beam search


def log_probability(model, states, frames, ids):
    """Of a text over all alignments, by the loss; -inf without a single one (TDT that jumps over the end)."""
    targets, lengths = torch.tensor([list(ids)], dtype=torch.long), torch.tensor([len(ids)])
    arguments = model.joint_arguments(states[None], torch.tensor([frames]), targets, lengths)
    loss = Loss.model_validate(model.term).sum(**arguments)
    return -float(loss) if loss else -torch.inf


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_of_a_beam_is_as_likely_as_the_greedy_text(kind, checkpoints):
    bundle = build(kind, checkpoints[kind])
    model = bundle.model
    with torch.no_grad():
        states, frames = model.encode(**bundle.processor.collate(examples(), labels=False).inputs)
        limits = [400] * len(frames)
        first = greedy(model, states, frames, limits)
        gains = []
        for beams in (2, 5):
            best = [answers[0] for answers in search(model, states, frames, limits, beams)]
            for row, n, path, hypothesis in zip(states, frames.tolist(), first, best):
                gains.append(
                    log_probability(model, row[:n], n, hypothesis.ids) - log_probability(model, row[:n], n, path.ids)
                )
                if kind != "parakeet_tdt":  # whose last jump may be over the end, which is no path of the loss
                    assert hypothesis.score <= log_probability(model, row[:n], n, hypothesis.ids) + 1e-3
                assert hypothesis.best <= hypothesis.score + 1e-6
    assert min(gains) > -1e-3 and max(gains) > 1.0, gains


@pytest.mark.parametrize("kind", KINDS)
def test_a_beam_of_a_batch_is_that_of_its_items(kind, checkpoints):
    bundle = build(kind, checkpoints[kind])
    task = Task.model_validate({"type": "transcribe", "beams": 3})
    answers = task.predict(bundle, examples())
    for answer, item in zip(answers, examples()):
        (alone,) = task.predict(bundle, [item])
        assert alone["text"] == answer["text"] and alone["log_prob"] == pytest.approx(answer["log_prob"], abs=1e-3)
        times = [(w["word"], w["start"], w["end"]) for w in answer["words"]]
        assert times == [(w["word"], w["start"], w["end"]) for w in alone["words"]]
        assert all(0 <= start <= end for _, start, end in times)
    assert any(
        a["text"] != g["text"] for a, g in zip(answers, Task.model_validate("transcribe").predict(bundle, examples()))
    )


def test_a_limit_ends_a_text(checkpoints):
    bundle = build("parakeet_rnnt", checkpoints["parakeet_rnnt"])
    with torch.no_grad():
        states, frames = bundle.model.encode(**bundle.processor.collate(examples(), labels=False).inputs)
    lengths = [len(h.ids) for h, *_ in search(bundle.model, states, frames, [3, 0, 5], 2)]
    assert all(length <= limit for length, limit in zip(lengths, [3, 0, 5])) and lengths[1] == 0 < lengths[2]


def test_ways_to_the_same_text_are_added_up():
    """... and the times are those of the likeliest one."""
    item = Item(frames=4, limit=9, beams=2, bias=None)
    start = item.ahead[0][()]
    for score, first in ((-2.0, 0), (-1.0, 1), (-3.0, 2)):
        h = type(start)(score, score, 0, (7,), (score,), ((first, first + 1),))
        item._add(h, 3)
    (together,) = item.ahead[3].values()
    assert together.score == pytest.approx(torch.tensor([-1.0, -2.0, -3.0]).logsumexp(0).item())
    assert together.best == -1.0 and together.spans == ((1, 2),) and together.log_probs == (-1.0,)
