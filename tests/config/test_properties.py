"""Java's `.properties` syntax."""

import pytest

from headrace.config.properties import parse_properties, read_properties


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a=1", {"a": "1"}),
        ("  a  =  1  ", {"a": "1  "}),
        ("a:1\nb 2\nc\td", {"a": "1", "b": "2", "c": "d"}),
        ("a = = 1", {"a": "= 1"}),
        ("a : = 1", {"a": "= 1"}),
        ("a", {"a": ""}),
        ("=1", {"": "1"}),
        ("# no\n! no\n\n   \n  # no\na=#yes", {"a": "#yes"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=one,\\\n    two,\\\r\n\tthree", {"a": "one,two,three"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a\\ b\\:c\\=d=e", {"a b:c=d": "e"}),
        ("a=\\t\\n\\u00fc\\q\\\\", {"a": "\t\nüq\\"}),
        ("a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("a=1\\", {"a": "1"}),
        ("", {}),
    ],
)
def test_the_syntax_is_javas(text, expected):
    assert parse_properties(text) == expected


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_file_is_utf8_or_what_java_wrote_before(tmp_path, encoding):
    file = tmp_path / "a.properties"
    file.write_bytes("city=Zürich".encode(encoding))
    assert read_properties(file) == {"city": "Zürich"}
