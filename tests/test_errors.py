"""The tree of errors that is drawn in `errors.py` is the tree of its classes."""

import re

from headrace import errors


def test_the_drawn_tree_is_the_real_one():
    drawn = re.findall(r"^(?:[│├└─ ]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    defined = [name for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)]
    assert sorted(drawn) == sorted(defined)
    assert all(issubclass(getattr(errors, name), errors.StreamsError) for name in defined)
