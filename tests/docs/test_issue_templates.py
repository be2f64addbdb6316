"""The forms for issues are ones that the repository's host accepts, and the project says which Pythons it supports."""

import tomllib

import pytest
import yaml

from tests.docs.test_code_blocks import ROOT

FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
KINDS = {"checkboxes", "dropdown", "input", "textarea"}


@pytest.mark.parametrize("form", [form for form in FORMS if form.stem != "config"], ids=lambda form: form.name)
def test_a_form_has_what_the_host_asks_for(form):
    read = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= read.keys()
    asked = [field for field in read["body"] if field["type"] != "markdown"]
    for field in asked:
        assert field["type"] in KINDS
        assert field["attributes"]["label"]
        assert all(isinstance(option, str) for option in field["attributes"].get("options", []))
    names = [field["id"] for field in asked]
    assert len(names) == len(set(names))


def test_vulnerabilities_are_reported_in_private():
    assert "SECURITY.md" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")
    assert (ROOT / "SECURITY.md").exists()


def test_the_supported_pythons_are_those_of_the_classifiers():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [
        name.rpartition(" ")[2]
        for name in project["classifiers"]
        if name.startswith("Programming Language :: Python :: 3.")
    ]
    assert listed == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={listed[0]}"
