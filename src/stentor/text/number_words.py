"""Number words: months, units and money by language, and Chinese numbers."""

MONTHS: dict[str, list[str]] = {
    language: names.split()
    for language, names in {
        "da": "januar februar marts april maj juni juli august september oktober november december",
        "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        "en": "January February March April May June July August September October November December",
        "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        "nl": "januari februari maart april mei juni juli augustus september oktober november december",
        "no": "januar februar mars april mai juni juli august september oktober november desember",
        "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
        "sv": "januari februari mars april maj juni juli augusti september oktober november december",
    }.items()
}
_WORDS = """
da|procent|til|
de|Prozent|bis|Grad Celsius
en|percent|to|degrees Celsius
es|por ciento|a|grados Celsius
fi|prosenttia||
fr|pour cent|à|degrés Celsius
it|per cento|a|gradi Celsius
ja|パーセント|から|
ko|퍼센트||
nl|procent|tot|graden Celsius
no|prosent|til|
pl|procent|do|
pt|por cento|a|graus Celsius
ru|процентов|до|
sv|procent|till|grader Celsius
tr|yüzde||
uk|відсотків||
zh||到|摄氏度
"""
"""Language, percent, the word between the ends of a range, degrees Celsius; empty: there is none here."""
_ROWS = [row.split("|") for row in _WORDS.split("\n")[1:-1]]
PERCENT, RANGE, DEGREES = ({row[0]: row[i] for row in _ROWS if row[i]} for i in (1, 2, 3))
HOURS = {"de": "Uhr", "fr": "heures", "nl": "uur"}
"""What stands between hours and minutes."""
POINT_COMMA = "az be bg ca cs da de el es et fi fr hr hu id is it lt lv nl no pl pt ro ru sk sl sr sv tr uk vi"
"""Languages that write 1.234,5 where others write 1,234.5."""
CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₩": "KRW", "₽": "RUB"}
PLAIN_CURRENCY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₩": "won", "₽": "rubel"}
"""For languages of which num2words has no money."""
CHINESE_CURRENCY = {"$": "美元", "€": "欧元", "£": "英镑", "¥": "元", "₩": "韩元", "₽": "卢布"}
UNITS = {
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"),
    "km": ("kilometer", "kilometers"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "m": ("meter", "meters"),
    "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"),
    "g": ("gram", "grams"),
    "GHz": ("gigahertz", "gigahertz"),
    "MHz": ("megahertz", "megahertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "Hz": ("hertz", "hertz"),
    "GB": ("gigabyte", "gigabytes"),
    "MB": ("megabyte", "megabytes"),
    "ms": ("millisecond", "milliseconds"),
}
"""English: one, several."""
DIGITS = "零一二三四五六七八九"


def chinese(number: int) -> str:
    """An integer as it is read in Chinese: 10 is 十, 110 一百一十, 20005 两万零五 is written 二万零五."""
    if number < 0:
        return "负" + chinese(-number)
    if number >= 10**16:
        return chinese_digits(str(number))
    groups = []
    while number:
        number, group = divmod(number, 10000)
        groups.append(group)
    text, gap = "", False
    for i in reversed(range(len(groups))):
        group = groups[i]
        if not group:
            gap = True
            continue
        if text and (gap or group < 1000):
            text += "零"
        text += _four(group) + ("", "万", "亿", "万亿")[i]
        gap = False
    text = text or "零"
    return text[1:] if text.startswith("一十") else text


def chinese_digits(digits: str) -> str:
    """Digit by digit, as years and numbers of telephones are read."""
    return "".join(DIGITS[int(d)] for d in digits)


def _four(number: int) -> str:
    """A number below 10000."""
    text, gap = "", False
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, number = divmod(number, unit)
        if digit:
            text += ("零" if gap and text else "") + DIGITS[digit] + name
            gap = False
        else:
            gap = True
    return text
