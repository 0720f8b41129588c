"""The table of languages."""

import pytest

from stentor.cli import main
from stentor.errors import ConfigError
from stentor.models.seq2seq.processor import language_codes
from stentor.sources.hub_presets import PRESETS
from stentor.text.languages import (
    among,
    checked_language,
    find,
    known_code,
    label,
    language_code,
    table,
    unknown_language,
)


def test_the_table_has_omnivoices_languages():
    rows = table()
    assert len({row.omnivoice for row in rows.values()} - {""}) == 646
    assert all(code == row.code and row.name and len(row.iso639_3) == 3 for code, row in rows.items())
    assert all(
        find(name) is row
        for row in rows.values()
        for name in (row.code, row.name, row.iso639_3, row.omnivoice or row.code)
        if row.code != "tl" or name != "fil"
    )


def test_whispers_languages_are_in_it():
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    different = {name: code for name, code in TO_LANGUAGE_CODE.items() if language_code(name) != code}
    assert different == {"javanese": "jw"}
    assert language_code("jw") == "jv"


@pytest.mark.parametrize("name", ["English", "en", "eng", "en-GB", "en_US", " ENGLISH "])
def test_the_names_of_a_language_are_one(name):
    assert language_code(name) == known_code(name) == "en"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("cmn", "zh"),
        ("zh-TW", "zh"),
        ("Bokmal", "nb"),
        ("ambo-pasco quechua", "qva"),
        ("arb", "ar"),
        ("Pushto", "ps"),
        ("Deutsch", "de"),
        ("Mandarin", "zh"),
        ("Farsi", "fa"),
        ("Castellano", "es"),
        ("中文", "zh"),
        ("Filipino", "fil"),
        ("Bokmål", "nb"),
        ("Brazilian Portuguese", "pt"),
        ("xx-YY", "xx"),
        ("gsw-CH", "gsw"),
        ("gla", "gd"),
        ("qu", "qu"),
        ("", None),
        (None, None),
    ],
)
def test_codes(name, code):
    assert language_code(name) == code


def test_a_list_of_languages_can_be_searched():
    assert [label(code) for code in ("de", "en", "nn-NO", "x")] == ["German (Deutsch)", "English", label("nn"), "x"]
    assert all(name in label("fa") for name in ("Persian", "فارسی", "Farsi"))


def test_checked_languages_keep_their_region():
    assert [checked_language(n) for n in ("pt-BR", "zh-Hans-CN", "gsw", "", "Auto")] == [
        "pt-br",
        "zh",
        "gsw",
        None,
        None,
    ]
    for unknown in ("klingon", "xx", "engish"):
        with pytest.raises(ConfigError, match=f"There is no language '{unknown}'"):
            checked_language(unknown)


def test_what_is_not_in_it_stays_and_is_named():
    assert known_code("Klingon-A") == "Klingon-A" and find("klingon") is None
    assert known_code("") == "" and find(" ") is None and find("-x") is None
    assert unknown_language("Germn").startswith("There is no language 'Germn': did you mean de (German) or ")
    assert unknown_language("FR3").endswith("did you mean fr (French)?")
    assert unknown_language("finish").endswith("did you mean fi (Finnish) or ga (Irish)?")
    assert unknown_language("klingon").endswith("give a code such as en or cmn, or an English name.")


def test_records_name_their_language_by_its_code(tmp_path):
    from stentor.data.cut import cut_from_record, language_of

    for name in ("English", "eng", "en-GB"):
        record = {"id": "a", "audio_path": "a.wav", "duration": 1.0, "text": "a", "language": name}
        cut = cut_from_record(record, tmp_path, "line 1")
        assert language_of(cut) == "en"


@pytest.mark.parametrize("command", ["models", "align nowhere a.wav text", "prepare speech texts.txt --to out"])
def test_commands_refuse_an_unknown_language(command, capsys):
    assert main([*command.split(), "--language", "engish"]) == 2
    assert "There is no language 'engish': did you mean en (English)?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("language", "whispers", "fleurs"),
    [
        ("nb", "no", "nb_no"),
        ("no", "no", "nb_no"),
        ("nn", "nn", None),
        ("jv", "jw", "jv_id"),
        ("jw", "jw", "jv_id"),
        ("iw", "he", "he_il"),
        ("in", "id", "id_id"),
        ("cmn", "zh", "cmn_hans_cn"),
        ("zh-CN", "zh", "cmn_hans_cn"),
        ("fil", "tl", "fil_ph"),
        ("tl", "tl", "fil_ph"),
        ("yue", "yue", "yue_hant_hk"),
        ("pt-BR", "pt", "pt_br"),
        ("English", "en", "en_us"),
        ("en-GB", "en", "en_us"),
        ("Klingon", None, None),
    ],
)
def test_a_language_finds_the_code_of_a_model_and_of_a_data_set(language, whispers, fleurs):
    codes = language_codes()
    assert codes.get(among(language, tuple(codes)) or "") == whispers
    assert PRESETS["fleurs"][""].spelling(language) == fleurs


def test_a_language_that_only_looks_alike_is_not_taken():
    assert among("yue", ("zh",)) is None and among("hr", ("sr", "bs")) is None and among("da", ("no",)) is None
    assert (
        among("nn", ("en", "no")) == "no" and among("en-GB", ("en-US", "en-GB")) == "en-GB" and among(None, ()) is None
    )


def test_models_are_listed_by_any_name_of_a_language(capsys):
    listed = set()
    for name in ("nb", "no", "Norwegian"):
        assert main(["models", "--language", name, "--task", "transcribe"]) == 0
        listed.add(capsys.readouterr().out)
    assert len(listed) == 1 and "whisper" in listed.pop()
