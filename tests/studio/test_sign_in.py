"""Signing in as a browser does it: Chromium decides itself which origin and which cookies it sends."""

import pytest

pytestmark = pytest.mark.browser
PASSWORD = "a long password"


def test_with_a_password_from_a_desk_and_from_a_phone(chromium, opened):
    opened.start(120, "--password-env", "STUDIO_KEY", STUDIO_KEY=PASSWORD)
    assert "token=" not in opened.address
    with chromium() as browser:
        page = browser.open(opened.address)
        page.fill("input[name=password]", "a wrong password")
        page.click("form button")
        page.wait("document.querySelector('.stentor-wrong')", "a wrong password is told")
        for phone in (False, True):
            page.look(phone=phone)
            page.fill("input[name=password]", PASSWORD)
            page.click("form button")
            page.wait("document.querySelector('#create')", "the page is there", 180)
            page.wait("document.documentElement.scrollWidth <= innerWidth", "nothing sticks out")
            assert page.js("fetch('/studio/texts.json').then((answer) => answer.status)") == 200
            page.click("stentor-header form button")
            page.wait("document.querySelector('input[name=password]')", "signed out")
        assert page.hosts == {"127.0.0.1"}
        assert not [error for error in page.errors if "403" in error or "refused" in error], page.errors


def test_with_the_printed_address(chromium, desk):
    """The token leaves the address, and another browser without it stays outside."""
    bare = desk.address.split("?")[0]
    with chromium() as browser:
        page = browser.open(bare)
        page.wait("document.body.innerText.includes('address')", "it is said which address to open")
        page.go(desk.address + "&step=speak")
        page.wait("document.querySelector('#create')", "the page is there", 180)
        assert page.js("location.href") == f"{bare}?step=speak"
        refused = [error for error in page.errors if "401" in error]
        assert len(refused) == 1, "the address without its token is refused, and nothing else"
