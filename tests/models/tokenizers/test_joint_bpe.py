"""One vocabulary for two languages: every text can be written in it, and it comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.tokenizers.joint_bpe import END, PAD, joint_bpe
from tests.support.small_models import sentences

ENGLISH = [text for text, _ in sentences(60, seed=1)]
GERMAN = ["Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.", "Ein  Mann läuft\tschnell …"] * 20
TEXTS = [*ENGLISH, *GERMAN]
MADE = joint_bpe(TEXTS, 500, ["de", "fr"])


def as_json(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.backend_tokenizer.to_str())


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_is_spelled_and_comes_back_exactly(text: str) -> None:
    """Also white space, zero bytes and signs of scripts that were never seen. Only its end is added."""
    ids = MADE(text)["input_ids"]
    assert ids[-1] == MADE.eos_token_id
    assert MADE.unk_token is None and None not in MADE.convert_ids_to_tokens(ids)
    special = any(piece in text for piece in (PAD, END, ">>de<<", ">>fr<<"))
    assert MADE.decode(ids[:-1], skip_special_tokens=not special) == text


def test_special_pieces_have_fixed_places() -> None:
    assert MADE.convert_tokens_to_ids([PAD, END, ">>de<<", ">>fr<<"]) == [0, 1, 2, 3]
    assert (MADE.pad_token_id, MADE.eos_token_id) == (0, 1)
    assert MADE(">>de<< film")["input_ids"][0] == 2
    assert MADE.decode(MADE(">>de<<film")["input_ids"], skip_special_tokens=True) == "film"
    both = MADE(["film", "a film about Paris"], padding=True)
    assert list(both) == ["input_ids", "attention_mask"]
    assert both["input_ids"][0][-1] == 0 and both["attention_mask"][0][-1] == 0


def test_it_has_the_size_and_learns_from_both_languages() -> None:
    assert len(MADE) == 500
    pieces = {MADE.decode([number]) for number in range(500)}
    assert {" film", " Männer"} <= pieces


def test_the_same_texts_give_the_same_bytes_in_any_order_thread_and_process() -> None:
    code = f"from tests.models.tokenizers.test_joint_bpe import *; print(as_json(joint_bpe({TEXTS[::-1]!r}, 500, ['de', 'fr'])))"
    environment = {"PYTHONPATH": ":".join(sys.path), "RAYON_NUM_THREADS": "2", "PYTHONHASHSEED": "5"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert ended.stdout.strip() == as_json(joint_bpe(TEXTS, 500, ["de", "fr"]))


def test_a_saved_folder_is_read_alike(tmp_path: Path) -> None:
    MADE.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(TEXTS)["input_ids"] == MADE(TEXTS)["input_ids"]
    assert again.model_input_names == ["input_ids", "attention_mask"]
    assert (again.pad_token_id, again.eos_token_id, again.model_max_length) == (0, 1, 512)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert "extra_special_tokens" not in settings  # transformers 4 would expect a table there, 5 writes a list


def test_half_a_character_is_no_reason_to_stop() -> None:
    assert len(joint_bpe(["a \ud800 b"], 300)) == 260  # two special tokens, 256 bytes, and what was merged: " b", " ?"


def test_a_size_below_that_of_the_bytes_is_refused() -> None:
    with pytest.raises(InputError, match=r"256 bytes and 3 special tokens; write vocabulary = 259"):
        joint_bpe(TEXTS, 258, ["de"])
