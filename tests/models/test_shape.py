import pytest

from leyden import UserError
from leyden.models import shape


def test_picture():
    assert shape.picture([3, 4, 5]) == (3, 4, 5)


def test_features():
    assert shape.features([6]) == 6


@pytest.mark.parametrize("wrong", [[], [4], [4, 5], [1, 2, 3, 4]])
def test_no_picture(wrong):
    with pytest.raises(UserError, match="pictures"):
        shape.picture(wrong)


@pytest.mark.parametrize("wrong", [[], [4, 5], [1, 2, 3]])
def test_no_sequence(wrong):
    with pytest.raises(UserError, match="sequences"):
        shape.features(wrong)
