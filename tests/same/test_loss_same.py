"""Our summed losses, divided once, are the losses that the models compute themselves; on batches of real use."""

import pytest
import torch
from tiny_speech_llm import build, own_loss

from stentor.dataloading.batch_sampler import Item
from stentor.dataloading.loader import BatchDataset
from stentor.losses.all_paths import CTCLoss
from stentor.losses.token import CrossEntropy
from stentor.sources.manifest import Jsonl
from stentor.tasks.transcribe import Transcribe

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def spoken(corpus):
    """Six utterances of one to three words, read as the loader reads them for training."""
    cuts = list(Jsonl(path=corpus / "train.jsonl").cuts())[:6]

    def read(bundle):
        examples, dropped = BatchDataset(Transcribe(), bundle.processor, None, 0).examples([Item(c, 0) for c in cuts])
        assert len(examples) == 6 and not dropped
        return examples

    return read


def sums(bundle, examples, packed=False):
    task, terms = Transcribe(), {"text": CrossEntropy(), "ctc": CTCLoss()}
    if bundle.model.ctc_head is None:
        del terms["ctc"]
    batch = task.collate(examples, bundle.processor, packed)
    return task.loss_sums(bundle.model, batch, terms), task.counts(batch)


def gradients(bundle, loss) -> dict[str, torch.Tensor]:
    bundle.model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in bundle.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("llm", ["qwen2", "llama"])
def test_the_language_models_own_loss(spoken, llm):
    """transformers' `labels=` loss on the same inputs, mean over the targets, and its gradients."""
    bundle = build(llm=llm, texts=("one two three four five six",))
    examples = spoken(bundle)
    values, counts = sums(bundle, examples)
    assert counts["text"] == sum(len(e.text) + 1 for e in examples), "each character and the end"
    ours, theirs = values["text"] / counts["text"], own_loss(bundle, examples) / counts["text"]
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    a, b = gradients(bundle, ours), gradients(bundle, theirs)
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6, msg=name)


def test_packed_is_padded_through_the_task(spoken):
    bundle = build(ctc={}, texts=("one two three four five six",))
    examples = spoken(bundle)
    (padded, counts), (packed, packed_counts) = sums(bundle, examples), sums(bundle, examples, packed=True)
    assert counts == packed_counts and set(padded) == {"text", "ctc"}
    for term in padded:
        torch.testing.assert_close(packed[term], padded[term], rtol=1e-6, atol=1e-4)


def test_a_batch_is_the_sum_of_its_items_through_the_task(spoken):
    """What makes one division per step right: nothing in a batch depends on what shares it."""
    bundle = build(ctc={}, texts=("one two three four five six",))
    examples = spoken(bundle)
    together, counts = sums(bundle, examples)
    parts = [sums(bundle, [e]) for e in examples]
    for term in together:
        assert counts[term] == sum(c[term] for _, c in parts)
        torch.testing.assert_close(together[term], sum(s[term] for s, _ in parts), rtol=1e-6, atol=1e-4)


@pytest.fixture(scope="module")
def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=120,
        d_model=32,
        num_mel_bins=80,
        max_source_positions=50,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=64,
    )
    return WhisperForConditionalGeneration(config).eval()


def test_whispers_own_loss(whisper, monkeypatch):
    """From logits, and from the hidden states through the output layer, whole and in chunks."""
    torch.manual_seed(1)
    features, labels = torch.randn(3, 80, 100), torch.randint(4, 120, (3, 12))
    labels[1, 7:] = -100
    theirs = whisper(input_features=features, labels=labels).loss

    shifted = labels.roll(1, 1).masked_fill(labels.roll(1, 1) == -100, 0)
    shifted[:, 0] = 3
    out = whisper(input_features=features, decoder_input_ids=shifted, output_hidden_states=True)
    supervised = labels != -100
    count = int(supervised.sum())
    assert count == 31
    for logits, targets in ((out.logits.flatten(0, 1), labels.flatten()), (out.logits[supervised], labels[supervised])):
        ours = CrossEntropy().sum(targets=targets, logits=logits) / count
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)

    hidden, head = out.decoder_hidden_states[-1][supervised], whisper.proj_out
    by_parameter = torch.autograd.grad(theirs, head.weight, retain_graph=True)[0]
    for chunk in (CrossEntropy.chunk, 120 * 4):
        monkeypatch.setattr(CrossEntropy, "chunk", chunk)
        ours = CrossEntropy().sum(targets=labels[supervised], hidden=hidden, weight=head.weight) / count
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        gradient = torch.autograd.grad(ours, head.weight, retain_graph=True)[0]
        torch.testing.assert_close(gradient, by_parameter, rtol=1e-4, atol=1e-6)
