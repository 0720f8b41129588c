"""hf:// paths, with huggingface_hub's own file system and a Hub of the test's own."""

import json

from huggingface_hub import HfApi, hf_hub_download


def test_data_on_the_hub(hub, corpus, here, attempt, tmp_path, monkeypatch):
    """Shards of a manifest there are those of its files on this disk; what is not there is named."""
    repo = f"{hub.user}/speech"
    HfApi().create_repo(repo, repo_type="dataset")
    HfApi().upload_folder(repo_id=repo, repo_type="dataset", folder_path=str(corpus), allow_patterns=["train*"])
    monkeypatch.setenv("STENTOR_CACHE", str(tmp_path / "cache"))
    address = f"hf://datasets/{repo}"
    command = ("prepare", "tokens", "--codec", "none", "--min-shards", 2, "--to")
    here(*command, f"{address}/shards", f"{address}/train.jsonl")
    here(*command, tmp_path / "shards", corpus / "train.jsonl")

    def there(name):
        return open(hf_hub_download(repo, f"shards/{name}", repo_type="dataset"), "rb").read()

    assert there("shard-000001.tar") == (tmp_path / "shards" / "shard-000001.tar").read_bytes()
    here("prepare", "check", f"{address}/shards/data.lst", "--to", tmp_path / "check")
    totals = json.loads((tmp_path / "check" / "check.json").read_text())["totals"]
    assert totals["records"] == json.loads(there("summary.json"))["samples"] > 8 and totals["unusable"] == 0
    code, said = attempt("prepare", "check", f"{address}/no.jsonl", "--to", tmp_path / "none")
    assert code == 3 and f"{address}/no.jsonl does not exist" in said
