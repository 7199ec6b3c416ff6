import numpy as np
import pytest

from leyden.callbacks.drawing import DARK, LINE, PAPER, TILE, font, matrix, readable, tiles

NAMES = ["cat", "собака", "犬と猫", "زهرة", "n" * 200, "a|b 'c' \"d\""]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_readable_and_fits(name):
    text = readable(name, "#7", 90)
    assert font().getlength(text) <= 90 and text
    assert text == "#7" or name.startswith(text.rstrip("…"))


def test_letters_that_no_font_has_are_not_drawn():
    assert readable("cat", "#7") == "cat" and readable("\U0010fffe", "#7") == "#7"


@pytest.mark.parametrize("shape", [(8, 8), (300, 200), (1, 500)])
def test_each_picture_stands_above_its_words(shape):
    pictures = [np.full((*shape, 3), value, np.uint8) for value in (10, 20, 30, 40, 50)]
    sheet = tiles(pictures, [["one", "two"]] * 5)
    assert sheet.shape == (2 * (TILE + 2 * LINE + 8), 4 * (TILE + 8), 3)
    assert (sheet[4, 4] == 10).all() and (sheet[4, TILE + 12] == 20).all()
    assert (sheet[TILE + 2 * LINE + 12, 4] == 50).all()


def test_a_matrix_is_darker_where_there_is_more():
    for classes in (2, 30, 300):
        counts = np.eye(classes, dtype=int) * 3
        counts[0] = 0
        counts[0, 1] = 5
        drawn = matrix(counts, [NAMES[i % len(NAMES)] for i in range(classes)])
        side = max(3, min(40, 800 // classes))
        cells = drawn[-side * classes :, -side * classes :][1::side, 1::side]
        assert cells.shape == (classes, classes, 3)
        assert (cells[0, 1] == DARK).all() and (cells[0, 0] == PAPER).all() and (cells[1, 1] == DARK).all()
