"""Learning rates and epochs to start from: one figure for each case, each with its origin."""

import pytest

from stentor.commands.plan.suggest import EPOCHS, RATES, WHISPER, method_of, notes, suggest

FAMILIES = ("seq2seq", "voxtral", "qwen3_asr", "ctc", "speech_llm", "a plug-in's")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["full", "lora", "new head", "language adapter", "scratch"])
def test_there_is_always_a_figure_and_its_origin(family, method):
    suggestion = suggest(family, method, hours=20, parameters=244e6)
    assert 1e-6 < suggestion.lr <= 1e-3 and 1 <= suggestion.epochs <= 100
    assert len(suggestion.lr_origin) > 20 and len(suggestion.epochs_origin) > 20


@pytest.mark.parametrize(
    "family, method, parameters, lr",
    [
        ("seq2seq", "full", 39e6, 3.75e-5),
        ("seq2seq", "full", 244e6, 1.25e-5),
        ("seq2seq", "full", 1.55e9, 4.4e-6),
        ("seq2seq", "lora", 1.55e9, 2e-4),
        ("voxtral", "full", 4.7e9, 5e-5),
        ("ctc", "new head", 300e6, 3e-4),
        ("ctc", "language adapter", 1e9, 1e-3),
        ("speech_llm", "lora", 2e9, 1e-4),
        ("speech_llm", "scratch", 1e6, 1e-3),
    ],
)
def test_published_rates(family, method, parameters, lr):
    assert suggest(family, method, 10, parameters).lr == lr


def test_adapters_take_more_than_all_weights():
    for family in ("seq2seq", "voxtral", "qwen3_asr", "ctc"):
        rates = [suggest(family, method, 10, 244e6).lr for method in ("full", "lora")]
        assert 1.5 < rates[1] / rates[0] < 50, family


def test_whispers_rate_falls_with_its_size():
    rates = [rate for _, rate in WHISPER]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("method", ["full", "lora", "new head", "scratch"])
def test_more_hours_fewer_epochs(method):
    epochs = [suggest("ctc", method, hours).epochs for hours in (0.1, 1, 5, 10, 50, 100, 500, 1e3, 1e4)]
    assert epochs == sorted(epochs, reverse=True) and epochs[0] > epochs[-1]
    assert suggest("ctc", method, 1.0).epochs == next(iter(EPOCHS.get(method, EPOCHS["full"])))[1]


def test_less_than_an_hour_is_learnt_at_half_the_rate():
    assert suggest("voxtral", "lora", 0.5).lr == suggest("voxtral", "lora", 5).lr / 2
    assert "halved" in suggest("voxtral", "lora", 0.5).lr_origin
    assert suggest("speech_llm", "scratch", 0.5).lr == RATES["", "scratch"][0]


@pytest.mark.parametrize(
    "model, head, method",
    [
        ({"type": "seq2seq", "from": "openai/whisper-small", "lora": None}, True, "full"),
        ({"type": "seq2seq", "from": "openai/whisper-small", "lora": {"rank": 8}}, True, "lora"),
        ({"type": "seq2seq", "from": None, "config": {"d_model": 8}}, True, "scratch"),
        ({"type": "seq2seq", "from": None, "config": {"d_model": 8}, "init": "runs/a/export"}, True, "full"),
        ({"type": "speech_llm", "encoder": {"from": None}, "llm": {"from": "Qwen/Qwen3-0.6B"}}, True, "full"),
        ({"type": "speech_llm", "encoder": {"from": None}, "llm": {"from": None}, "lora": {}}, True, "scratch"),
        ({"type": "ctc", "from": "facebook/wav2vec2-base", "alphabet": None}, False, "new head"),
        ({"type": "ctc", "from": "facebook/wav2vec2-base-960h", "alphabet": None}, True, "full"),
        ({"type": "ctc", "from": "facebook/wav2vec2-base-960h", "alphabet": "transcripts"}, True, "new head"),
        ({"type": "ctc", "from": "facebook/mms-1b-all", "adapter": {"only": True}}, True, "language adapter"),
    ],
)
def test_the_method_is_read_from_the_config(model, head, method):
    assert method_of(model, head) == method


def test_notes_are_about_what_is_far_off():
    good = suggest("seq2seq", "full", 10, 244e6)  # 1.25e-5, 5 epochs
    assert notes(good, 1e-5, 3.0) == [] and notes(good, 6e-5, 20.0) == []
    assert notes(good, 1e-3, None) == ["optim.lr 0.001 is 80 times above the suggestion."]
    assert notes(good, 1e-6, 50.0) == [
        "optim.lr 1e-06 is 13 times below the suggestion.",
        "epochs 50 is 10 times above the suggestion.",
    ]
