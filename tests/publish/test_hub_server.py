"""The Hub stand-in of the tests, driven by the unmodified huggingface_hub client."""

import io
import math
import os
import random
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from httpx2 import TransportError
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    constants,
    get_token,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

CARD = b"---\nlicense: apache-2.0\ntags: [stentor]\n---\n# A model\n"
SOUND = bytes(range(256)) * 400  # 102,400 bytes that are not text


@pytest.fixture
def api(hub) -> HfApi:
    return HfApi()


def status(caught: pytest.ExceptionInfo) -> int:
    return caught.value.response.status_code


def test_who_am_i(hub, api):
    me = api.whoami()
    assert (me["name"], me["auth"]["accessToken"]["role"]) == ("tester", "write")
    assert {o["name"]: o["roleInOrg"] for o in me["orgs"]} == {"acme": "write", "museum": "read"}
    with pytest.raises(HfHubHTTPError, match="token from HF_TOKEN") as caught:
        hub.tokens.clear() or api.whoami()
    assert status(caught) == 401


@pytest.mark.parametrize("kind, key", [("model", ""), ("dataset", "datasets/"), ("space", "spaces/")])
def test_repositories(hub, api, kind, key):
    more = {"space_sdk": "gradio", "space_secrets": [{"key": "K", "value": "v"}]} if kind == "space" else {}
    url = api.create_repo("tester/first", repo_type=kind, private=True, **more)
    assert url == f"{hub.endpoint}/{key}tester/first" and url.repo_id == "tester/first" and url.repo_type == kind
    repo = hub.repos[key + "tester/first"]
    assert repo.private and repo.type == kind and ".gitattributes" in repo.files
    assert repo.secrets == ({"K": "v"} if kind == "space" else {})
    with pytest.raises(HfHubHTTPError, match="already created") as caught:
        api.create_repo("tester/first", repo_type=kind, **more)
    assert status(caught) == 409
    assert api.create_repo("tester/first", repo_type=kind, exist_ok=True, **more) == url
    commit = api.upload_file(
        path_or_fileobj=b"some notes", path_in_repo="notes.txt", repo_id="tester/first", repo_type=kind
    )
    assert commit.oid == repo.commits[-1].oid and repo.files["notes.txt"] == b"some notes"
    info = api.repo_info("tester/first", repo_type=kind, files_metadata=True)
    assert info.private and info.sha == commit.oid
    assert {f.rfilename: f.size for f in info.siblings}["notes.txt"] == 10
    api.update_repo_settings("tester/first", repo_type=kind, private=False)
    assert not repo.private
    api.delete_repo("tester/first", repo_type=kind)
    assert not hub.repos and not api.repo_exists("tester/first", repo_type=kind)


@pytest.mark.parametrize("part", [5_000_000, 30_000], ids=["basic", "multipart"])
def test_a_folder_of_text_and_sound(hub, api, tmp_path, part):
    hub.part_bytes = part
    folder = tmp_path / "folder"
    (folder / "audio").mkdir(parents=True)
    (folder / "README.md").write_bytes(CARD)
    (folder / "empty.wav").write_bytes(b"")
    for i in range(3):
        (folder / "audio" / f"{i}.wav").write_bytes(SOUND + bytes([i]))
    api.create_repo("acme/voices", repo_type="dataset")
    commit = api.upload_folder(
        folder_path=folder, repo_id="acme/voices", repo_type="dataset", commit_message="Three clips"
    )
    repo = hub.repos["datasets/acme/voices"]
    assert [c.title for c in repo.commits] == ["initial commit", "Three clips"]
    assert repo.lfs == {f"audio/{i}.wav" for i in range(3)}
    assert repo.files["audio/2.wav"] == SOUND + b"\2" and repo.files["README.md"] == CARD
    assert len(hub.asked("^PUT /upload")) == (3 if part > len(SOUND) else 12)
    assert len(hub.asked("complete_multipart")) == (0 if part > len(SOUND) else 3)
    assert {r.token for r in hub.asked("^PUT")} == {""}, "the storage never sees the token"
    # Nothing new: nothing is uploaded, and no commit is made.
    again = api.upload_folder(folder_path=folder, repo_id="acme/voices", repo_type="dataset")
    assert again.oid == commit.oid and len(repo.commits) == 2
    assert len(hub.asked("^PUT /upload")) == (3 if part > len(SOUND) else 12)


def test_a_commit_adds_and_deletes(hub, api):
    api.create_repo("tester/m")
    first = [CommitOperationAdd(name, io.BytesIO(b"text")) for name in ("a.txt", "old/b.txt", "old/c/d.txt", "e.txt")]
    commit = api.create_commit("tester/m", first, commit_message="one")
    operations = [
        CommitOperationDelete("a.txt"),
        CommitOperationDelete("old/"),
        CommitOperationAdd("model.safetensors", SOUND),
    ]
    api.create_commit("tester/m", operations, commit_message="two", parent_commit=commit.oid)
    repo = hub.repos["tester/m"]
    assert set(repo.files) == {".gitattributes", "e.txt", "model.safetensors"} and repo.lfs == {"model.safetensors"}
    assert set(api.list_repo_files("tester/m")) == set(repo.files)
    assert set(api.list_repo_files("tester/m", revision=commit.oid)) >= {"a.txt", "old/c/d.txt"}
    assert [c.title for c in api.list_repo_commits("tester/m")] == ["two", "one", "initial commit"]
    with pytest.raises(HfHubHTTPError, match="commit has happened since") as caught:
        api.create_commit("tester/m", [CommitOperationDelete("e.txt")], commit_message="x", parent_commit=commit.oid)
    assert status(caught) == 412
    with pytest.raises(EntryNotFoundError, match="doesn't exist"):
        api.delete_file("nothing.txt", "tester/m")
    request = api.upload_file(path_or_fileobj=b"x", path_in_repo="f.txt", repo_id="tester/m", create_pr=True)
    assert request.pr_num == 1 and "f.txt" not in repo.files
    assert "f.txt" in api.list_repo_files("tester/m", revision="refs/pr/1")


def test_listing_in_pages_and_by_path(hub, api):
    hub.page = 3
    api.create_repo("tester/m")
    files = {f"d/{i}/x.txt": b"%d" % i for i in range(5)} | {"w.bin": SOUND}
    api.create_commit("tester/m", [CommitOperationAdd(*file) for file in files.items()], commit_message="c")
    assert len(api.list_repo_files("tester/m")) == 7
    assert [e.path for e in api.list_repo_tree("tester/m", "d")] == [f"d/{i}" for i in range(5)]
    (weights,) = api.get_paths_info("tester/m", ["w.bin", "nothing"])
    assert weights.size == len(SOUND) and weights.lfs.sha256 in hub.repos["tester/m"].objects
    api.create_tag("tester/m", tag="v1")
    assert [t.name for t in api.list_repo_refs("tester/m").tags] == ["v1"]
    assert api.repo_info("tester/m", revision="v1").sha == api.repo_info("tester/m").sha


def test_downloads(hub, api, tmp_path):
    api.create_repo("tester/m", private=True)
    files = {"README.md": CARD, "w/model.safetensors": SOUND}
    api.create_commit("tester/m", [CommitOperationAdd(*file) for file in files.items()], commit_message="c")
    assert api.repo_info("tester/m").card_data.license == "apache-2.0"
    path = hf_hub_download("tester/m", "w/model.safetensors")
    assert Path(path).read_bytes() == SOUND and str(tmp_path) in path
    assert {r.token for r in hub.asked("^GET /get/")} == {""}, "the storage never sees the token"
    assert {r.token for r in hub.asked("/resolve/")} == {hub.token}
    folder = snapshot_download("tester/m", local_dir=tmp_path / "copy")
    assert Path(folder, "README.md").read_bytes() == CARD and Path(folder, "w/model.safetensors").read_bytes() == SOUND
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("tester/m", "nothing.bin")
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download("tester/m", "README.md", revision="nothing")
    for stranger in (HfApi(token=False), HfApi(token="hf_wrong")):
        with pytest.raises(HfHubHTTPError) as caught:
            stranger.hf_hub_download("tester/m", "README.md", cache_dir=tmp_path / "other")
        assert status(caught) == 401


def test_a_broken_download_goes_on_where_it_was(hub, api, tmp_path, monkeypatch):
    from huggingface_hub import file_download

    monkeypatch.setattr(file_download.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)
    api.create_repo("tester/m")
    api.upload_file(path_or_fileobj=SOUND, path_in_repo="w.bin", repo_id="tester/m")
    hub.break_download_after(50_000)
    assert Path(hf_hub_download("tester/m", "w.bin")).read_bytes() == SOUND
    assert [r.status for r in hub.asked("^GET /get/")] == [200, 206]


def test_a_space(hub, api):
    api.create_repo("tester/demo", repo_type="space", space_sdk="gradio", private=True)
    repo = hub.repos["spaces/tester/demo"]
    assert api.get_space_runtime("tester/demo").stage == "NO_APP_FILE"
    api.add_space_secret("tester/demo", "HF_TOKEN", "hf_canary", description="to read the model")
    api.add_space_variable("tester/demo", "MODEL", "tester/m")
    assert (repo.secrets, repo.variables) == ({"HF_TOKEN": "hf_canary"}, {"MODEL": "tester/m"})
    (secret,) = api.get_space_secrets("tester/demo").values()
    assert (secret.key, secret.description) == ("HF_TOKEN", "to read the model") and not hasattr(secret, "value")
    assert api.get_space_variables("tester/demo")["MODEL"].value == "tester/m"
    api.upload_file(path_or_fileobj=b"import gradio", path_in_repo="app.py", repo_id="tester/demo", repo_type="space")
    assert [api.get_space_runtime("tester/demo").stage for _ in range(4)] == ["BUILDING", "APP_STARTING"] + [
        "RUNNING"
    ] * 2
    asked = api.request_space_hardware("tester/demo", "t4-small", sleep_time=300)
    assert (asked.requested_hardware, asked.sleep_time) == ("t4-small", 300)
    repo.stages = ("BUILDING", "BUILD_ERROR")
    assert api.restart_space("tester/demo").stage == "BUILDING" and repo.restarts == 1
    assert [api.get_space_runtime("tester/demo").stage for _ in range(2)] == ["BUILDING", "BUILD_ERROR"]
    assert api.pause_space("tester/demo").stage == "PAUSED"
    api.delete_space_secret("tester/demo", "HF_TOKEN")
    api.delete_space_variable("tester/demo", "MODEL")
    assert not repo.secrets and not repo.variables
    with pytest.raises(RepositoryNotFoundError):
        api.add_space_secret("tester/nothing", "K", "v")


def test_rights(hub, api, monkeypatch):
    for owner in ("museum", "stranger"):
        with pytest.raises(HfHubHTTPError, match=f'under the namespace "{owner}"') as caught:
            api.create_repo(f"{owner}/m")
        assert status(caught) == 403
    with pytest.raises(HfHubHTTPError, match="write token") as caught:
        HfApi(token=hub.read_token).create_repo("tester/m")
    assert status(caught) == 403
    with pytest.raises(HfHubHTTPError, match="Invalid credentials") as caught:
        HfApi(token="hf_wrong").create_repo("tester/m")
    assert status(caught) == 401
    monkeypatch.delenv("HF_TOKEN")
    assert get_token() is None
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_repo("tester/m")
    assert status(caught) == 401
    assert not hub.repos
    with pytest.raises(RepositoryNotFoundError):
        api.upload_file(path_or_fileobj=b"x", path_in_repo="x.txt", repo_id="tester/m")


def test_cards_are_checked(hub, api):
    api.create_repo("tester/m")
    for card, fault in [
        (b"---\nlicense: my own\n---\n", "license"),
        (b"---\ntags: speech\n---\n", "tags"),
        (b"---\na: [\n---\n", "bad metadata"),
        (b"---\nmodel-index: [{name: m, results: [{task: {type: x}}]}]\n---\n", "task, dataset and metrics"),
    ]:
        with pytest.raises(ValueError, match=fault):
            api.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id="tester/m")
    with pytest.warns(UserWarning, match="missing yaml"):
        api.upload_file(path_or_fileobj=b"# Nothing", path_in_repo="README.md", repo_id="tester/m")
    assert hub.repos["tester/m"].files["README.md"] == b"# Nothing"
    api.create_repo("tester/s", repo_type="space", space_sdk="gradio")
    with pytest.raises(ValueError, match="colorFrom"):
        card = b"---\nsdk: gradio\ncolorFrom: orange\n---\n"
        api.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id="tester/s", repo_type="space")


def test_a_broken_upload_is_tried_again(hub, api, tmp_path):
    api.create_repo("tester/m")
    (tmp_path / "w.bin").write_bytes(SOUND)
    hub.break_after(60_000)
    api.upload_file(path_or_fileobj=tmp_path / "w.bin", path_in_repo="w.bin", repo_id="tester/m")
    assert hub.repos["tester/m"].files["w.bin"] == SOUND
    assert [r.status for r in hub.asked("^PUT")] == [0, 200] and hub.waits == [1]


def test_a_broken_commit_is_not_tried_again_by_the_client(hub, api):
    """`create_commit` sends its commit once; to try again is the caller's business."""
    api.create_repo("tester/m")
    hub.lose_answer("/commit/")
    send = {"path_or_fileobj": b"x", "path_in_repo": "x.txt", "repo_id": "tester/m"}
    with pytest.raises(TransportError):
        api.upload_file(**send)
    assert hub.repos["tester/m"].files["x.txt"] == b"x", "what was lost is the answer"
    api.upload_file(**send)
    assert len(hub.repos["tester/m"].commits) == 2, "the client sees that nothing is left to do"
    hub.break_after(10)
    with pytest.raises(TransportError):
        api.upload_file(path_or_fileobj=b"y" * 1000, path_in_repo="y.txt", repo_id="tester/m")
    assert "y.txt" not in hub.repos["tester/m"].files


def test_what_was_uploaded_before_the_network_went_is_kept(hub, api, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for i in range(4):
        (folder / f"{i}.wav").write_bytes(SOUND + bytes([i]))
    api.create_repo("tester/d", repo_type="dataset")
    hub.fail(400, "^POST .*/commit/")
    send = {"folder_path": folder, "repo_id": "tester/d", "repo_type": "dataset"}
    with pytest.raises(HfHubHTTPError):
        api.upload_folder(**send)
    repo = hub.repos["datasets/tester/d"]
    assert len(repo.objects) == 4 and len(repo.commits) == 1
    repo.objects.popitem()
    api.upload_folder(**send)
    assert len(hub.asked("^PUT")) == 5 and len(repo.files) == 5


def test_failures_on_demand(hub, api):
    api.create_repo("tester/m")
    hub.fail(503, "/preupload/")
    hub.limit_rate("/preupload/", seconds=7)
    api.upload_file(path_or_fileobj=b"x", path_in_repo="x.txt", repo_id="tester/m")
    assert hub.waits == [1, 8] and [r.status for r in hub.asked("/preupload/")] == [503, 429, 200]
    hub.fail(500, "/preupload/", times=None)
    with pytest.raises(HfHubHTTPError) as caught:
        api.upload_file(path_or_fileobj=b"y", path_in_repo="y.txt", repo_id="tester/m")
    assert status(caught) == 500 and hub.waits[2:] == [1, 2, 4, 8, 8]
    hub.faults.clear()
    hub.limit_rate("whoami")
    with pytest.raises(HfHubHTTPError, match="rate limit") as caught:
        api.whoami()
    assert status(caught) == 429


def test_no_network(hub, api, monkeypatch):
    ends = []
    hub.pull()
    with pytest.raises(TransportError):
        api.whoami()
    hub.plug()
    assert api.whoami()["name"] == "tester"
    hub.pull(silent=True)

    def ask():
        with pytest.raises(TransportError):
            api.whoami()
        ends.append("broken")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(0.5)
    assert asking.is_alive(), "the client waits without end"
    hub.plug()
    asking.join(20)
    assert ends == ["broken"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineModeIsEnabled):
        api.whoami()


def test_another_process_finds_it(hub):
    """What `cli(..., **hub.fresh)` does: the environment alone is enough for a process that starts anew."""
    code = "import huggingface_hub as h; print(h.whoami()['name'], h.create_repo('tester/m', private=True))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **hub.fresh}, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["tester", f"{hub.endpoint}/tester/m"], done.stderr
    assert hub.repos["tester/m"].private


OVER_XET = """
import sys
from huggingface_hub import HfApi
from huggingface_hub.utils._runtime import is_xet_available
assert is_xet_available()
api, folder = HfApi(), sys.argv[1]
api.create_repo("tester/d", repo_type="dataset")
api.upload_folder(folder_path=folder, repo_id="tester/d", repo_type="dataset")
print(api.upload_folder(folder_path=folder, repo_id="tester/d", repo_type="dataset").oid)
api.upload_file(path_or_fileobj=bytes(1000), path_in_repo="zeros.bin", repo_id="tester/d", repo_type="dataset")
"""


def test_over_xet(hub, tmp_path):
    """What a user's machine does where hf_xet is installed, as it is by default: it cuts files into chunks, sends them
    packed, and goes on by itself when the connection breaks."""
    pytest.importorskip("hf_xet")
    folder = tmp_path / "folder"
    folder.mkdir()
    wave = [int(9000 * math.sin(i / 9) * math.sin(i / 7001)) for i in range(90_000)]
    files = {
        "README.md": CARD,
        "noise.wav": random.Random(1).randbytes(400_000),
        "wave.wav": struct.pack(f"<{len(wave)}h", *wave),
        "numbers.bin": struct.pack("<50000f", *(math.sin(i / 50) for i in range(50_000))),
        "silence.wav": bytes(300_000),
        "words.bin": b"one two\0" * 5000,
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    hub.break_after(200_000)
    xet = {"HF_HUB_DISABLE_XET": "0", "HF_XET_TELEMETRY_ENABLED": "0", "HF_XET_CLIENT_RETRY_BASE_DELAY": "50ms"}
    done = subprocess.run(
        [sys.executable, "-c", OVER_XET, str(folder)],
        env={**os.environ, **hub.fresh, **xet},
        capture_output=True,
        text=True,
        timeout=200,
    )
    repo = hub.repos["datasets/tester/d"]
    assert done.stdout.split() == [repo.commits[1].oid], done.stderr
    assert {name: repo.files[name] for name in files} == files
    assert repo.lfs == set(files) - {"README.md"} | {"zeros.bin"}
    assert {0, 200} == {r.status for r in hub.asked("/v1/xorbs/")} and not hub.asked("^PUT")
    assert not {hub.token} & {r.token for r in hub.asked("/v1/")}, "the storage sees a token of its own only"
