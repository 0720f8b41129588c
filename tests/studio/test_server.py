"""The server: who may reach the studio, and what it answers while the page is not there yet."""

import asyncio
import re
import socket
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse

import stentor.studio
from stentor.cli import main
from stentor.errors import ConfigError
from stentor.studio.server.accounts import Accounts, passwords
from stentor.studio.server.routes import route
from stentor.studio.server.server import USER, StudioServer
from stentor.studio.texts import say, texts
from stentor.web.origins import is_local, listen

PEOPLE = {"anna": "the first password", "ben": "the second one"}


def test_local_addresses_need_no_password_and_others_do():
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.8.0.1"):
        assert is_local(host) and passwords(host, None) == {}, host
    for host in ("0.0.0.0", "192.168.1.5", "::", "localhost.example.org", "127.0.0.1.example.org", ""):
        assert not is_local(host), host
        with pytest.raises(ConfigError, match="--password-env"):
            passwords(host, None)


@pytest.mark.parametrize(
    "secret, problem",
    [
        (None, "STUDIO_KEY must hold"),
        ("short", "at least 8"),
        ("anna:short", "at least 8"),
        ("anna:password1 Anna:password2", "twice"),
    ],
)
def test_passwords_that_are_refused(secret, problem, monkeypatch):
    monkeypatch.delenv("STUDIO_KEY", raising=False)
    if secret is not None:
        monkeypatch.setenv("STUDIO_KEY", secret)
    with pytest.raises(ConfigError, match=problem):
        passwords("127.0.0.1", "STUDIO_KEY")


@pytest.mark.parametrize(
    "secret, people",
    [
        ("a long one", {"owner": "a long one"}),
        ("anna:long enough", {"owner": "anna:long enough"}),  # no pair, as "enough" has no name
        ("anna:password1\nben:pass:word2", {"anna": "password1", "ben": "pass:word2"}),
    ],
)
def test_passwords_of_one_and_of_several(secret, people, monkeypatch):
    monkeypatch.setenv("STUDIO_KEY", secret)
    assert passwords("0.0.0.0", "STUDIO_KEY") == people


def test_the_command_refuses_an_open_door(capsys, tmp_path):
    assert main(["studio", "--host", "0.0.0.0", "--folder", str(tmp_path / "studio")]) == 2
    assert "--password-env" in capsys.readouterr().err
    assert not (tmp_path / "studio").exists()


def test_a_port_that_is_taken_is_told(tmp_path, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match="--port"):
            listen("127.0.0.1", port, "studio")
        assert main(["studio", "--port", str(port), "--folder", str(tmp_path / "studio")]) == 2
    assert "another studio may be open" in capsys.readouterr().err


def test_a_folder_that_cannot_be_used_is_told(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["studio", "--port", "0", "--folder", str(tmp_path / "file")]) == 1
    assert "file" in capsys.readouterr().err


def door(tmp_path, words=None, routes=(), local=True):
    """A client of a door behind which a page answers the person's name."""
    from starlette.testclient import TestClient

    async def page(scope, receive, send):
        await PlainTextResponse(f"page of {scope[USER]}")(scope, receive, send)

    server = StudioServer(Accounts(tmp_path / "studio", words or {}), local, 7860, list(routes), load=lambda: None)
    server.studio = page
    client = TestClient(server, base_url="http://127.0.0.1:7860", follow_redirects=False)
    client.door = server
    if server.accounts.token:
        client.cookies.set(server.cookie, server.accounts.token)
    return client


@pytest.mark.parametrize(
    "host, origin",
    [("127.0.0.1:7860", "http://127.0.0.1:7860"), ("localhost:7860", None), ("[::1]:7860", "http://[::1]:7860")],
)
def test_the_pages_own_requests_pass(host, origin, tmp_path):
    headers = {"Host": host, **({"Origin": origin} if origin else {})}
    assert door(tmp_path).get("/", headers=headers).text == "page of owner"


def test_a_link_from_elsewhere_opens_the_page_only(tmp_path):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert door(tmp_path).get("/", headers=link).status_code == 200
    assert door(tmp_path).get("/studio/texts.json", headers=link).status_code == 403


def test_people_have_folders_of_their_own(tmp_path):
    routes = [route("/studio/where", lambda request, projects: {"folder": projects.folder.name})]
    client = door(tmp_path, PEOPLE, routes)
    assert client.get("/studio/where").status_code == 401
    assert client.get("/anything").status_code == 401
    assert 'type="password"' in client.get("/").text
    for name, word in PEOPLE.items():
        client.cookies.clear()
        answer = client.post("/studio/sign-in", data={"name": name, "password": word})
        assert answer.status_code == 303
        assert client.get("/studio/where").json() == {"folder": name}
        assert client.get("/").text == f"page of {name}"
    client.post("/studio/sign-out")
    assert client.get("/studio/where").status_code == 401


@pytest.mark.parametrize(
    "name, word",
    [
        ("anna", "the second one"),
        ("", "the first password"),
        ("../anna", "the first password"),
        ("eve", ""),
        ("anna", ""),
        ("a" * 100, "x"),
    ],
)
def test_wrong_passwords(name, word, tmp_path, monkeypatch):
    monkeypatch.setattr("stentor.studio.server.server.SLOWEST", 0.0)
    client = door(tmp_path, PEOPLE)
    for _ in range(3):
        answer = client.post("/studio/sign-in", data={"name": name, "password": word})
        assert answer.status_code == 401 and say("sign_in_wrong") in answer.text and not client.cookies
    assert client.door._wrong.total() == 3  # each makes the next wait longer (test_security.py)
    assert client.get("/", headers={"Cookie": "stentor_7860=guess"}).status_code == 401


def test_guesses_from_one_address_do_not_make_others_wait(tmp_path):
    """Twelve guesses hang in their waits; somebody at another address signs in meanwhile."""
    from httpx import ASGITransport, AsyncClient

    server = door(tmp_path, PEOPLE).door
    server._wrong["anna"] = 20

    def at(address):
        return AsyncClient(transport=ASGITransport(server, client=(address, 1)), base_url="http://127.0.0.1:7860")

    async def guess(browser, name, password):
        return (await browser.post("/studio/sign-in", data={"name": name, "password": password})).status_code

    async def attack():
        async with at("10.0.0.1") as attacker, at("10.0.0.2") as ben, at("2001:db8::1") as six, at("2001:db8::2"):
            guesses = [asyncio.create_task(guess(attacker, "anna", "guess")) for _ in range(12)]
            guesses.append(asyncio.create_task(guess(six, "anna", "guess")))
            await asyncio.sleep(0.2)
            assert set(server._slots) == {"10.0.0.1", "2001:db8::/64"}
            assert await guess(ben, "ben", PEOPLE["ben"]) == 303
            assert not any(task.done() for task in guesses)
            for task in guesses:
                task.cancel()
            await asyncio.gather(*guesses, return_exceptions=True)

    asyncio.run(attack())
    assert not len(server._slots)


def test_on_this_machine_the_printed_address_lets_in(tmp_path):
    """Whoever else uses this machine reaches the port, but does not know the token."""
    client = door(tmp_path)
    token = client.door.accounts.token
    client.cookies.clear()
    for path in ("/", "/?token=", "/?token=guess", "/anything", "/studio/texts"):
        assert "page of owner" not in client.get(path).text and not client.cookies
    assert say("sign_in_token").split("`")[0] in client.get("/").text and client.get("/").status_code == 401
    answer = client.get(f"/?token={token}")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and 'wanted.delete("token")' in answer.text
    assert client.get("/").text == "page of owner"
    # It is the same after a restart, unless others could have read it.
    file = tmp_path / "studio" / ".access-token"
    assert file.stat().st_mode & 0o777 == 0o600 and door(tmp_path).door.accounts.token == token
    file.chmod(0o644)
    assert door(tmp_path).door.accounts.token != token and file.stat().st_mode & 0o777 == 0o600


def test_with_a_password_no_token_lets_in(tmp_path):
    client = door(tmp_path, {"owner": "a long one"}, local=False)
    assert client.get("/", headers={"Host": "studio.example.org"}).status_code == 401  # a proxy's name does no harm
    assert client.door.accounts.token == "" and not (tmp_path / "studio" / ".access-token").exists()
    for token in ("", "a%20long%20one"):
        assert client.get(f"/?token={token}").status_code == 200 and client.get("/").status_code == 401


def test_a_sign_in_that_is_too_large(tmp_path):
    assert door(tmp_path, PEOPLE).post("/studio/sign-in", data={"password": "x" * 5000}).status_code == 413


def test_it_answers_before_the_page_is_there(tmp_path):
    client = door(tmp_path)
    client.door.studio = None
    assert say("opening") in client.get("/").text
    assert client.get("/studio/ready").json() == {"ready": False}
    assert client.get("/config").status_code == 503
    assert client.get("/studio/texts.json").json() == texts()


def test_failures_of_a_route_are_told_without_secrets(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hf_canarycanarycanarycanarycanary")

    def wrong(request, projects):
        raise ConfigError("It says hf_canarycanarycanarycanarycanary.")

    def broken(request, projects):
        raise ZeroDivisionError("hf_canarycanarycanarycanarycanary")

    client = door(tmp_path, routes=[route("/studio/wrong", wrong), route("/studio/broken", broken)])
    expected, unexpected = client.get("/studio/wrong"), client.get("/studio/broken")
    assert expected.status_code == 400 and expected.json()["error"].startswith("It says")
    assert unexpected.status_code == 500 and "ZeroDivisionError" in unexpected.json()["error"]
    assert "canary" not in expected.text + unexpected.text + "".join(capsys.readouterr())


def test_every_text_is_used_and_every_used_text_is_there():
    folder = Path(stentor.studio.__file__).parent
    files = [p for p in folder.rglob("*.*") if p.suffix in (".py", ".js", ".mjs", ".html")]
    code = {p: p.read_text("utf-8") for p in files}
    python = "".join(text for p, text in code.items() if p.suffix == ".py" and "texts import" in text)
    assert set(re.findall(r"""\bsay\(\s*["'](\w+)["']\s*[,)]""", python)) - texts().keys() == set()
    everything = "".join(code.values())
    words = set(re.findall(r"\w+", everything))
    # Keys that are put together: `check_choice_${name}`, f"state_{name}", "state_" + name.
    begun = set(re.findall(r"""(\w+_)(?:\$?\{|["'] ?\+)""", everything))
    assert {key for key in texts() if key not in words and not any(key.startswith(b) for b in begun)} == set()
