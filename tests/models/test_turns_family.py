"""Models that say who speaks: tiny ones of each kind beside transformers' own processing, loss and generation."""

import pickle

import pytest
import tiny_turns
import torch
import transformers
from tiny_audio_llm import labels_of, loss
from tiny_families import KINDS
from tiny_turns import TURNS, examples

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.models.audio_llm.modeling import transformers_name
from stentor.models.base import Family, TaskRequirements

torch.set_num_threads(1)


@pytest.fixture(scope="module", params=tiny_turns.CONFIGS)
def bundle(request, tmp_path_factory):
    return KINDS[request.param].build(tmp_path_factory.mktemp("processor"))


def theirs(bundle, item):
    """What transformers' processor makes of one item for generation."""
    hf = bundle.processor.hf
    options = {"return_tensors": "pt"}
    if hasattr(hf, "default_transcription_prompt"):
        options["prompt"] = hf.default_transcription_prompt.replace("transcript only", "transcript with speaker tags")
    more = {"sample": False} if "sample" in bundle.model.audio_options else {}
    return hf.apply_transcription_request(audio=[item.audio], **options), more


def test_prompt_and_audio_are_those_of_transformers(bundle):
    for item in examples(bundle):
        ours = bundle.processor.collate([item], labels=False).inputs
        expected, _ = theirs(bundle, item)
        assert ours["input_ids"].tolist() == expected["input_ids"].tolist()
        name = next(n for n in ("input_values", "input_features") if n in ours)
        assert torch.allclose(ours[name], expected[name].float(), atol=1e-5)


def test_loss_and_greedy_answers_are_transformers_own(bundle):
    model = getattr(transformers, bundle.processor.architecture)(bundle.model.config).eval()
    state = bundle.model.state_dict()
    model.load_state_dict({transformers_name(n, bundle.processor.names): t for n, t in state.items()})
    for item in examples(bundle):
        inputs = bundle.processor.collate([item]).inputs
        expected, options = theirs(bundle, item)
        audio = {k: v for k, v in expected.items() if k not in ("input_ids", "attention_mask")}
        with torch.no_grad():
            mean = model(input_ids=inputs["input_ids"], labels=labels_of(inputs), **audio, **options).loss
        assert loss(bundle, [item]) == pytest.approx(mean.item() * len(inputs["targets"]), rel=1e-5)
        asked = bundle.processor.collate([item], labels=False).inputs
        ((ids, *_),) = bundle.model.generate(asked, [8], {bundle.processor.eos_id})
        generated = model.generate(**expected, **options, do_sample=False, max_new_tokens=8)
        assert generated[0, expected["input_ids"].shape[1] :].tolist()[: len(ids)] == ids


def test_answers_are_read_back(bundle):
    processor = pickle.loads(pickle.dumps(bundle.processor))
    (item, *_) = examples(bundle)
    ids = processor.text_ids(item)
    turns, complete = processor.parse(processor.answer_text(ids))
    assert complete and len(turns) == 2 and processor.decode(ids) == 'say "one" two é 日本'
    plain_item = Example("b", item.audio, "one two")
    assert processor.decode(processor.text_ids(plain_item)) == "one two"


def test_records_of_too_many_speakers_are_not_learnt_but_answered(bundle):
    (item,) = examples(bundle, (0.7,))
    item.extra["turns"] = [TURNS[0] | {"speaker": speaker} for speaker in range(101)]
    limited = "tags" in vars(bundle.processor)
    assert [reason for _, reason, _ in bundle.processor.collate([item]).dropped] == (
        ["too_many_speakers"] if limited else ["text_too_long"]
    )
    assert bundle.processor.collate([item], labels=False).ids == ["0"]


def test_lengths_are_known_from_metadata(bundle, tmp_path):
    from stentor.data.cut import cut_from_record

    processor = bundle.processor
    segments = [t | {"speaker": "ab"[t["speaker"]], "start": 10 * t["start"], "end": 10 * t["end"]} for t in TURNS]
    cut = cut_from_record({"audio_path": "a.wav", "duration": 10.0, "segments": segments}, tmp_path, "here")
    (item,) = examples(bundle, (10.0,))
    assert processor.tokens(cut, 10.0) == processor.collate([item]).tokens


def test_what_is_not_trained_as_in_transformers_stays(bundle):
    frozen = {n for n, p in bundle.model.named_parameters() if not p.requires_grad}
    fixed = bundle.processor.fixed
    assert frozen and all(any(n.startswith(glob.rstrip("*")) for glob in fixed) for n in frozen)


def test_other_models_know_no_speakers(tmp_path):
    import tiny_qwen3_asr

    tokenizer = tiny_qwen3_asr.write_processor(tmp_path)
    section = {"type": "audio_llm", "config": {"model_type": "qwen3_asr", **tiny_qwen3_asr.CONFIG}}
    family = Family.model_validate({**section, "tokenizer": str(tokenizer)})
    with pytest.raises(ConfigError, match=r"qwen3_asr does not name speakers"):
        family.build(TaskRequirements("who_said_what", ("text",)))
