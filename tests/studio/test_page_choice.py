"""The page with two data sets: every step is about the one that is chosen."""

import pytest
from studio_audio import spoken

pytestmark = pytest.mark.browser


def test_another_data_set_shows_its_own_rows(chromium, desk):
    import studio_steps as studio

    spoken(desk.folder, "first", ["one two", "three four"])
    spoken(desk.folder, "second", ["five six", "seven eight", "nine ten"])
    with chromium() as browser:
        page = browser.open(desk.address)
        page.wait(
            "document.querySelectorAll('stentor-speak .row').length === 10", "the phrases of the newest are there"
        )
        for name, count in (("first", 2), ("second", 3)):
            studio.step(page, "1 Speak")
            page.choose("#dataset", name)
            page.wait(
                f"document.querySelector('stentor-speak')?.getAttribute('dataset') === '{name}' "
                "&& document.querySelectorAll('stentor-speak .row').length === 10",
                f"the phrases of {name} are there",
            )
            page.wait("document.querySelector('#upload_part summary') !== null", "its uploads are there")
            studio.step(page, "2 Check")
            page.wait(
                f"document.querySelector('stentor-check')?.getAttribute('dataset') === '{name}' "
                f"&& document.querySelectorAll('stentor-check .row').length === {count}",
                f"the {count} recordings of {name} are there",
            )
        assert page.errors == []


def test_a_quick_change_after_a_choice(chromium, desk):
    """The model and, before the page has answered, how often it is trained; then one without a name."""
    import studio_steps as studio

    spoken(desk.folder, "voice", ("one two", "three four", "five six"))
    with chromium() as browser:
        page = browser.open(desk.address)
        studio.step(page, "3 Train")
        page.wait(f"{studio.YAML}.includes('train:')", "a run file is proposed")
        for model, epochs, sign in (
            (studio.SMALL, 7, "speech_llm"),
            ("Small encoder and decoder, from scratch (4 million)", 9, "decoder:"),
        ):
            page.choose("#model", model)
            page.fill("#basic_epochs input, #basic_epochs textarea", str(epochs))
            page.wait(f"{studio.YAML}.includes('{sign}') && /epochs: {epochs}\\s/.test({studio.YAML})", "both count")
            page.still("#basic", 2)
            assert page.js(f"/epochs: {epochs}\\s/.test({studio.YAML})")
            assert page.value("#basic_epochs input, #basic_epochs textarea") == str(epochs)
        page.choose("#model", "Another model")
        page.wait("document.querySelector('#model_about').innerText.includes('name on the Hub')", "a name is asked for")
        page.wait(f"{studio.YAML} === '' && !document.querySelector('#yaml_said .fine')", "there is no run file")
        assert page.errors == []


def test_a_data_set_is_deleted_when_the_person_is_sure(chromium, desk):
    from stentor.studio.projects import Projects

    projects = Projects(desk.folder)
    projects.create("first", "en")
    projects.create("second", "en")
    with chromium() as browser:
        page = browser.open(desk.address)
        page.wait(
            "document.querySelectorAll('stentor-speak .row').length === 10", "the phrases of the newest are there"
        )
        page.click("#new button.label-wrap")
        for sure in ("false", "true"):
            page.js(f"(window.asked = '', window.confirm = (text) => {{ window.asked = text; return {sure}; }}, 0)")
            # A click while the answer to the one before is on its way does nothing: clicked until the person is asked.
            click = "document.querySelector('#delete_dataset').click()"
            page.wait(f"(window.asked || {click}, window.asked.includes('second'))", "the person is asked")
        page.wait("document.querySelector('stentor-speak')?.getAttribute('dataset') === 'first'", "the other is shown")
    assert projects.datasets() == ["first"]
