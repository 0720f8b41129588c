"""What an attacker tries: another site's page, another person of the same studio, a file that is not what it says.

Server and routes are tested without Gradio; one studio for two people, Gradio in it, is opened once for all tests that
need it (`full_studio`).
"""

import asyncio
import html.parser
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from stentor.errors import ConfigError
from stentor.report import drawings
from stentor.studio.dataset import receiving, recorder, uploads
from stentor.studio.runs import jobs, publish_jobs, try_model
from stentor.studio.runs.try_model import ModelAnswer, RunTrial, TrialClip
from stentor.studio.serve import ROUTES, make_server
from stentor.studio.server.accounts import Accounts
from stentor.studio.server.server import StudioServer, head, page_files
from stentor.studio.texts import texts

ANNA, BEN = "anna's long password", "ben's other password"
WORDS = {"anna": ANNA.replace(" ", "-"), "ben": BEN.replace(" ", "-")}
SCRIPT = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>"
HERE = "http://127.0.0.1:7860"
OUTSIDE = (
    "../secret",
    "..%2fsecret",
    "%2e%2e/secret",
    "....//secret",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "a%00b",
    "..\\x",
)


def sound(seconds=0.5, rate=8000):
    return (0.3 * np.sin(np.arange(round(seconds * rate)) / 8)).astype(np.float32)


class Person:
    """A browser in which somebody has signed in."""

    def __init__(self, client, door, name):
        self.client = client
        self.projects = door.accounts.projects(name)
        session = door.accounts.sign_in(name, WORDS[name])
        self.headers = {"Cookie": f"{door.cookie}={session}", "X-Stentor": "1", "Origin": HERE}

    def get(self, path, **more):
        return self.client.get(path, headers=self.headers, follow_redirects=False, **more)

    def post(self, path, **more):
        return self.client.post(path, headers=self.headers, follow_redirects=False, **more)


@pytest.fixture
def two(tmp_path):
    """Anna and Ben, at a studio without Gradio. Anna has a data set with one recording, and a run, both `voices`."""
    door = StudioServer(Accounts(tmp_path / "studio", WORDS), local=True, port=7860, routes=ROUTES, load=lambda: None)
    client = TestClient(door, base_url=HERE)
    anna, ben = (Person(client, door, name) for name in WORDS)
    anna.record = anna.projects.create("voices", "en").add(sound(), 8000, "hers alone")
    (anna.projects.runs / "voices").mkdir()
    (anna.projects.runs / "voices" / "studio.json").write_text('{"created": 1}')
    (anna.projects.runs / "voices" / "report.html").write_text("hers alone")
    return anna, ben


@pytest.fixture
def anna(two):
    return two[0]


# Another person -------------------------------------------------------------------------------------------------------


def every_route(dataset, id):
    """(method, path) of every route of ours, about a data set or run of that name."""

    values = {"id": id, "number": "0", "batch": "0" * 16, "what": "stop", "file": "x", "row": "x"}
    values |= {"path": "samples/x.wav", **dict.fromkeys(("dataset", "name", "run"), dataset)}
    for route in ROUTES:
        path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda m: values[m[1]], route.path)
        for method in sorted(route.methods - {"HEAD"}):
            yield method, path


def test_nobody_else_reaches_a_recording_or_a_run(two):
    anna, ben = two
    id = anna.record["id"]
    assert anna.get(f"/studio/audio/voices/{id}").status_code == 200
    assert anna.get("/studio/check/voices").json()["total"] == 1
    assert anna.get("/studio/runs/voices/report").text == "hers alone"
    answers = ""
    for method, path in every_route("voices", id):
        answer = ben.client.request(method, path, headers=ben.headers, content=b'{"id": "%s"}' % id.encode())
        answers += answer.text
        if "voices" in path and "charts" not in path:
            assert answer.status_code in (400, 404), (method, path, answer.text)
    assert "hers alone" not in answers and id not in answers.replace(f"/{id}", "")
    assert anna.projects.dataset("voices").records() == [anna.record]
    assert ben.projects.datasets() == []
    # Nor by a path that leads there.
    for name in ("../../../anna/datasets/voices", "..%2F..%2F..%2Fanna%2Fdatasets%2Fvoices"):
        assert ben.get(f"/studio/check/{name}").status_code in (400, 404)


def test_nothing_is_told_before_the_sign_in(anna):
    for method, path in every_route("voices", anna.record["id"]):
        for headers in ({"X-Stentor": "1"}, {"X-Stentor": "1", "Cookie": "stentor_7860=guess"}):
            assert anna.client.request(method, path, headers=headers).status_code == 401, (method, path)
    for path in ("/", "/config", "/gradio_api/info", "/gradio_api/queue/data?session_hash=x", "/assets/x.js"):
        answer = anna.client.get(path)
        assert answer.status_code == 401 and "voices" not in answer.text and "anna" not in answer.text


# Another site ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:7861"},
        {"Origin": "http://127.0.0.1.evil.example:7860"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:7860"},
        {"Host": ""},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_another_site_reaches_no_route(anna, headers):
    id = anna.record["id"]
    for method, path in every_route("voices", id):
        sent = {**anna.headers, "Origin": HERE, **headers}
        if "Origin" not in headers:
            del sent["Origin"]
        answer = anna.client.request(method, path, headers=sent)
        assert answer.status_code in (400, 403) and "hers alone" not in answer.text, (method, path)
    assert anna.projects.dataset("voices").records() == [anna.record]


def test_a_form_of_another_site_lacks_the_header(anna):
    """Where a browser tells no origin at all: what changes something needs a header that no form can send."""
    cookie = {"Cookie": anna.headers["Cookie"]}
    changes = [(m, p) for m, p in every_route("voices", anna.record["id"]) if m != "GET"]
    assert len(changes) > 10
    for method, path in changes:
        answer = anna.client.request(method, path, headers=cookie, content=b"{}")
        assert answer.status_code == 403 and "X-Stentor" in answer.text, (method, path)


def test_sockets_of_other_sites_are_refused(anna):
    for headers in ({}, anna.headers, {**anna.headers, "Origin": "http://evil.example"}):
        with (
            pytest.raises(WebSocketDisconnect),
            anna.client.websocket_connect("/gradio_api/queue/join", headers=headers),
        ):
            pass


def test_no_page_may_frame_or_sniff_the_studio(anna):
    for path in ("/", "/studio/check/voices", f"/studio/audio/voices/{anna.record['id']}", "/studio/page/check.js"):
        headers = anna.get(path).headers
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] in ("SAMEORIGIN", "DENY")
        assert headers["cross-origin-resource-policy"] == "same-origin" and "access-control-allow-origin" not in headers


# The sign-in ----------------------------------------------------------------------------------------------------------


def test_guesses_are_slowed_down_for_each_person(anna, monkeypatch, capfd, caplog):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    quick = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})  # for it alone: other servers run in this process
    monkeypatch.setattr("stentor.studio.server.server.asyncio", quick)

    def sign_in(name, password):
        form = {"name": name, "password": password}
        return anna.client.post("/studio/sign-in", data=form, headers={"Origin": HERE}, follow_redirects=False)

    for _ in range(22):
        assert sign_in("anna", "guessed-password").status_code == 401
    assert waits == sorted(waits) and len(waits) == 21 and waits[-1] == 5.0
    waits.clear()
    # A person's own sign-in opens nothing for guesses at another's.
    answer = sign_in("ben", WORDS["ben"])
    assert answer.status_code == 303 and not waits
    assert sign_in("anna", "guessed-password").status_code == 401 and waits == [5.0]
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie
    printed = capfd.readouterr()
    everything = printed.out + printed.err + caplog.text + answer.text + str(answer.headers)
    assert not [password for password in (*WORDS.values(), "guessed-password") if password in everything]


def test_a_session_ends_with_the_sign_out(anna):
    assert anna.get("/studio/check/voices").status_code == 200
    assert anna.post("/studio/sign-out").status_code == 303
    assert anna.get("/studio/check/voices").status_code == 401


# Paths and names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_path_leads_out(client, tmp_path, name):
    (tmp_path / "secret").write_text("top secret")
    (client.projects.folder.parent / "secret.wav").write_bytes(b"top secret")
    client.projects.create("voices").add(sound(), 8000, "text")
    for path in (
        f"/studio/page/{name}",
        f"/studio/audio/{name}/x",
        f"/studio/audio/voices/{name}",
        f"/studio/check/{name}",
        f"/studio/runs/{name}/report",
        f"/studio/runs/x/spoken/{name}",
        f"/studio/page/../../{name}",
        f"/studio/speak/{name}/rows",
        f"/studio/long/{name}",
        f"/studio/phrases/{name}",
    ):
        answer = client.get(path)
        assert answer.status_code in (400, 401, 404), path
        assert "top secret" not in answer.text and "root:" not in answer.text


def test_the_sources_of_the_server_are_not_served(client):
    assert client.get("/studio/page/studio.css").headers["content-type"].startswith("text/css")
    for path in (
        "/studio/page/serve.py",
        "/studio/page/.css",
        "/studio/page/door",
        "/studio/page/../server.py",
        "/studio/page/%2e%2e/server.py",
        "/studio/page/__init__.py",
        "/studio/page/.",
        "/studio/page/check.js/../../texts.yaml",
        "/studio/../server.py",
        "/src/stentor/studio/server/server.py",
    ):
        answer = client.get(path)
        assert answer.status_code in (400, 404) and "import" not in answer.text, path


def test_hand_written_manifests_serve_nothing_else(client, tmp_path):
    dataset = client.projects.create("voices")
    record = dataset.add(sound(), 8000, "text")
    outside = tmp_path / "precious.wav"
    soundfile.write(outside, sound(), 8000)
    (dataset.folder / "audio" / "link.wav").symlink_to(outside)
    (dataset.folder / "beside.wav").write_bytes(outside.read_bytes())
    lines = {
        "abs": str(outside),
        "up": "../../../../precious.wav",
        "hidden": "audio/../../../../../precious.wav",
        "link": "audio/link.wav",
        "manifest": "../manifest.jsonl",
        "own": "dataset.json",
        "nul": "audio/\0.wav",
    }
    with open(dataset.manifest, "a") as file:
        file.write("".join(json.dumps({"id": k, "audio_path": v, "text": "x"}) + "\n" for k, v in lines.items()))
    for id in lines:
        answer = client.get(f"/studio/audio/voices/{id}")
        assert answer.status_code in (400, 404), id
        assert outside.read_bytes()[:40] not in answer.content and b"created" not in answer.content
    assert client.get(f"/studio/audio/voices/{record['id']}").content == dataset.audio(record).read_bytes()
    # Neither is it trained on, published, removed or moved.
    dataset.add(sound(), 8000, "another text")
    assert "precious" not in "".join(path.read_text() for path in dataset.parts().values())
    order = publish_jobs.PublishOrder("dataset", "voices", "me/voices")
    with pytest.raises(ConfigError):
        publish_jobs.make_card(client.projects, order)
    dataset.remove(lines)
    dataset.forget_removed()
    assert outside.exists() and (dataset.folder / "dataset.json").exists()


TRAVERSALS = ["../x", "..", ".", "/etc/passwd", "a/../../x", "a\\b", "", "a\0b", "a//b", "x/y"]
OPTIONS = ["--to", "-x", "a b", "a\nb", "a\n", "a;b", "$(id)", "<b>", "CON:", "a\u202eb", None, 7, ["x"]]


@pytest.mark.parametrize("name", [*TRAVERSALS, *OPTIONS, "a.b", "_a", "x" * 65, "ä" * 101])
def test_names_never_become_options_or_paths(projects, name):
    for use in (
        lambda: projects.create(name),
        lambda: projects.dataset(name),
        lambda: projects.delete(name),
        lambda: jobs.find(projects, name),
        lambda: jobs.start(projects, "task: {type: transcribe}", name),
        lambda: publish_jobs.find(projects, name),
        lambda: publish_jobs.checked(projects, publish_jobs.PublishOrder("dataset", name, "me/voices")),
        lambda: publish_jobs.checked(projects, publish_jobs.PublishOrder("model", name, "me/voices")),
    ):
        with pytest.raises(ConfigError, match=r"cannot be|There is no run" if isinstance(name, str) else None):
            use()
    assert not list((projects.folder / "datasets").iterdir()) and not list(projects.runs.iterdir())


@pytest.mark.parametrize(
    "to", ["--public", "-x/y", "me/-x", "me/../x", "me", "a/b/c", "me/x\n--public", "me/x y", "", "me/x;y"]
)
def test_repositories_never_become_options(projects, to):
    projects.create("voices").add(sound(), 8000, "text")
    with pytest.raises(ConfigError):
        publish_jobs.checked(projects, publish_jobs.PublishOrder("dataset", "voices", to))
    with pytest.raises(ConfigError):
        publish_jobs.checked(
            projects, publish_jobs.PublishOrder("dataset", "voices", "me/x", licence=f"mit {to} --public")
        )


# Uploads --------------------------------------------------------------------------------------------------------------


BATCH = "0123456789abcdef"
DISGUISED = (
    b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n",
    b"ffconcat version 1.0\nfile /etc/passwd\n",
    b"<html><script>window.pwned=1</script>",
    b"\x7fELF" + bytes(60),
    b"PK\x03\x04" + bytes(60),
    b"RIFF\x10\0\0\0WAVEjunk",
    b"fLaC" + bytes(99),
    b"\0\0\0\x20ftypM4A " + bytes(64),
    b"\x1a\x45\xdf\xa3" + bytes(64),
    b"ID3",
    b"",
)


@pytest.mark.parametrize("data", DISGUISED)
def test_disguised_files_are_taken_nowhere(client, data):
    dataset = client.projects.create("voices", "en")
    answer = client.post("/studio/speak/voices/take", params={"row": "own-1", "text": "x"}, content=data)
    assert answer.status_code == 400 and "passwd" not in answer.text
    assert client.put(f"/studio/upload/{BATCH}/0", params={"name": "../speech.wav"}, content=data).status_code == 200
    answer = client.post("/studio/take/voices", json={"batch": BATCH, "files": [0]})
    outcome = json.loads(answer.text.splitlines()[-1])
    assert (
        not outcome.get("records") and (outcome.get("refused") or outcome.get("error")) and "root:" not in answer.text
    )
    assert dataset.records() == [] and not list((dataset.folder / "audio").glob("*.wav"))
    assert not list(client.projects.tmp.glob("take-*"))


def test_oversized_files_are_not_read_to_the_end(client, monkeypatch):
    client.projects.create("voices", "en")
    monkeypatch.setattr(recorder, "MOST_BYTES", 1000)
    answer = client.post("/studio/speak/voices/take", params={"row": "own-1", "text": "x"}, content=bytes(2000))
    assert answer.status_code == 413
    monkeypatch.setattr(receiving, "MOST_BYTES", 1000)
    read = []

    def pieces():  # without a length in the header
        for _ in range(1000):
            read.append(500)
            yield bytes(500)

    answer = client.put(f"/studio/upload/{BATCH}/0", params={"name": "x.wav"}, content=pieces())
    assert answer.status_code == 413
    most = uploads.MOST_TEXT + 1
    answer = client.put(f"/studio/upload/{BATCH}/1", params={"name": "x.csv"}, content=bytes(most))
    assert answer.status_code == 413
    assert [p.name for p in client.projects.tmp.glob("upload-*/*")] == []


@pytest.mark.parametrize(
    "path",
    [
        "/studio/upload/../../x/0",
        "/studio/upload/..%2f..%2fx/0",
        "/studio/upload/0123456789ABCDEF/0",
        f"/studio/upload/{BATCH}/-1",
        f"/studio/upload/{BATCH}/9999999",
        f"/studio/upload/{BATCH}/..",
    ],
)
def test_uploads_go_to_their_own_folder(client, path):
    answer = client.put(path, params={"name": "../../../../evil.wav"}, content=b"RIFF")
    assert answer.status_code in (400, 404, 405)
    assert not [
        p for p in client.projects.folder.parent.rglob("*") if p.is_file() and p.name not in (".lock", ".access-token")
    ]


# Texts ----------------------------------------------------------------------------------------------------------------


class Tags(html.parser.HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self):
        super().__init__()
        self.starts = []

    def handle_starttag(self, tag, attrs):
        self.starts.append((tag, dict(attrs)))


def alive(page):
    """What of the injected tags is one."""
    tags = Tags()
    tags.feed(page)
    return [t for t, attrs in tags.starts if "onerror" in attrs or attrs.get("src") == "x"]


def test_texts_are_answered_as_json(anna):
    """A browser that opens an answer as a page shows text: JSON, and no sniffing."""
    dataset = anna.projects.dataset("voices")
    dataset.edit(anna.record["id"], text=SCRIPT)
    for path in ("/studio/check/voices", f"/studio/check/voices/rows?id={anna.record['id']}", "/studio/texts.json"):
        answer = anna.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
    rows = anna.get(f"/studio/check/voices/rows?id={anna.record['id']}").json()["rows"]
    assert rows[0]["text"] == SCRIPT  # as it was said; check.js puts it into a field's value
    answer = anna.get(f"/studio/check/{SCRIPT.replace('/', '')}")
    assert answer.headers["content-type"] == "application/json"


def test_scripts_never_write_html():
    """What the studio's own scripts put into the page is text: there is no way in which it could become a tag."""

    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|ContextualFragment|DOMParser"
    for name, code in page_files().items():
        assert not re.search(ways, re.sub(r"//.*", "", code)), name


def test_texts_in_the_head_end_no_script():
    page = head(page_files())
    assert 'customElements.define("stentor-header"' in page and "https:" not in page
    assert (
        page.count("<script") == page.count("</script>")
        and "<" not in re.search(r"stentorTexts = (.*);</script>", page)[1]
    )
    assert json.loads(re.search(r"stentorTexts = (.*);</script>", page)[1]) == texts()


def test_the_answers_of_models_are_escaped():
    clip = TrialClip(sound(1.0, 16000), 16000, f"said {SCRIPT}", (), "en")
    words = [{"word": SCRIPT, "start": 0.0, "end": 0.4}]
    tried = RunTrial(SCRIPT, Path("x"), "transcribe", f"user/{SCRIPT}", "none")
    answers = [ModelAnswer(False, 0.1, SCRIPT, words, errors=1, total=2), ModelAnswer(True, wrong=SCRIPT)]
    segments = [{"speaker": SCRIPT, "start": 0.0, "end": 0.5}]
    for page in (
        try_model.drawn(tried, clip, answers),
        try_model.about(tried),
        drawings.speakers(segments, clip.samples, clip.rate),
        drawings.words(words, clip.samples, clip.rate),
    ):
        assert not alive(page) and "<script>window" not in page


# The whole studio, Gradio in it ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full_studio(tmp_path_factory):
    """Anna and Ben at one studio with Gradio; each has a data set."""
    pytest.importorskip("gradio")

    folder = tmp_path_factory.mktemp("whole")
    (folder / "secret.txt").write_text("top secret")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder / "studio" / "tmp" / "page"))
        patch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
        door = make_server(Accounts(folder / "studio", WORDS), "127.0.0.1", 7860)
        with TestClient(door, base_url=HERE) as client:
            for _ in range(1200):
                if door.studio is not None or door.failed is not None:
                    break
                time.sleep(0.1)
            assert door.failed is None and door.studio is not None
            people = [Person(client, door, name) for name in WORDS]
            for person, name in zip(people, WORDS, strict=True):
                person.folder = folder
                dataset = person.projects.create(f"of-{name}", "en")
                for i in range(3):
                    dataset.add(sound(), 8000, f"{name} says {i}")
            yield people


def test_what_a_page_chose_before_a_restart_is_judged_where_it_is_used(full_studio):
    """Choices that are filled later take any name, nothing but a name, and leave no file of Gradio's in the package."""

    from stentor.studio.steps import shared

    assert shared.Choice([]).preprocess("of-ben") == shared.Names([]).preprocess("of-ben") == "of-ben"
    assert shared.Choice([]).preprocess({"a": 1}) is shared.Names([]).preprocess(["a"]) is None
    assert shared.Several([]).preprocess(["a", 1, None]) == ["a"] and shared.Several([]).preprocess("a") == []
    assert not list(Path(shared.__file__).parents[1].rglob("*.pyi"))


def fired(person, target, data, session):
    """What an event answers: the page's message that says it is done. `target`: (elem_id, event); None: the page is
    opened, and told which data sets there are."""
    config = person.get("/config").json()
    ids = {c["props"].get("elem_id"): c["id"] for c in config["components"]}

    def is_meant(event):
        if target:
            return [ids[target[0]], target[1]] in [list(t) for t in event["targets"]] and event["backend_fn"]
        of_lists = ids["dataset"] in event["outputs"] and event["inputs"] == [ids["dataset"], ids["step"]]
        return of_lists and "load" in str(event["targets"])

    index = next(event["id"] for event in config["dependencies"] if is_meant(event))
    asked = {"data": data, "fn_index": index, "session_hash": session}
    joined = person.post("/gradio_api/queue/join", json=asked)
    assert joined.status_code == 200, joined.text
    answer = person.get("/gradio_api/queue/data", params={"session_hash": session})
    messages = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    return next(m for m in messages if m["msg"] == "process_completed")


def test_events_reach_the_persons_own_projects_only(full_studio):
    anna, ben = full_studio
    for person, name, session in ((anna, "of-anna", "s1"), (ben, "of-ben", "s2")):
        known = json.dumps(fired(person, None, [None, ""], session))
        assert name in known and not [other for other in ("of-anna", "of-ben") if other != name and other in known]
    done = fired(anna, ("split", "click"), ["of-anna", 50, "text"], "s1")
    assert done["success"] and (anna.projects.dataset("of-anna").folder / "train.jsonl").exists()
    for name in ("of-anna", "../../anna/datasets/of-anna", "/etc", "-x", None, 5, {"a": 1}):
        done = fired(ben, ("split", "click"), [name, 50, "text"], "s2")
        assert not done["success"] and "anna says" not in json.dumps(done)
    assert not done.get("output", {}).get("data")
    # Nobody listens to another's page.
    assert ben.get("/gradio_api/queue/data", params={"session_hash": "s1"}).status_code == 404
    # A name that is given twice is each person's own.
    fired(ben, ("create", "click"), ["of-anna", "en"], "s3")
    assert ben.projects.dataset("of-anna").records() == [] and len(anna.projects.dataset("of-anna").records()) == 3


def test_what_is_told_is_escaped(full_studio):
    anna, _ = full_studio
    done = fired(anna, ("create", "click"), [SCRIPT, "en"], "s4")
    assert not done["success"] and not alive(json.dumps(done)) and "&lt;" in json.dumps(done)


def test_uploads_of_gradio_are_their_senders_own(full_studio):
    anna, ben = full_studio
    sent = anna.post("/gradio_api/upload", files={"files": ("clip.wav", b"RIFF anna's", "audio/wav")})
    (path,) = sent.json()
    assert path.startswith(str(anna.folder / "studio" / "tmp"))
    assert anna.get(f"/gradio_api/file={path}").content == b"RIFF anna's"
    assert ben.get(f"/gradio_api/file={path}").status_code == 404
    assert anna.client.get(f"/gradio_api/file={path}").status_code == 401
    # What calls itself a page is handed out as a file, never shown as one.
    (page,) = anna.post("/gradio_api/upload", files={"files": ("x.html", SCRIPT.encode(), "text/html")}).json()
    shown = anna.get(f"/gradio_api/file={page}")
    assert shown.status_code in (403, 404) or "attachment" in shown.headers["content-disposition"]
    # Names lead nowhere.
    (path,) = anna.post("/gradio_api/upload", files={"files": ("../../../../evil.wav", b"x", "audio/wav")}).json()
    assert path.startswith(str(anna.folder / "studio" / "tmp")) and ".." not in path


def test_gradio_serves_no_other_file(full_studio):
    anna, _ = full_studio
    import gradio

    record = anna.projects.dataset("of-anna").records()[0]
    paths = [
        "/etc/passwd",
        str(anna.folder / "secret.txt"),
        gradio.__file__,
        publish_jobs.__file__,
        str(anna.projects.dataset("of-anna").audio(record)),
        str(anna.projects.dataset("of-anna").manifest),
        "../../../../../../etc/passwd",
        "http://127.0.0.1:7860/config",
        "https://example.org/",
        "file:///etc/passwd",
    ]
    for path in paths:
        for asked in (path, path.replace("/", "%2F"), path.replace(".", "%2e")):
            for before in ("/gradio_api/file=", "/file=", "/gradio_api/file/", "/gradio_api/proxy=", "/proxy="):
                answer = anna.get(before + asked)
                assert answer.status_code in (400, 403, 404), before + asked
    for before in ("/static/", "/assets/", "/svelte/", "/"):
        for path in (
            "../../../../../../../../etc/passwd",
            "..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
            "%2fetc%2fpasswd",
            "....//....//etc/passwd",
            "..%5c..%5cetc%5cpasswd",
        ):
            answer = anna.get(before + path)
            assert answer.status_code in (400, 403, 404) and "root:" not in answer.text, before + path


NOT_NEEDED = {
    "GET": """monitoring monitoring/summary logout openapi.json docs runs gradio_api/monitoring gradio_api/openapi.json
        gradio_api/token gradio_api/user gradio_api/dev/reload gradio_api/vibe-code gradio_api/profiling/summary
        gradio_api/runs gradio_api/deep_link gradio_api/call/x/y gradio_api/run-history/records""",
    "POST": """login gradio_api/run/predict gradio_api/api/predict gradio_api/call/x gradio_api/vibe-edit
        gradio_api/component_server gradio_api/process_recording gradio_api/profiling/clear gradio_api/stream/x
        gradio_api/run-history/connect""",
}
"""Paths of Gradio's, by method."""


def test_what_the_page_does_not_need_of_gradio_is_not_there(full_studio):
    anna, _ = full_studio
    for method, paths in NOT_NEEDED.items():
        for path in paths.split():
            answer = anna.client.request(method, f"/{path}", headers=anna.headers, json={"data": []})
            assert answer.status_code == 404, path


def test_no_event_is_offered_as_an_api(full_studio):
    anna, _ = full_studio
    info = anna.get("/gradio_api/info").json()
    assert not info["named_endpoints"] and not info["unnamed_endpoints"]


def test_a_clip_is_an_upload_and_no_path(full_studio):
    """The step Try takes a clip as a file: only one that was sent, never one of the server's."""
    anna, _ = full_studio
    inside = str(anna.projects.dataset("of-anna").audio(anna.projects.dataset("of-anna").records()[0]))
    (sent,) = anna.post("/gradio_api/upload", files={"files": ("c.wav", b"RIFF", "audio/wav")}).json()
    outputs = {}
    for path in (sent, "/etc/passwd", inside, "file:///etc/passwd"):
        clip = {"path": path, "meta": {"_type": "gradio.FileData"}}
        done = fired(anna, ("try", "click"), [None, None, None, None, clip, "", "", "", 0], "s5")
        outputs[path] = json.dumps(done["output"])
    # The upload reaches the step, which misses a run; the others do not come so far.
    assert texts()["try_no_run"] in outputs.pop(sent)
    assert not [output for output in outputs.values() if texts()["try_no_run"] in output or "root:" in output]


def test_the_page_fetches_nothing_from_elsewhere(full_studio):
    anna, _ = full_studio
    page = anna.get("/").text
    tags = Tags()
    tags.feed(page)
    links = [
        attrs.get("src") or attrs.get("href") or "" for tag, attrs in tags.starts if tag in ("script", "link", "img")
    ]
    assert len(links) > 3 and not [link for link in links if re.match(r"(https?:)?//", link)]
