"""Where sentences end, in 14 languages, and pieces of the wished length."""

import itertools

import pytest

from stentor.inference.speak.pieces import estimate
from stentor.tasks.speak.chunks import END, MOST, chunks, ends_sentence

# On these lines sentencex 1.0.32 ends 12 sentences too many, pysbd 0.3.4 16, and both miss one. A rule that may miss
# an end (those in `MISSED`) must not tear a sentence apart.
SENTENCES = [
    "The train leaves at 5 p.m. on Monday.|Dr. Smith met J. S. Bach at 3.14 a.m. on www.example.com yesterday.|It cost "
    "$3.50, i.e. less than Mr. O'Neil paid.|Is that so?|Yes!",
    'See e.g. chapter 4.2.1 for the U.S. army.|"Stop!" he said.|He lives in St. Louis with Prof. Jones and Mrs. Miller.'
    "|Fig. 3 shows it, cf. No. 7.",
    "Acme Inc. sells tools.|Version 2.0 came on Jan. 5, 2020.|Wait... what happened?|(He left.)|Write to "
    "a.b@example.org now.",
    "Am 3. Mai kamen z. B. Dr. Meier und Frau Prof. Schmidt.|Das waren ca. 20 Leute, d. h. zu viele.|Wir treffen uns "
    "am 1. Januar um 8 Uhr.|Gut.",
    "M. Dupont est arrivé à huit heures.|Mme. Martin l'attendait, p. ex. avec J.-P. Durand.|C'est vrai ?|Oui !",
    "El Sr. García vive en EE. UU. desde 1990.|¿Quién es?|La Dra. López, p. ej., lo sabe.",
    "Il sig. Rossi e la dott.ssa Bianchi arrivano.|L'art. 5 non vale.|Vero?",
    "O Sr. Silva mora na Av. Paulista.|Ele chegou tarde.",
    "Dhr. Jansen komt a.s. maandag.|Dat is o.a. mooi.|Ja.",
    "Он родился в 1990 г. в Москве.|А. С. Пушкин жил там, т. е. недалеко.|Это так?",
    "Prof. Kowalski mieszka na ul. Długiej.|To jest np. dom.",
    "यह एक वाक्य है।|यह दूसरा वाक्य है।|डॉ. शर्मा आए।",
    "هل هذا صحيح؟|نعم.|ذهب د. أحمد إلى المدرسة.",
    "他说：「好的。」|然后走了。|价格是3.14元。|真的吗？|是！",
    "彼は「行こう。」と言った。|そうですか？|はい。",
]
MISSED = ["He was born in the U.S. His brother was not.", "Il arrive à 8 h. Elle part."]


def split(text: str) -> list[str]:
    ends = [0, *(m.end() for m in END.finditer(text) if ends_sentence(text, m)), len(text)]
    return [text[a:b].strip() for a, b in itertools.pairwise(ends) if text[a:b].strip()]


@pytest.mark.parametrize("line", SENTENCES)
def test_sentences_end_where_they_do(line):
    sentences = line.split("|")
    assert split(("" if ord(line[0]) > 0x3000 else " ").join(sentences)) == sentences


@pytest.mark.parametrize("text", MISSED)
def test_where_it_is_not_sure_a_sentence_goes_on(text):
    assert split(text) == [text]


def seconds(text):
    return len(text) / 10


def lengths(parts: list[str]) -> list[float]:
    return [estimate(part) for part in parts]


def test_words_without_punctuation_are_pieces_of_the_wished_length():
    """Not 21 pieces of 4.2 s, because short words take longer alone than among others."""
    text = " ".join(["quick brown fox over lazy dogs"] * 50)
    parts = chunks(text, estimate)
    assert len(parts) == round(estimate(text) / 15) and all(14 < length < 16 for length in lengths(parts))
    assert " ".join(parts) == text


@pytest.mark.parametrize("duration", [5.0, 15.0, 25.0])
def test_no_piece_is_a_fifth_longer_than_wished(duration):
    sentences = ["He came, and she went away, slowly.", "Nobody " + "really " * 60 + "knew why.", "It was late."]
    text = "\n\n".join(" ".join(sentences * 6) for _ in range(3))
    parts = chunks(text, estimate, 30.0, duration)
    assert max(lengths(parts)) <= MOST * duration + 1e-6
    assert sum(lengths(parts)) / len(parts) >= 0.7 * duration
    assert " ".join(" ".join(parts).split()) == " ".join(text.split())
    assert sum(part.endswith("\n") for part in parts) == 2, "paragraphs are not run together"


def test_a_stream_begins_with_short_pieces():
    text = "It is early. " + "The quick brown fox jumps over the lazy dog, and then it sleeps for an hour. " * 20
    first, second, *others = lengths(chunks(text, estimate, 3.6, 15.0, (3.0, 6.0, 12.0)))
    assert first <= 6.5 and first + second <= 12 and all(length <= 18 for length in others)
    run_on = lengths(chunks(" ".join(["word"] * 100), estimate, 3.6, 15.0, (3.0, 6.0, 12.0)))
    assert run_on[0] == pytest.approx(3.0, abs=0.4) and run_on[1] == pytest.approx(6.0, abs=0.8)


def test_thai_is_divided_at_spaces_and_never_within_a_syllable():
    spaced = "สวัสดีครับวันนี้อากาศดีมากเราไปเที่ยวสวนสาธารณะกันเถอะ " * 20
    assert all(part.endswith("เถอะ") for part in chunks(spaced, estimate))
    solid = chunks(spaced.replace(" ", ""), estimate)
    assert "".join(solid) == spaced.replace(" ", "") and len(solid) == 6
    assert not any(part[0] in "ะาิีึืุู็่้๊๋์ำ" or part[-1] in "เแโใไ" for part in solid)


def test_japanese_without_marks_is_divided_before_words():
    solid = "昨日は天気が良かったので友達と公園に行きましたそこで犬と遊んでとても楽しかったです" * 8
    parts = chunks(solid, estimate)
    assert "".join(parts) == solid and all(part[0] in "昨天良友公行犬遊楽" for part in parts)


def test_a_text_in_lower_case_has_sentences():
    assert chunks("one two three. " * 40, lambda text: len(text) / 10)[0].endswith("three.")


def test_wrapped_lines_are_no_paragraphs():
    wrapped = "The quick brown fox jumps over the lazy\ndog and then it sleeps for an hour or so,\nin the sun. " * 12
    assert all(part.rstrip()[-1] == "." for part in chunks(wrapped, estimate))
    headed = "Chapter One\n" + wrapped + "\n\nChapter Two\n" + wrapped
    assert any(part.startswith("Chapter Two") for part in chunks(headed, estimate))


def test_what_can_be_said_in_one_go_is_left_whole():
    assert chunks("  a b. c d  ", seconds) == ["a b. c d"]
    assert chunks(" \n ", seconds) == []
    assert chunks("x" * 300, seconds) == ["x" * 300]


def test_without_sentences_commas_then_words_then_anything():
    commas = ", ".join(["some words that belong together"] * 12)
    assert all(part.endswith((",", "together")) for part in chunks(commas, seconds))
    words = "word " * 80
    assert set(" ".join(chunks(words, seconds)).split()) == {"word"}
    solid = chunks("y" * 700, seconds)
    assert "".join(solid) == "y" * 700 and all(seconds(part) <= 20 for part in solid)


def test_scripts_without_spaces_and_quotes():
    text = "今天天气很好。我们去公园吧！" * 30
    parts = chunks(text, seconds)
    assert "".join(parts) == text and all(part[-1] in "。！" for part in parts) and len(parts) == 3
    quoted = "他说：「好的。」然后走了。" * 30
    assert all(part.endswith(("。", "」")) for part in chunks(quoted, seconds))
    assert not any(part.startswith("」") for part in chunks(quoted, seconds))


def test_a_paragraph_is_the_best_place_to_divide():
    paragraphs = "\n".join(["one two three. four five six. " * 4] * 4)
    assert [part.find("\n") for part in chunks(paragraphs, seconds)] == [119, 119, 119, -1]
