"""Lines of mixed text, the same for a given seed, on which tokenizers tend to differ."""

from __future__ import annotations

import random
from collections.abc import Callable

_PROSE = """
The quick brown fox jumps over the lazy dog, doesn't it? We'll see; they've said I'M sure that it'S fine.
Größenwahn, naïve café, Ångström, œuvre, İstanbul, straße. C'est l'été où l'on s'était arrêté à Nîmes.
Съешь же ещё этих мягких французских булок, да выпей чаю. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
いろはにほへと ちりぬるを。吾輩は猫である。名前はまだ無い。カタカナ・ﾊﾝｶｸ、全角ＡＢＣ１２３！
我能吞下玻璃而不伤身体。子曰：“學而時習之，不亦說乎？” 키스의 고유조건은 입술끼리 만나야 한다.
צ'ט, שלום עולם! نص حكيم له سر قاطع وذو شأن عظيم، ١٢٣٤٥٦. ऋषियों को सताने वाले दुष्ट राक्षसों के राजा १२३।
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ၁၂၃ មនុស្ស ལྷ་ས། ሰላም ልዑል ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ Tiếng Việt rất đẹp
👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ☃️ ❤️‍🔥 🤷🏻‍♀️ ✅ №½ ²³ Ⅷ ⅔ ① 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙 ﬁ ﷽ Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤a̴̵l̸g҉o e\u0301 n\u0303
""".split("\n")

_CODE = r"""
def f(x: int, *args, **kw) -> "list[str]":  # comment
        return [f"{k!r}={v:>10.3f}\n" for k, v in kw.items() if k != '__init__' and v is not None]
for (int i = 0; i < n; ++i) { a[i] += b[i] * 0x1F; /* FIXME */ } // end
SELECT COUNT(*) FROM "users" u WHERE u.name LIKE '%o''Brien%' AND id IN (1, 22, 333, 4444, 55555);
<div class="a-b_c" data-x='{"k": [1, 2.5e-10, null]}'>&nbsp;&#128512;<br/></div>
git commit -m "it's done" && curl -sSL https://example.com/a/b.tar.gz?x=1&y=%20 | tar xz -C ~/tmp
fn main() -> Result<(), Box<dyn Error>> { let s: &'static str = r#"raw"#; println!("{s:?}"); Ok(()) }
#include <stdio.h> 	int	main(void){return(0);}	// 	tabs
\frac{a}{b} \leq \sum_{i=1}^{n} x_i^2 $$E=mc^2$$ \begin{align*} & = \\ \end{align*}
camelCaseIdentifier snake_case_identifier SCREAMING_CASE HTTPServerError2XX kebab-case-x v1.2.3-rc4+build.567
192.168.0.1 2001:db8::1 3.14159265358979 1,234,567.89 -1e-9 0b1010 12345678901234567890 +49 (0)30 123-456
!!! ??? ... ;;; ::: ''' \"\"\" ``` ~~~ *** --- === +++ ((())) [[[]]] {{{}}} <<<>>> ||||
\\\\ //// @@@ ### $$$ %%% ^^^ &&& $x $1 #2 @y
""".split("\n")

SPECIAL_TEXTS = (
    "<|im_start|> <|im_end|> <|endoftext|> <repo_name> <file_sep> <filename> <gh_stars> <jupyter_code>"
    " <empty_output> <bos> <eos> <pad> <unk> <mask> <start_of_turn> <end_of_turn> <unused0> <unused99>"
    " <start_of_image> <s> </s> <0x0A> <0xFF> [multimodal] <h1> </h1> <table> </p> <|eot_id|> [INST] [/INST]"
    " <|begin_of_text|> <think> </think> <tool_call> <|fim_prefix|> <｜end▁of▁sentence｜> ▁ ▁▁ Ġ Ċ"
).split()

_SPACES = [
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\u2028",
    "\u0085",
    "\ufeff",
    "\u200d",
    "\t",
    "\v",
    "\f",
    "\r",
]
_BLOCKS = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00)]
_BLOCKS += [(0xE00, 0x1100), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2C00), (0x3040, 0x3100)]
_BLOCKS += [(0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xFB00, 0xFFFE), (0x10000, 0x10FFF), (0x16000, 0x16FFF)]
_BLOCKS += [(0x1C000, 0x1E000), (0x1D400, 0x1D800), (0x1F000, 0x1FC00), (0x20000, 0x20100), (0, 0x20)]
_BLOCKS += [(0xE000, 0xE100), (0xE0000, 0xE0200), (0x10FF00, 0x110000), (0x30, 0x3A), (0x41, 0x5B)]


def lines(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    fixed = [line for line in _PROSE + _CODE if line] + [text + " x" for text in SPECIAL_TEXTS]
    made = [rng.choice(_KINDS)(rng) for _ in range(count)]
    return ["", " ", "  ", "\n", "\t", "a", " a", "\r\n", "\x00", *fixed, *made]


def _characters(rng: random.Random) -> str:
    first, last = rng.choice(_BLOCKS)
    return "".join(chr(rng.randrange(first, last)) for _ in range(rng.randint(1, 24)))


def _any_characters(rng: random.Random) -> str:
    return "".join(_characters(rng)[:3] for _ in range(rng.randint(1, 12)))


def _blank(rng: random.Random) -> str:
    return rng.choice([" ", "\n", "\t", " ", "\r\n", rng.choice(_SPACES)]) * rng.choice(
        [1, 1, 1, 2, 2, 3, 4, 7, 33]
    )


def _mixed(rng: random.Random) -> str:
    words = " ".join(rng.choice([_PROSE, _CODE])[rng.randrange(1, 8)].split(" ")).split(" ")
    parts = [rng.choice(words) + rng.choice(["", _blank(rng), " ", " "]) for _ in range(rng.randint(1, 12))]
    return "".join(parts)


def _cut(rng: random.Random) -> str:
    line = rng.choice(_PROSE + _CODE)
    start = rng.randint(0, max(0, len(line) - 3))
    return line[start : start + rng.randint(1, 50)]


def _number(rng: random.Random) -> str:
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 23)))
    return (
        rng.choice(["", " ", "  ", "$", "x", "-", "é"])
        + digits
        + rng.choice(["", ".5", "th", "٣٤", " €", "½"])
    )


def _special(rng: random.Random) -> str:
    parts = [rng.choice([*SPECIAL_TEXTS, _cut(rng), _blank(rng)]) for _ in range(rng.randint(2, 7))]
    return "".join(parts)


def _run(rng: random.Random) -> str:
    unit = rng.choice(
        ["a", "ab", "ha", "=", "-", ".", "*", "/", "#", "é", "哈", "👍", "na ", "0", "_", "<", "▁", "\\n"]
    )
    return rng.choice(["", " ", "x"]) + unit * rng.randint(2, 90) + rng.choice(["", "b", " c", "\n"])


def _long_word(rng: random.Random) -> str:
    return "".join(rng.choice("etaoinshrdlucmfwypvbgk") for _ in range(rng.randint(30, 300)))


def _contraction(rng: random.Random) -> str:
    return " ".join(
        rng.choice(["I", "they", "WE", "it", "ſ", "é", ""]) + rng.choice(["'", "’"]) + rng.choice(_ENDINGS)
        for _ in range(rng.randint(1, 5))
    )


_ENDINGS = ["s", "t", "re", "ve", "m", "ll", "d", "S", "RE", "Ve", "x", "", "ſ", "sx", "l"]
_KINDS: list[Callable[[random.Random], str]] = [
    *[_characters, _any_characters, _any_characters, _mixed, _mixed, _mixed, _cut, _cut],
    *[_number, _special, _special, _run, _long_word, _contraction],
]
