"""Sizes that no model can have end a run with exit code 2 before anything is trained."""

import pytest

ENCODER, LLM = "model.encoder.config.", "model.llm.config."
WHISPER = "{encoder_attention_heads: 4, decoder_attention_heads: 4, encoder_layers: 1, decoder_layers: 1, d_model: 30}"
HUGE = "model={type: transformer, kind: encoder_decoder, shared: {d_model: 1000000000000}}"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([f"{ENCODER}encoder_attention_heads=5"], "cannot be built: embed_dim must be divisible by num_heads"),
        ([f"{ENCODER}encoder_attention_heads=0"], "cannot be built"),
        ([f"{ENCODER}encoder_layers=-1"], "`encoder_layers` must be a whole number from 0 to 100,000,000, not -1"),
        ([f"{ENCODER}d_model=1e12"], "`d_model` must be a whole number"),
        ([f"{LLM}hidden_size=1000000000000"], "`hidden_size` must be a whole number"),
        ([HUGE, "losses=null"], "can't allocate memory"),
        ([f"{LLM}num_attention_heads=5"], "`num_attention_heads` (5) must be a multiple of `num_key_value_heads` (2)"),
        ([f"{LLM}num_key_value_heads=0"], "`num_attention_heads` (2) must be a multiple of `num_key_value_heads` (0)"),
        ([f"model={{type: whisper, config: {WHISPER}}}", "losses=null"], "embed_dim must be divisible by num_heads"),
        (["optim.lr=1e30"], "'optim.lr' must be a number from 0 to 100, not 1e+30"),
        (["optim.groups=[{params: ['*'], lr: 1e30}]"], "must be a number from 0 to 100 or null, not 1e+30"),
    ],
)
def test_a_size_that_no_model_has(attempt, tiny, tmp_path, overrides, says):
    code, shown = attempt("train", tiny(), *overrides)
    assert code == 2 and says in shown, shown
    assert "unexpected failure" not in shown and not (tmp_path / "runs" / "run" / "checkpoints").exists()
