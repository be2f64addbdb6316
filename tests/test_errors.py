"""The tree of errors that is drawn in `errors.py` is the tree of its classes."""

import re

from headrace import errors


def test_the_drawn_tree_is_the_real_one():
    drawn = re.findall(r"^(?:[│├└─ ]*)(\w+(?:Error|StateWarning))\b", errors.__doc__ or "", re.MULTILINE)
    defined = [name for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)]
    assert sorted(drawn) == sorted(defined)
    raised = [name for name in defined if name.endswith("Error")]
    assert all(issubclass(getattr(errors, name), errors.StreamsError) for name in raised)
    assert all(issubclass(getattr(errors, name), UserWarning) for name in set(defined) - set(raised))
