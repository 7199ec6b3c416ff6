"""The words that every part of leyden says things with."""

from leyden import listed


def test_a_list_of_names_ends_after_ten():
    assert listed([]) == "" and listed(iter("ab")) == "a, b" and listed(range(10), " ") == "0 1 2 3 4 5 6 7 8 9"
    assert listed(range(1000)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 990 more"
    assert listed(range(12_345)).endswith(" and 12,335 more")
