"""The family `ctc`: what it computes is what transformers computes, and its exports are transformers folders."""

import json

import pytest
import torch
from tiny_ctc import CONFIGS, MASKED, MELS, TEXTS, build, examples
from tiny_families import save
from tiny_runs import records_of, write_records, write_run
from transformers import AutoFeatureExtractor, AutoModel, AutoModelForCTC, AutoProcessor, AutoTokenizer

from stentor.errors import ConfigError
from stentor.inference.load import load
from stentor.losses.base import Loss
from stentor.models.base import Family, TaskRequirements
from stentor.models.contracts import GenerationOutput
from stentor.models.decoding.ctc import decode, merge
from stentor.models.text.spelling import from_transcripts, spelling
from stentor.tasks.base import Task

torch.set_num_threads(1)


def loss_sum(bundle, items):
    return Loss.model_validate("ctc").sum(**bundle.model(**bundle.processor.collate(items).inputs)["ctc"])


def trained(bundle):
    return {n.removeprefix("recogniser.") for n, p in bundle.model.named_parameters() if p.requires_grad}


def own_inputs(folder, items):
    """What the export's own extractor and tokenizer make of the items."""
    extractor, tokenizer = AutoFeatureExtractor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = dict(extractor([e.audio for e in items], sampling_rate=16000, return_tensors="pt", padding=True))
    labels = [tokenizer(e.text)["input_ids"] for e in items]
    longest = max(map(len, labels))
    return inputs, torch.tensor([row + [-100] * (longest - len(row)) for row in labels])


@pytest.mark.parametrize("kind", CONFIGS)
def test_features_and_loss_are_those_of_transformers(kind, tmp_path):
    bundle = build(kind)
    folder = save(bundle, tmp_path)
    reference = AutoModelForCTC.from_pretrained(folder).eval()
    reference.config.ctc_loss_reduction = "sum"
    groups = [examples()] if kind in MASKED else [[e] for e in examples()]
    for items in groups:
        inputs, labels = own_inputs(folder, items)
        assert ("attention_mask" in inputs) == (kind in (*MASKED, "data2vec"))  # transformers' batches change Data2Vec
        ours = bundle.processor.collate(items).inputs
        assert bundle.model(**ours)["ctc"]["lengths"].tolist() == [bundle.processor.frames(len(e.audio)) for e in items]
        theirs = inputs["input_features"].transpose(1, 2) if kind == "parakeet" else inputs["input_values"]
        torch.testing.assert_close(ours["features"], theirs[..., : ours["features"].shape[-1]], atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            expected = reference(**inputs, labels=labels).loss
            torch.testing.assert_close(loss_sum(bundle, items), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("kind", ["wav2vec2", "wavlm", "mms", "parakeet"])
def test_an_export_with_folded_lora_says_the_same_everywhere(kind, tmp_path):
    bundle = build(kind, lora={"rank": 2, "alpha": 4, "dropout": 0.0})
    for name, parameter in bundle.model.named_parameters():
        if "lora_" in name or "head" in name:
            parameter.data.normal_(std=0.3)
            if name.endswith("head.bias"):
                parameter.data[1:4] = -1e3  # transformers writes <s>, </s> and <unk> out
    folder = save(bundle, tmp_path)
    assert (folder / "vocab.json").is_file()
    plain, processor = AutoModelForCTC.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    again = load(folder, device="cpu")
    answers = Task.model_validate("transcribe").predict(bundle, examples())
    assert [a["text"] for a in again.task.predict(again.bundle, examples())] == [a["text"] for a in answers]
    assert any(a["text"] for a in answers)
    for example, answer in zip(examples(), answers):
        inputs = processor(example.audio, sampling_rate=16000, return_tensors="pt")
        with torch.no_grad():
            expected = processor.batch_decode(plain(**inputs).logits.argmax(-1))[0]
        assert answer["text"].split() == expected.split()
        assert [w["word"] for w in answer["words"]] == answer["text"].split()
        assert all(0 < w["confidence"] <= 1 for w in answer["words"])


def test_an_export_keeps_the_settings_that_training_does_without(tmp_path):
    config = {**CONFIGS["wav2vec2"], "layerdrop": 0.2, "apply_spec_augment": True}
    bundle = build(config=config)
    assert bundle.model.recogniser.config.layerdrop == 0
    written = json.loads((save(bundle, tmp_path) / "config.json").read_text())
    assert (written["layerdrop"], written["apply_spec_augment"]) == (0.2, True)


def test_repeats_are_merged_and_the_surest_frame_counts():
    assert merge([0, 5, 5, 0, 5, 7, 7, 0], [-9, -3, -1, -9, -2, -4, -5, -9], blank=0)[:2] == ([5, 5, 7], [-1, -2, -4])
    assert merge([3, 3, 0], [-1, -1, -2], blank=3)[:2] == ([0], [-2])


def test_frames_without_probabilities_are_silence():
    """Of a model whose numbers overflow; greedily, too."""
    log_probs = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    frames = torch.tensor([6, 5, 6])
    cut = decode(log_probs[:2, :5], torch.tensor([5, 5]), 0, beams=4)
    log_probs[0, 5] = log_probs[2] = torch.nan
    assert decode(log_probs, frames, 0, beams=4) == [*cut, GenerationOutput([], [])]
    assert decode(log_probs, frames, 0)[2] == GenerationOutput([], [])


def test_a_language_model_has_a_say_clip_by_clip(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("TWO ONE TWO\nTWO TWO ONE\n" * 20)
    bundle = build(texts=("one two three",))
    options = {"language_model": str(path), "language_model_weight": 3.0, "beams": 20}
    task = Task.model_validate({"type": "transcribe", **options})
    together = [output["text"] for output in task.predict(bundle, examples())]
    assert together == [task.predict(bundle, [example])[0]["text"] for example in examples()]
    assert {word for text in together for word in text.split()} <= {"one", "two"}
    plain = [o["text"] for o in Task.model_validate({"type": "transcribe"}).predict(bundle, examples())]
    assert together != plain


def test_texts_are_written_with_what_the_alphabet_has():
    small = spelling(from_transcripts(["ab cé"]))

    def written(text):
        classes, missing = small.encode(text)
        return small.decode(classes), missing

    assert written("AB  cé, b!") == ("ab cé b", "")
    assert written("á-b") == ("a b", "")
    assert written("- a -") == ("a", "")
    assert written("ab жd") == ("ab", "жd")
    processor = build(texts=("ab cé",)).processor
    assert {c: processor.written(c) for c in "abéá,"} == {"a": "a", "b": "b", "é": "é", "á": "a", ",": ""}


def test_items_that_cannot_be_learnt_are_refused_and_counted():
    bundle = build(texts=("one two three",))
    items = examples((0.5, 0.4, 1.0, 1.0), ("one", "one two three one two three one", "eins zwölf", "... !"))
    batch = bundle.processor.collate(items)
    assert batch.ids == ["0"] and batch.counts == {"ctc": 3}
    reasons = {name: reason for name, reason, _ in batch.dropped}
    assert reasons == {"1": "text_too_long", "2": "not_in_alphabet", "3": "empty_text"}
    assert "alphabet lacks" in batch.dropped[1][2] and "ö" not in batch.dropped[1][2]
    assert "accents" not in batch.dropped[1][2]  # leaving them out would not help here
    assert "its text of 31 signs needs 33 frames" in batch.dropped[0][2]
    assert bundle.processor.collate(items[1:2]).inputs == {}
    assert len(bundle.processor.collate(items, labels=False).ids) == 4


def test_a_pretrained_encoder_gets_a_new_head(tmp_path):
    torch.manual_seed(1)
    before = AutoModel.from_config(build().model.recogniser.config)
    before.save_pretrained(tmp_path)
    bundle = build(**{"from": str(tmp_path)}, texts=("abc",))
    for name, tensor in before.state_dict().items():
        assert torch.equal(bundle.model.encoder.state_dict()[name], tensor), name
    assert bundle.model.recogniser.lm_head.out_features == 5 + 3
    with pytest.raises(ConfigError, match="has no CTC head"):
        build(**{"from": str(tmp_path)}, alphabet="own")


def test_a_pretrained_recogniser_keeps_its_alphabet_unless_told(tmp_path):
    first = build("wav2vec2_layer_norm", texts=("ONE TWO",))
    folder = str(save(first, tmp_path))
    again = build(**{"from": folder}, texts=("xyz",), freeze=["wav2vec2.feature_extractor.*"])
    assert torch.equal(loss_sum(first, examples(texts=["one two"])), loss_sum(again, examples(texts=["one two"])))
    assert not [n for n in trained(again) if "feature_extractor" in n] and "lm_head.weight" in trained(again)
    other = build(**{"from": folder}, texts=("xyz",), alphabet="transcripts")
    assert other.processor.spelling.encode("zyx") == ([7, 6, 5], "")


def test_parakeet_with_subwords_and_its_blank_in_the_last_class(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import ParakeetFeatureExtractor, ParakeetForCTC, ParakeetProcessor, ParakeetTokenizer

    pieces = ["<unk>", "▁", "▁one", "▁two", "o", "n", "e", "t", "w", "s", "<pad>"]
    merges = [("o", "n"), ("on", "e"), ("▁", "one"), ("t", "w"), ("tw", "o"), ("▁", "two")]
    pieces[1:1] = ["on", "one", "tw", "two"]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(pieces)}, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    subwords = ParakeetTokenizer(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")
    blank = subwords.pad_token_id
    torch.manual_seed(0)
    config = type(build("parakeet").model.recogniser.config)(
        encoder_config=MELS, vocab_size=len(pieces), pad_token_id=blank
    )
    reference = ParakeetForCTC(config).eval()
    reference.save_pretrained(tmp_path)
    ParakeetProcessor(ParakeetFeatureExtractor(feature_size=40), subwords).save_pretrained(tmp_path)

    bundle = build(**{"from": str(tmp_path)})
    assert bundle.model.blank == blank == len(pieces) - 1
    encode = bundle.processor.spelling.encode
    assert encode("One, two!") == (subwords("one two")["input_ids"], "")
    assert bundle.processor.decode(encode("one two one")[0]).strip() == "one two one"
    assert encode("one ж")[1] == "ж"
    items = examples(texts=("one two", "two", "one one one two", "one"))
    inputs, labels = own_inputs(tmp_path, items)
    reference.config.ctc_loss_reduction = "sum"
    with torch.no_grad():
        expected = reference(**inputs, labels=labels).loss
        torch.testing.assert_close(loss_sum(bundle, items), expected, rtol=1e-5, atol=1e-3)
    folder = save(bundle, tmp_path / "export")
    plain, processor = AutoModelForCTC.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    for item, answer in zip(items, Task.model_validate("transcribe").predict(bundle, items)):
        inputs = processor(item.audio, sampling_rate=16000, return_tensors="pt")
        decoded = processor.batch_decode(plain.generate(**inputs), skip_special_tokens=True)[0]
        assert answer["text"].split() == decoded.split()


@pytest.fixture
def mms(tmp_path):
    """A model as MMS is published: a vocabulary and an adapter file for each language."""
    from safetensors.torch import save_file
    from transformers import Wav2Vec2CTCTokenizer

    bundle = build("mms", texts=("abc",))
    save(bundle, tmp_path)
    specials = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4}
    vocabularies = {"eng": {**specials, "a": 5, "b": 6, "c": 7}, "deu": {**specials, "ä": 5, "ö": 6}}
    (tmp_path / "nested.json").write_text(json.dumps(vocabularies))
    Wav2Vec2CTCTokenizer(str(tmp_path / "nested.json"), target_lang="eng").save_pretrained(tmp_path)
    tensors = bundle.model.recogniser._get_adapters()
    for language, vocabulary in vocabularies.items():
        torch.manual_seed(len(vocabulary))
        adapter = {n: torch.randn(p.shape) for n, p in tensors.items()}
        adapter["lm_head.weight"] = torch.randn(len(vocabulary), 32)
        adapter["lm_head.bias"] = torch.randn(len(vocabulary))
        save_file(adapter, tmp_path / f"adapter.{language}.safetensors", {"format": "pt"})
    return tmp_path


def test_language_adapters_of_mms(mms, tmp_path_factory):
    from safetensors.torch import load_file

    bundle = build(**{"from": str(mms)}, adapter={"language": "deu"})
    assert bundle.processor.spelling.encode("öä") == ([6, 5], "")
    adapter = load_file(mms / "adapter.deu.safetensors")
    loaded = bundle.model.recogniser.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in adapter.items())
    assert trained(bundle) == adapter.keys()
    folder = save(bundle, tmp_path_factory.mktemp("export"))
    plain = AutoModelForCTC.from_pretrained(folder).state_dict()
    assert all(torch.equal(plain[name], tensor) for name, tensor in adapter.items())
    assert AutoTokenizer.from_pretrained(folder)("öä")["input_ids"] == [6, 5]

    new = build(**{"from": str(mms)}, texts=("xyz",), adapter={"language": "xyz", "new": True})
    assert new.model.recogniser.lm_head.out_features == 8 and trained(new) == adapter.keys()
    with pytest.raises(ConfigError, match="has no fra; it has 2 languages, such as deu, eng"):
        build(**{"from": str(mms)}, adapter={"language": "fra"})


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"config": CONFIGS["wavlm"], "lora": {"targets": ["*.q_proj"]}}, "past any adapter"),
        ({"config": {"model_type": "whisper"}}, "not served by the family ctc"),
        ({"config": {**CONFIGS["hubert"], "hidden_sizes": 3}}, "did you mean 'hidden_size'"),
        ({"adapter": {"language": "deu"}, "from": "<wav2vec2>"}, "no language adapters"),
    ],
)
def test_what_cannot_be_is_said(keys, message, tmp_path):
    if keys.get("from") == "<wav2vec2>":
        keys = {**keys, "from": str(save(build(), tmp_path))}
    with pytest.raises(ConfigError, match=message):
        build(**keys)


def test_only_the_loss_term_ctc():
    family = Family.model_validate({"type": "ctc", "config": CONFIGS["wav2vec2"]})
    with pytest.raises(ConfigError, match=r"losses: \{ctc: ctc\}"):
        family.build(TaskRequirements("transcribe", ("text",), lambda: iter(TEXTS)))


def test_records_that_cannot_be_learnt_are_known_before_training(tmp_path, corpus, capsys):
    """... from their text and length alone, with what to do; more of another script than a few stop the run."""
    from stentor.cli import main

    save(build(texts=("one two three four five six",)), tmp_path / "model")
    records = [
        {**r, "audio_path": str(corpus / r["audio_path"]), "words": []} for r in records_of(corpus / "train.jsonl")
    ]
    for record, text in zip(records[1:4], ("one two " * 40, "... !", "раз два")):
        record["text"] = text
    data = write_records(tmp_path / "train.jsonl", records[:4])
    path = write_run(tmp_path, "run", {"type": "ctc", "from": str(tmp_path / "model")}, data, steps=1, lr=5e-3)
    command = ["train", str(path), "losses={ctc: ctc}", "--plan-only"]
    assert main([*command, "data.max_bad=0.5"]) == 0
    printed = capsys.readouterr().out
    for reason, explanation in {
        "text_too_long": "do text and audio belong together?",
        "empty_text": "nothing in its text can be written",
        "not_in_alphabet": "the model's alphabet lacks а в",
    }.items():
        assert reason in printed and explanation in printed
    assert main([*command, "data.max_bad=0.1"]) == 3
    told = capsys.readouterr().err
    assert "the model's alphabet lacks" in told and "model.alphabet: transcripts" in told
