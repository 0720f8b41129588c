"""The form of step Train in a browser: clicks and typed text are never lost, and what is shown is what is trained."""

import pytest
from studio_audio import spoken

pytestmark = pytest.mark.browser
EPOCHS, LR = (f"#basic_{name} :is(input, textarea)" for name in ("epochs", "lr"))


def test_what_is_typed_is_what_is_trained(chromium, desk):
    import studio_steps as studio

    spoken(desk.folder, "voice", ("one two", "three four", "five six"))
    with chromium() as browser:
        page = browser.open(desk.address)
        studio.step(page, "3 Train")
        page.wait(f"{studio.YAML}.includes('train:')", "a run file is proposed")
        page.choose("#model", "Whisper tiny")
        page.wait(f"{studio.YAML}.includes('whisper-tiny')", "the model is in the run file")
        # A field that the person leaves for the next one takes neither its click nor its keys.
        for field, text in ((EPOCHS, "7"), (LR, "200")):
            page.click(field)
            page.press("Control+a")
            page.tab.keyboard.type(text)
        page.wait(f"/epochs: 7\\s/.test({studio.YAML})", "the run file says seven", 30)
        page.wait("document.querySelector('#start').disabled", "a value that cannot be keeps Start off", 30)
        page.wait("document.querySelector('#yaml_said').innerText.includes('200 is outside')", "and is said", 30)
        assert "200 is outside" in page.text("#basic_lr")
        page.fill(LR, "0.002")
        page.wait("!document.querySelector('#start').disabled", "Start is on", 30)
        page.click("#method label", "A small part (LoRA, needs less memory)")
        page.wait(f"{studio.YAML}.includes('lora')", "LoRA is in the run file", 30)
        page.wait("document.querySelector('#proposals').innerText.includes('Rounds (epochs)')", "it is kept", 30)
        assert (page.value(EPOCHS), page.value(LR)) == ("7", "0.002") and "lr: 0.002" in page.js(studio.YAML)
        assert page.errors == []
