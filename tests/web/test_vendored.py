"""The dashboard's libraries are the published files, and the server serves these and no others."""

import re
from hashlib import sha256
from importlib.resources import files

from headrace.web.dashboard import STATIC

STATICS = files("headrace.web") / "static"
ROW = re.compile(
    r"^\| `([^`]+)` \| `([^`]+)` \| ([\d.]+) \| `[^`]+` \| MIT, `([^`]+)` \| `([0-9a-f]{64})` \|$", re.MULTILINE
)


def test_the_vendored_files_have_the_digests_versions_and_licences_of_the_list():
    rows = ROW.findall((STATICS / "vendor/README.md").read_text())
    assert {f"vendor/{name}" for name, *_ in rows} == {name for name in STATIC if name.startswith("vendor/")}
    for name, _, version, licence, digest in rows:
        data = (STATICS / "vendor" / name).read_bytes()
        assert sha256(data).hexdigest() == digest, name
        assert "Permission is hereby granted" in (STATICS / "vendor" / licence).read_text()
        assert name.endswith(".css") or version in data.decode(), "the file itself names its version"


def test_every_file_of_the_page_is_served_and_needs_nothing_from_elsewhere():
    own = {entry.name for entry in STATICS.iterdir() if entry.is_file()} - {"index.html"}
    assert own == {name for name in STATIC if "/" not in name}
    page = (STATICS / "index.html").read_text()
    assert set(re.findall(r'(?:href|src)="/static/([^"]+)"', page)) <= set(STATIC)
    assert "http" not in page.replace("http-equiv", "")
    for name in own - {"icon.svg", "style.css"}:
        imports = re.findall(r'from "\./([^"]+)"', (STATICS / name).read_text())
        assert set(imports) <= set(STATIC), name
