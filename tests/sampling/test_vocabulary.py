from mlxserver.sampling.vocabulary import Pieces
from tests.sampling.texts import MadeUp


def test_logits_beyond_the_vocabulary_have_no_text() -> None:
    assert Pieces(5, MadeUp(3)).all() == [b"</s>", b"a", b"b", b"", b""]
