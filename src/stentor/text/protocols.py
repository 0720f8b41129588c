"""Normalisers of published evaluations: a figure stands beside a paper's or a leader board's only in its own.

`seed_tts` is that of Seed-TTS-eval (run_wer.py), `librispeech_pc`, `minimax` and `fleurs` are those that OmniVoice
reports these sets in (omnivoice/eval/wer); `minimax` and `fleurs` begin with omnilingual-asr's;
`open_asr` is that of the Open ASR Leaderboard (`stentor.text.open_asr`). Where a protocol counts characters, its
normaliser writes them apart, so that they are words.
"""

import re
import string
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType

from stentor.text.open_asr import open_asr

ZHON = (
    "\uff02\uff03\uff04\uff05\uff06\uff07\uff08\uff09\uff0a\uff0b\uff0c\uff0d\uff0f\uff1a\uff1b\uff1c\uff1d\uff1e\uff20"
    "\uff3b\uff3c\uff3d\uff3e\uff3f\uff40\uff5b\uff5c\uff5d\uff5e\uff5f\uff60\uff62\uff63\uff64\u3000\u3001\u3003\u3008"
    "\u3009\u300a\u300b\u300c\u300d\u300e\u300f\u3010\u3011\u3014\u3015\u3016\u3017\u3018\u3019\u301a\u301b\u301c\u301d"
    "\u301e\u301f\u3030\u303e\u303f\u2013\u2014\u2018\u2019\u201b\u201c\u201d\u201e\u201f\u2026\u2027\ufe4f\ufe51\ufe54"
    "\u00b7\uff0e\uff01\uff1f\uff61\u3002"
)
"""Chinese punctuation as the package zhon lists it (`zhon.hanzi.punctuation`), which Seed-TTS-eval takes."""
SEED_TTS = str.maketrans("", "", (ZHON + string.punctuation).replace("'", ""))
OMNILINGUAL = re.compile(
    r"[!\"$-&(-,./:-@\[\]-_{-~\u00a1\u00a3\u00a9\u00ab\u00ac\u00b0\u00b6\u00b7\u00bb\u00bf\u00d7\u02c7\u055a-\u055f\u0589"
    r"\u05be\u060c\u061b\u061e\u061f\u0640\u06d4\u0964\u0965\u09f7\u0e46\u0ec6\u0f04\u0f05\u0f0d\u0f0e\u104a-\u104f\u109f"
    r"\u1361-\u1366\u166d\u166e\u17d4-\u17d7\u17da\u2015\u2018-\u2022\u2027\u2030\u2038-\u203b\u2044\u2060\u206f\u20ac"
    r"\u2192\u2212\u226a\u226b\u22ef\u230a\u230b\u231e\u231f\u2500\u2d70\u3001\u3002\u3005\u3008-\u3011\u3014\u3015\u30fb"
    r"\u30fc\ua4fe\ua4ff\ua92e\ua92f\ufd3e\ufd3f\ufffd]"
)
"""Characters that omnilingual-asr replaces with a space, as far as it is left after NFKC. Hyphens and apostrophes
stay."""
DELETED = re.compile(r"[\u200b\u200c\u200e\u200f\u202a\u202c\u064b-\u0652\u0656\u0657]")
DELETED_OF = MappingProxyType({"he": re.compile(r"[\u05b0-\u05cf]"), "mn": re.compile(r"\u00ad")})
"""Characters that are also deleted in single languages: vowel points, soft hyphens."""
APOSTROPHE = re.compile(r"(\S+)[\u201b\u2019\u2018](\S+)")
CJK = r"\u4e00-\u9fff\u3040-\u309f\u30a0-\u30ff\u3000-\u303f"
CJK_SPACE = re.compile(rf"(?<=[{CJK}])\s+|\s+(?=[{CJK}])")
SPACELESS = ("zh", "yue", "ja")
BY_CHARACTER = ("ko", "th", "ar", "arb", "vi", "hi", "el")
"""Languages with spaces whose errors MiniMax-Speech (arXiv:2505.07916) counts by character, spaces among them."""


def seed_tts(text: str, language: str | None) -> str:
    """Without punctuation but apostrophes, in small letters where it is not Chinese, in simplified characters where it
    is; `stentor.text.normalize.words` divides Chinese into characters."""
    text = text.translate(SEED_TTS)
    return simplified(text) if language in ("zh", "cmn") else text.lower()


def librispeech_pc(text: str, language: str | None) -> str:
    """Small Latin letters, digits and apostrophes; all else is a space."""
    return re.sub(r"[^a-z0-9']", " ", re.sub("[\u2018\u2019]", "'", text).lower())


def minimax(text: str, language: str | None) -> str:
    """`omnilingual`; Chinese, Cantonese and Japanese without spaces; of `BY_CHARACTER` every character is a word, and a
    space is `|`."""
    text = omnilingual(text, language)
    if language in SPACELESS:
        return " ".join((text if language == "ja" else simplified(text)).replace(" ", ""))
    return " ".join(text.replace(" ", "|")) if language in BY_CHARACTER else text


def fleurs(text: str, language: str | None) -> str:
    """`omnilingual`; every character is a word, and a space, but for those beside Chinese and Japanese characters, is
    `|`."""
    return " ".join(CJK_SPACE.sub("", omnilingual(text, language)).strip().replace(" ", "|"))


def omnilingual(text: str, language: str | None) -> str:
    """NFKC in small letters, without brackets that hold digits and without punctuation: the text normalisation of
    omnilingual-asr (Meta, workflows/dataprep/text_tools.py), which leaves numbers."""
    text = unicodedata.normalize("NFKC", text).lower()
    text = re.sub(r"\([^)]*\d[^)]*\)", " ", text)
    text = text.replace("&lt;", "").replace("&gt;", "").replace("&nbsp", "").replace("\u0671", "\u0627")
    text = DELETED.sub("", OMNILINGUAL.sub(" ", APOSTROPHE.sub(r"\1'\2", text)))
    if (deleted := DELETED_OF.get(language or "")) is not None:
        text = deleted.sub("", text)
    elif language == "th":
        text = text.replace("\u200d", " ")
    elif language == "jv":
        text = "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    return " ".join(text.split())


def simplified(text: str) -> str:
    """Chinese in simplified characters, where the package OpenCC is installed; else as it is."""
    return _converter()(text)


@lru_cache(maxsize=1)
def _converter() -> Callable[[str], str]:
    try:
        from opencc import OpenCC
    except ImportError:
        return lambda text: text
    convert: Callable[[str], str] = OpenCC("t2s").convert
    return convert


NORMALIZERS: dict[str, Callable[[str, str | None], str]] = {
    function.__name__: function for function in (seed_tts, librispeech_pc, minimax, fleurs, open_asr)
}
"""By name: a function of a text and the code of its language."""
BY_CHARACTERS = ("minimax", "fleurs")
"""Those whose words are characters, in some languages or in all."""
