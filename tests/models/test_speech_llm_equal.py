"""The speech LLM gives the same numbers however its items share a batch, and the numbers of transformers."""

import pytest
import torch
from tiny_speech_llm import ENCODERS, LLMS, build, examples, gradients, own_loss, sums

from stentor.models.encoders.encode import encode

torch.set_num_threads(1)


@pytest.mark.parametrize("projector", ["mlp", "conv"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_clip_in_a_batch_is_the_clip_alone(encoder, projector):
    bundle = build(encoder, projector={"type": projector}, ctc={})
    # layers that padding could reach are made loud
    for parameter in bundle.model.parameters():
        parameter.data.mul_(2.0)
    items = examples()
    with torch.no_grad():
        inputs = bundle.processor.collate(items).inputs
        batch, lengths = bundle.model.frames(inputs["features"], inputs["feature_lengths"])
        audio = bundle.model.projector(batch)
        for i, item in enumerate(items):
            one = bundle.processor.collate([item]).inputs
            alone, length = bundle.model.frames(one["features"], one["feature_lengths"])
            assert length[0] == lengths[i] == alone.shape[1]
            torch.testing.assert_close(batch[i, : length[0]], alone[0], rtol=1e-4, atol=1e-5)
            assert not batch[i, length[0] :].any()
            projected = bundle.model.projector(alone)[0]
            torch.testing.assert_close(audio[i, : len(projected)], projected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoder", ["whisper", "parakeet", "wav2vec2-base"])
def test_losses_and_gradients_of_a_batch_are_those_of_its_items(encoder):
    bundle = build(encoder, ctc={})
    items = examples()
    together = gradients(bundle, items)
    apart = [gradients(bundle, [item]) for item in items]
    assert together.keys() == apart[0].keys()
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, sum(a[name] for a in apart), rtol=1e-3, atol=2e-4, msg=name)


def test_parakeet_in_training_mode_is_independent_of_the_batch_too():
    off = dict.fromkeys(("dropout", "activation_dropout", "attention_dropout", "layerdrop"), 0.0)
    config = {**ENCODERS["parakeet"], **off}
    bundle = build(encoder={"config": config})
    bundle.model.train()
    items = examples()
    torch.testing.assert_close(sums(bundle, items)["text"], sum(sums(bundle, [i])["text"] for i in items))


@pytest.mark.parametrize("llm", LLMS)
def test_packed_is_padded(llm):
    bundle = build(llm=llm, ctc={})
    items = examples()
    padded, packed = sums(bundle, items), sums(bundle, items, packed=True)
    for term in ("text", "ctc"):
        torch.testing.assert_close(packed[term], padded[term], rtol=1e-5, atol=0)
    a, b = gradients(bundle, items), gradients(bundle, items, packed=True)
    for name in a:
        torch.testing.assert_close(b[name], a[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("llm", LLMS)
def test_our_loss_is_the_language_models_own(llm):
    bundle = build(llm=llm)
    torch.testing.assert_close(sums(bundle, examples())["text"], own_loss(bundle, examples()), rtol=1e-5, atol=0)


def test_whisper_at_full_length_is_transformers_encoder():
    bundle = build()
    encoder = bundle.model.encoder
    torch.manual_seed(1)
    features = torch.randn(2, 80, 3000)
    ours, lengths = encode(encoder, bundle.processor.shape, features, torch.tensor([3000, 3000]))
    theirs = encoder(features).last_hidden_state
    assert lengths.tolist() == [1500, 1500]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_whisper_in_a_30_second_window_is_transformers_encoder_cut_to_the_clip():
    bundle = build(encoder={"config": ENCODERS["whisper"], "window": "30s"})
    item = examples(seconds=(1.3,))[0]
    inputs = bundle.processor.collate([item]).inputs
    assert inputs["features"].shape == (1, 80, 3000)
    ours, lengths = bundle.model.frames(inputs["features"], inputs["feature_lengths"])
    assert ours.shape[1] == lengths[0] == 65
    torch.testing.assert_close(ours[0], bundle.model.encoder(inputs["features"]).last_hidden_state[0, :65])


@pytest.mark.parametrize("encoder", ["wav2vec2-base", "wav2vec2-large", "hubert", "wavlm"])
def test_wave_encoders_alone_are_those_of_transformers(encoder):
    from transformers import AutoModel

    bundle = build(encoder)
    theirs = AutoModel.from_config(bundle.model.encoder.config).eval()
    theirs.load_state_dict(bundle.model.encoder.state_dict())
    inputs = bundle.processor.collate(examples(seconds=(0.8,))).inputs
    ours, _ = bundle.model.frames(inputs["features"], inputs["feature_lengths"])
    torch.testing.assert_close(ours, theirs(inputs["features"]).last_hidden_state, rtol=1e-4, atol=1e-5)


def test_a_pretrained_parakeet_gets_its_own_features_and_frozen_statistics(tmp_path):
    from transformers import AutoConfig, AutoModel, ParakeetFeatureExtractor

    config = dict(ENCODERS["parakeet"])
    torch.manual_seed(1)
    theirs = AutoModel.from_config(AutoConfig.for_model(config.pop("model_type"), **config)).eval()
    for name, buffer in theirs.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 1.5)
    theirs.save_pretrained(tmp_path)
    bundle = build(encoder={"from": str(tmp_path)})
    bundle.model.encoder.train()
    assert not any(m.training for m in bundle.model.encoder.modules() if isinstance(m, torch.nn.BatchNorm1d))
    bundle.model.eval()
    items = examples()
    inputs = bundle.processor.collate(items).inputs
    expected = ParakeetFeatureExtractor()([e.audio for e in items], sampling_rate=16000, return_tensors="pt")
    ours, lengths = bundle.model.frames(inputs["features"], inputs["feature_lengths"])
    reference = theirs(expected["input_features"], attention_mask=expected["attention_mask"])
    assert reference.attention_mask.sum(1).tolist() == lengths.tolist()
    for row, other, length in zip(ours, reference.last_hidden_state, lengths):
        torch.testing.assert_close(row[:length], other[:length], rtol=1e-4, atol=1e-5)
