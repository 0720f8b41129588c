"""A run whose only data is one list, through the command line."""

import json


def test_one_list_is_enough(tiny, tmp_path, here):
    yaml = tiny()
    text = yaml.read_text()
    start, end = text.index("eval: {dev"), text.index("\n", text.index("eval: {dev"))
    yaml.write_text(text[:start] + "eval: {dev: {type: held_out, share: 0.25}}" + text[end:])
    plan = here("train", yaml, "--plan-only")
    assert "dev shares" in plan and "(speakers are not named)" in plan
    assert "12 records" in plan and "dev: 4 records" in plan
    said = here("train", yaml, "name=run")
    results = json.loads((tmp_path / "runs" / "run" / "results.json").read_text())
    assert (
        results["data"]["used"] == 12
        and results["data"]["with_context"] == 0
        and results["eval"]["dev"]["wer"]["total"] > 0
    )
    shared = results["data"]["overlap"]["dev"]
    assert shared["speakers"] == [None, 0] and shared["ids"] == [0, 4] and shared["recordings"] == [0, 4]
    assert shared["texts"][1] <= 4
    assert "dev shares" in said
    (tmp_path / "runs" / "run" / "results.json").unlink()
    again = here("train", yaml, "name=run")  # the same records are held out
    assert "Resuming from step 6" in again


def test_a_run_without_any_set_says_how_to_get_one(tiny, here):
    yaml = tiny()
    text = yaml.read_text()
    start, end = text.index("  eval: {dev"), text.index("\n", text.index("eval: {dev"))
    yaml.write_text(text[:start] + text[end + 1 :])
    assert "`data.eval: {dev: held_out}`" in here("train", yaml, "train.steps=1")
