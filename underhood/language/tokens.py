"""Text → tokens and back, as a folder's tokenizer.json says: numbers for the model, words for pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from underhood.core.errors import UnderhoodError
from underhood.core.extras import require

TOKENIZER = "tokenizer.json"


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level tokenizers: itself where it prints, another one where not."""
    printing = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (chr(256 + index) for index in range(256))
    return [chr(byte) if byte in printing else next(others) for byte in range(256)]


def byte_tokenizer() -> dict[str, Any]:
    """tokenizer.json of a model whose 256 tokens are the bytes, in their order."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {letter: byte for byte, letter in enumerate(byte_letters())}, "merges": [],
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model,
    }  # fmt: skip


class Tokenizer:
    """`encode("text")` → numbers, `decode(numbers)` → text, `words(numbers)` → a label for each."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The numbers of a text; `special`: with what the tokenizer puts before and after."""
        return self._inner.encode(text, add_special_tokens=special).ids

    def decode(self, numbers: list[int]) -> str:
        return self._inner.decode(numbers, skip_special_tokens=False)

    def words(self, numbers: list[int]) -> list[str]:
        """What each token adds to the text; bytes that are a part of a letter, as <0xE2>."""
        letters = {letter: byte for byte, letter in enumerate(byte_letters())}
        return [self._word(number, letters) for number in numbers]

    def _word(self, number: int, letters: dict[str, int]) -> str:
        piece = self._inner.id_to_token(number)
        if piece is None:
            return f"<{number}>"
        decoded = self._inner.decode([number], skip_special_tokens=False)
        if "�" in decoded and all(letter in letters for letter in piece):
            return "".join(f"<0x{letters[letter]:02X}>" for letter in piece)
        # Some tokenizers drop a space in front of the first word, which pieces keep as ▁.
        return f" {decoded}" if piece.startswith("▁") and not decoded.startswith(" ") else decoded or piece

    def token(self, word: str) -> int:
        """The number of a text that is one token."""
        numbers = self.encode(word, special=False)
        if len(numbers) != 1:
            pieces = ", ".join(map(repr, self.words(numbers))) or "none"
            near = self._beginnings(word)
            remedy = f"Try {near}." if near else "Give a text that is one token."
            raise UnderhoodError(f"expected a target of one token: {word!r} has {len(numbers)}", pieces, remedy)
        return numbers[0]

    def _beginnings(self, word: str) -> str:
        """The longest beginning that is one token, with and without a space."""
        found = []
        for text in (word, f" {word.strip()}"):
            for end in range(len(text), 0, -1):
                if text[:end].strip() and len(self.encode(text[:end], special=False)) == 1:
                    found.append(repr(text[:end]))
                    break
        return " or ".join(dict.fromkeys(found))


def read_tokenizer(folder: Path, vocabulary: int) -> Tokenizer:
    """The tokenizer of a folder, with no token beyond the model's vocabulary."""
    path = folder / TOKENIZER
    library = require("tokenizers", "language", "a text")
    if not path.is_file():
        remedy = (
            f"Save it beside the weights as {TOKENIZER}: AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)."
        )
        raise UnderhoodError(f"no {TOKENIZER} in {folder}", remedy=remedy)
    try:
        inner = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library's own class is Exception
        raise UnderhoodError(f"{path}: no tokenizer: {error}") from None
    most = max(inner.get_vocab(with_added_tokens=True).values(), default=-1)
    if most >= vocabulary:
        got = f"a token {most:,}"
        remedy = "Take the tokenizer that was saved with these weights."
        raise UnderhoodError(f"{path}: expected tokens below the model's vocabulary of {vocabulary:,}", got, remedy)
    inner.no_truncation()
    inner.no_padding()
    return Tokenizer(inner)
