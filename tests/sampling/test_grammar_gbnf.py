"""GBNF, by its characters: what llama.cpp's parser takes and refuses, and what fits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxserver.sampling.grammar.compiler import MAX_TEXT, GrammarCompiler
from mlxserver.sampling.grammar.gbnf import parse_gbnf
from mlxserver.sampling.grammar.integer_range import integer_range
from mlxserver.sampling.grammar.lark import to_lark
from mlxserver.sampling.grammar.nodes import GrammarError
from mlxserver.sampling.grammar.regex import Regular
from mlxserver.sampling.grammar.state import GrammarState
from mlxserver.sampling.params import Grammar, SamplerError
from tests.sampling.byte_tokens import ByteTokens

TOKENS = ByteTokens()
COMPILER = GrammarCompiler(TOKENS)


def state_of(text: str) -> GrammarState:
    grammar = Grammar("gbnf", text)
    return GrammarState(grammar, COMPILER.matcher(grammar), COMPILER.tokenizer, TOKENS)


def takes(grammar: str, tokens: list[int]) -> bool:
    state = state_of(grammar)
    for token in tokens:
        state.accept(token)
    try:
        state.check()
    except SamplerError:
        return False
    return True


def fits(grammar: str, text: str) -> bool:
    return takes(grammar, [*text.encode(), TOKENS.eos_id])


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('root ::= " yes" | " no"', [" yes", " no"], ["", " ye", " yes "]),
        ('root ::= item ("," item)*\nitem ::= " "? ("a" | "b")', ["a", " a,b, a"], ["a,", ",a"]),
        ('root ::= "ab"{2,3} "!"', ["abab!", "ababab!"], ["ab!", "abababab!"]),
        ('root ::= "a"{2} "b"{1,} "c"{0,1} "d"{0,0}', ["aab", "aabbc"], ["ab", "aabbcd"]),
        ("root ::= [à-ü]{2} [^a-c\\n] [x\\]\\-] .", ["áü1]\n", "ééé-é"], ["áüax.", "aá1x."]),
        (r'root ::= "\x41\u00e9\U0001F600\"\n\t\\"', ['Aé😀"\n\t\\'], ["Aé"]),
        ("# first\nroot ::= (  # inside\n  \"a\"\n  | 'x' )\n".replace("'x'", '"x"'), ["a", "x"], ["b"]),
        ('root ::= "b"\nroot ::= "a"', ["a"], ["b"]),
        ('root ::= [a-z]* "abc"', ["abc", "ababc", "abcabc"], ["ab", "abcd"]),
        ('root ::= ([a-z] | "ab" "!")*', ["", "ab", "ab!c", "xab!"], ["x!", "b!"]),
        ('root ::= "a" | ', ["", "a"], ["aa"]),
        ('root ::= "" "a" [] [^]', ["a"], [""]),
        ('root ::= [z-a] | "k"', ["k"], ["b", "y"]),
        ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x", "x)"]),
        ('root ::= ("a"?)* "b"', ["b", "aab"], ["c"]),
        (
            'root ::= s ":" s\ns ::= "\\"" ([^"\\\\] | "\\\\" ["n])* "\\""',
            ['"a":"\\"b"', '"":"\\n"'],
            ['"a:"b"', '"a":"\\x"'],
        ),
        ('root ::= "\\"" [a-z]* "\\"" | "\\"" "!"', ['"ab"', '"!'], ['"ab!', '"!"']),
        ('root ::= "a"\0"b"', ["a"], ["ab"]),
    ],
)
def test_what_fits(grammar: str, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not fits(grammar, text)] == []
    assert [text for text in no if fits(grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "abc', "unexpected end"),
        ('start ::= "abc"', "no rule 'root'"),
        ("", "no rule 'root'"),
        ("root ::= foo", "undefined rule 'foo'"),
        ('root ::= root "a" | "b"', "left recursive"),
        ('root ::= a "x"\na ::= b? c\nb ::= "b"\nc ::= root | "c"', "left recursive"),
        ('root = "a"', "expecting ::="),
        ("root ::= [a-", "unexpected end"),
        ("root ::= (", "expecting ')'"),
        ('root ::= "a")', "expecting newline"),
        ('root ::= "a"{3,1}', "at least 3 and at most 1"),
        ('root ::= "a"{x}', "expecting an integer"),
        ('root ::= "a"{2', "expecting '}'"),
        ('root ::= ("a" | )*', "may be empty"),
        ('root ::= ""*', "an item before"),
        ('root ::= "a"{0,0}*', "an item before"),
        ("root ::= *", "an item before"),
        (r'root ::= "\q"', "known escape"),
        (r'root ::= "\u12"', "hex digits"),
        ('root ::= "a"{2001}', "too many repetitions"),
        ('root ::= (("a" | "b"){60} "c"){60}{60}', "too many repetitions"),
        ("root ::= <no such token>", "invalid token"),
        ("root ::= !x", "expecting a token"),
        ("root ::= " + "(" * 1000, "nested too deeply"),
        ('root ::= "a" root', "no text fits"),
        ("root ::= [z-a]", "no text fits"),
    ],
)
def test_what_is_refused(grammar: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SamplerError, match="^failed to parse grammar$"):
        COMPILER.check(Grammar("gbnf", grammar))
    assert reason in caplog.text


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(SamplerError):
        COMPILER.check(Grammar("gbnf", 'root ::= "a"' + " " * MAX_TEXT))


def test_rules_that_double_stay_small() -> None:
    text = 'root ::= r30\nr0 ::= "\\"" "\\""\n' + "".join(f"r{i + 1} ::= r{i} r{i}\n" for i in range(30))
    assert len(to_lark(parse_gbnf(text, lambda token: None))) < 10_000


def test_tokens_are_named_by_number_and_text() -> None:
    by_text, call = "root ::= <ctl> !<[97]> <call>", TOKENS.texts.index(b"<call>")
    grammar = by_text.replace("<ctl>", "<[257]>")
    for text in (grammar, grammar.replace("<call>", f"<[{call}]>")):
        assert takes(text, [257, 98, call, 256])
        assert not takes(text, [257, 97, call, 256])
        assert not takes(text, [257, 98, *b"<call>", 256])


def test_special_tokens_have_no_text() -> None:
    assert not takes('root ::= "<ctl>"', [257])
    assert takes('root ::= "<ctl>"', [*b"<ctl>", 256])


def test_characters_may_be_cut_between_tokens() -> None:
    state = state_of('root ::= "é" | "è"')
    for byte in "é".encode():
        state.accept(byte)
    state.check()
    assert state.is_done


LITERALS = st.sampled_from(['"a"', '"ab"', '"b"', "[a-b]", "[^a]", ".", '"c"?', '"a"*', '("b" | "ba")', "x"])


@settings(max_examples=60, deadline=None, database=None)
@given(
    st.lists(st.lists(LITERALS, max_size=4).map(" ".join), min_size=1, max_size=3), st.text("abc", max_size=5)
)
def test_it_agrees_with_regular_expressions(options: list[str], text: str) -> None:
    """Whatever the order of characters, no alternative is lost to a longer lexeme."""
    grammar = f'x ::= "a" "c" | "ac" "b"\nroot ::= {" | ".join(options)}'
    rules = parse_gbnf(grammar, lambda token: None)
    pattern = Regular(rules, 10_000).text(rules["root"])
    wanted = re.fullmatch(
        re.sub(r"\\x\{([0-9A-F]+)\}", lambda m: re.escape(chr(int(m[1], 16))), pattern), text
    )
    try:
        assert fits(grammar, text) == bool(wanted)
    except SamplerError:
        pytest.fail(grammar)


@pytest.mark.parametrize("low", [None, 0, 1, 9, 10, 47, 100, 105, 999, -1, -10, -123])
@pytest.mark.parametrize("high", [None, 0, 7, 19, 50, 101, 1000, -1, -9, -100])
def test_integer_ranges(low: int | None, high: int | None) -> None:
    if low is None and high is None:
        return
    if low is not None and high is not None and low > high:
        with pytest.raises(ValueError, match="no integer lies between"):
            integer_range(low, high)
        return
    rules = parse_gbnf(f"root ::= {integer_range(low, high)}", lambda token: None)
    pattern = re.compile(Regular(rules, 100_000).text(rules["root"]).replace(r"\x{2D}", "-"))
    found = [n for n in range(-1100, 1101) if pattern.fullmatch(str(n))]
    assert found == [
        n for n in range(-1100, 1101) if (low is None or n >= low) and (high is None or n <= high)
    ]
    assert not [text for text in ("00", "05", "-05", "010") if pattern.fullmatch(text)]


def test_an_empty_class_matches_nothing() -> None:
    with pytest.raises(GrammarError, match="no text fits"):
        to_lark(parse_gbnf(r"root ::= [\U0000D800]", lambda token: None))
