"""Well-known speech data sets on the Hugging Face Hub: where each lies and what its columns are called.

A preset is data alone. `{language}` in a pattern is the data set's own spelling of the language, `{config}` and
`{split}` what was chosen. Adding a data set means adding an entry to `PRESETS`.
"""

import re
from dataclasses import dataclass, field

from stentor.sources.open_asr import BoardSet, boards
from stentor.text.languages import among, known_code

EXPORT = "refs/convert/parquet"
"""The branch on which the Hub keeps its own parquet copy of data sets that were published as a loading script."""


@dataclass(frozen=True)
class Preset:
    """One data set (or one subset of it)."""

    name: str
    """Its id on the Hub."""
    columns: dict[str, str]
    """The source's key -> the column; a dot goes into a column of records."""
    config: str | None = "{language}"
    split: str = "train"
    languages: dict[str, str] | None = None
    """Language code -> the data set's spelling of it. None: any code, as it is."""
    data_files: str | None = None
    revision: str | None = None
    stream: bool = False
    """Too large to list: read from front to back unless asked otherwise."""
    audio: bool = True
    """False: transcripts alone; the audio comes from the corpora they were made of."""
    quality: dict[str, list[float | None]] = field(default_factory=dict)
    """Default ranges of the section `quality`."""

    def spelling(self, language: str) -> str | None:
        """The data set's spelling of a language that is given by any name or code; None where it has none."""
        if self.languages is None:
            return language if re.match("[a-z]{2,3}([-_]|$)", language) else known_code(language)
        name = among(language, (*self.languages, *self.languages.values()))
        return self.languages.get(name or "", name)


def _same(codes: str) -> dict[str, str]:
    return {code: code for code in codes.split()}


def _pairs(text: str) -> dict[str, str]:
    """A table written `key=value key=value`."""
    return dict(pair.split("=") for pair in text.split())


GRANARY_LANGUAGES = _same("bg hr cs da nl en et fi fr de el hu it lv lt mt pl pt ro sk sl es sv ru uk")
"""The 25 European languages of Granary (Koluguri et al. 2025)."""

GRANARY_NAMES = _pairs(
    "bg=Bulgarian hr=Croatian cs=Czech da=Danish nl=Dutch en=English et=Estonian fi=Finnish fr=French de=German "
    "el=Greek hu=Hungarian it=Italian lv=Latvian lt=Lithuanian pl=Polish pt=Portuguese ro=Romanian ru=Russian "
    "sk=Slovak es=Spanish sv=Swedish uk=Ukrainian"
)
"""Languages of Granary's YODAS subset that are published with their audio, as that data set spells them."""

FLEURS = (
    "af_za am_et ar_eg as_in ast_es az_az be_by bg_bg bn_in bs_ba ca_es ceb_ph ckb_iq cmn_hans_cn cs_cz cy_gb da_dk "
    "de_de el_gr en_us es_419 et_ee fa_ir ff_sn fi_fi fil_ph fr_fr ga_ie gl_es gu_in ha_ng he_il hi_in hr_hr hu_hu "
    "hy_am id_id ig_ng is_is it_it ja_jp jv_id ka_ge kam_ke kea_cv kk_kz km_kh kn_in ko_kr ky_kg lb_lu lg_ug ln_cd "
    "lo_la lt_lt luo_ke lv_lv mi_nz mk_mk ml_in mn_mn mr_in ms_my mt_mt my_mm nb_no ne_np nl_nl nso_za ny_mw oc_fr "
    "om_et or_in pa_in pl_pl ps_af pt_br ro_ro ru_ru sd_in sk_sk sl_si sn_zw so_so sr_rs sv_se sw_ke ta_in te_in "
    "tg_tj th_th tr_tr uk_ua umb_ao ur_pk uz_uz vi_vn wo_sn xh_za yo_ng yue_hant_hk zu_za"
)
"""FLEURS's spellings of its 102 languages."""

MLS = _pairs("de=german nl=dutch fr=french es=spanish it=italian pt=portuguese pl=polish")
MLS_COLUMNS = _pairs("audio=audio text=transcript speaker=speaker_id id=id duration=audio_duration")


def _granary_transcripts(subset: str, languages: dict[str, str]) -> Preset:
    return Preset(
        "nvidia/Granary",
        {"audio": "audio_filepath", "text": "text", "duration": "duration"},
        config=f"{{language}}_{subset}",
        split="asr",
        languages=languages,
        stream=True,
        audio=False,
    )


def _of_board(test: BoardSet) -> Preset:
    columns = _pairs("audio=audio text=text id=id") | ({} if test.board == "english" else {"id": "file_name"})
    return Preset(test.hub, columns, test.config, test.split, languages=_same(test.language))


PRESETS: dict[str, Preset | dict[str, Preset]] = {
    "granary": {
        "yodas": Preset(
            "espnet/yodas-granary",
            {"audio": "audio", "text": "text", "id": "utt_id", "duration": "duration", "speaker": "original_audio_id"},
            split="asr_only",
            languages=GRANARY_NAMES,
            stream=True,
            quality={"characters_per_second": [2.0, 30.0]},
        ),
        "ytc": _granary_transcripts("ytc", GRANARY_LANGUAGES),
        "voxpopuli": _granary_transcripts("voxpopuli", GRANARY_LANGUAGES),
        "librilight": _granary_transcripts("librilight", {"en": "en"}),
    },
    "common_voice": Preset(
        "fixie-ai/common_voice_17_0", {"audio": "audio", "text": "sentence", "speaker": "client_id", "id": "path"}
    ),
    "fleurs": Preset(
        "google/fleurs",
        {"audio": "audio", "text": "raw_transcription", "id": "path"},
        languages={**{f.split("_")[0]: f for f in FLEURS.split()}, "zh": "cmn_hans_cn", "tl": "fil_ph"},
        config=None,
        data_files="{language}/{split}/*.parquet",
        revision=EXPORT,
    ),
    "voxpopuli": Preset(
        "facebook/voxpopuli",
        {"audio": "audio", "text": "raw_text", "speaker": "speaker_id", "id": "audio_id"},
        languages=_same("en de fr es pl it ro hu cs nl fi hr sk sl et lt"),
        config=None,
        data_files="{language}/*{split}/*.parquet",
        revision=EXPORT,
    ),
    "librispeech": {
        subset: Preset(
            "openslr/librispeech_asr",
            {"audio": "audio", "text": "text", "speaker": "speaker_id", "id": "id"},
            config=subset,
            split=split,
            languages={"en": "en"},
        )
        for subset, split in (("clean", "train.100"), ("other", "train.500"))
    },
    "mls": {
        "european": Preset("facebook/multilingual_librispeech", MLS_COLUMNS, languages=MLS),
        "english": Preset("parler-tts/mls_eng", MLS_COLUMNS, config=None, languages={"en": "en"}, stream=True),
    },
    "emilia": {
        subset: Preset(
            "amphion/Emilia-Dataset",
            _pairs("audio=mp3 text=json.text speaker=json.speaker id=json.id duration=json.duration"),
            config=None,
            languages={c: c.upper() for c in ("zh", "en", "ja", "fr", "de", "ko")},
            stream=True,
            data_files=f"{folder}/{{language}}/*.tar",
            quality={"json.dnsmos": [3.0, None]},
        )
        for subset, folder in (("emilia", "Emilia"), ("yodas", "Emilia-YODAS"))
    },
    "peoples_speech": {
        subset: Preset(
            "MLCommons/peoples_speech",
            {"audio": "audio", "text": "text", "id": "id", "duration": "duration_ms"},
            config=subset,
            languages={"en": "en"},
            stream=True,
        )
        for subset in ("clean", "clean_sa", "dirty", "dirty_sa")
    },
    "yodas": Preset(
        "espnet/yodas",
        {"audio": "audio", "text": "text", "id": "utt_id"},
        config=None,
        data_files="{language}000/*{split}/*.parquet",
        revision=EXPORT,
        stream=True,
        quality={"characters_per_second": [2.0, 30.0]},
    ),
    **{
        f"open_asr_{board}": {name: _of_board(test) for name, test in sets.items() if test.sessions is None}
        for board, sets in boards().items()
    },
}
"""By name; those with subsets by subset too, the usual one first."""
