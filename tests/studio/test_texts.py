"""Sentences of the page: their forms for numbers, and messages without what only a command line has."""

import pytest

from stentor.studio.texts import for_page, say, texts


def test_a_count_has_its_form():
    assert [say("time_minutes", count=n) for n in (0, 1, "1", 2)] == ["0 minutes", "1 minute", "1 minute", "2 minutes"]


def test_no_sentence_names_a_command_or_an_option():
    found = [
        key
        for key, text in texts().items()
        for form in ([text] if isinstance(text, str) else text.values())
        if for_page(form) != form
    ]
    assert found == []


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Leave it out, or branch: `--resume-from step-9`.", "Leave it out, or branch."),
        (
            "No licence is given: choose one (--license), for example mit.",
            "No licence is given: choose one, for example mit.",
        ),
        (
            "Speech needs espeak, which is missing: pip install 'stentor[voice]'",
            "Speech needs espeak, which is missing.",
        ),
        ("Publish it with --merge.", say("command_only")),
        ("row 3 -- cut here: a (b) is left", "row 3 -- cut here: a (b) is left"),
    ],
)
def test_a_message_of_the_command_line(message, shown):
    assert for_page(message) == shown
