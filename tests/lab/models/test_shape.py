import pytest

from lab.models import shape
from leyden import UserError


def test_what_fits():
    assert shape.picture([3, 4, 5]) == (3, 4, 5)
    assert shape.features([None, 6]) == 6
    assert shape.size([3, 4, 5]) == 60 and shape.size([7]) == 7


@pytest.mark.parametrize(
    ("reader", "wrong", "words"),
    [
        (shape.picture, [4], "choose model=mlp"),
        (shape.picture, [None, 4], "T x 4; choose model=rnn"),
        (shape.picture, [1, 2, 3, 4], "pictures"),
        (shape.features, [6], "choose model=mlp"),
        (shape.features, [4, 5], "sequences"),
        (shape.features, [1, 2, 3], "cnn"),
        (shape.size, [None, 3], "rnn or transformer"),
    ],
)
def test_what_does_not_is_told_what_does(reader, wrong, words):
    with pytest.raises(UserError, match=words):
        reader(wrong)
