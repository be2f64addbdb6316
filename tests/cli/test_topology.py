"""`headrace topology`, and what `module:attribute` may name."""

import json
import re
from xml.etree import ElementTree as ET

import pytest

from headrace import Stores, StreamsBuilder, Topology, serde
from headrace.topology.drawing import lay_out, picture

MODULE = """
from headrace import Application, StreamsBuilder, serde

def build():
    builder = StreamsBuilder()
    builder.stream("lines", value=serde.STRING).group_by_key().count(store="counts").to_stream().to("counts")
    return builder.build()

def needs(argument):
    return build()

class Shop:
    app = Application("shop", build(), "file:./data")

topology, number = build(), 7
"""
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = """<script>alert("1")</script>&amp; ' ]]> \x07 \n #x"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the current directory, which is not on the path; of another name in every test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path])
    name = re.sub(r"\W", "_", tmp_path.name)
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


@pytest.mark.parametrize("attribute", ["build", "topology", "Shop.app"])
def test_a_function_a_topology_and_an_application_can_be_named(headrace, module, attribute):
    outcome = headrace("topology", f"{module}:{attribute}")
    assert outcome.code == 0
    assert outcome.out.startswith(
        "Topologies:\n   Sub-topology: 0\n    Source: KSTREAM-SOURCE-0000000000 (topics: [lines])\n"
    )


@pytest.mark.parametrize(
    "target, sentence",
    [
        ("{}:none", "has no 'none'"),
        ("{}:number", "is a int: name an Application, a Topology, or a function without arguments that makes one"),
        ("{}:needs", "cannot be called without arguments"),
        ("{}_2:app", "there is no module"),
    ],
)
def test_what_cannot_be_run_is_refused(headrace, module, target, sentence):
    outcome = headrace("topology", target.format(module))
    assert (outcome.code, outcome.out) == (1, "")
    assert sentence in outcome.err


def test_it_is_written_as_data_diagram_and_picture(headrace, module, tmp_path):
    target = f"{module}:build"
    assert json.loads(headrace("topology", target, "--json").out)["subtopologies"][0]["id"] == 0
    assert headrace("topology", target, "--format", "mermaid").out.startswith("flowchart TD\n")
    assert headrace("topology", target, "--format", "svg", "--output", tmp_path / "a.svg").out == ""
    assert (tmp_path / "a.svg").read_text() == headrace("topology", target, "--format", "svg").out


# ------------------------------------------------------------------------------------------------------- the picture
class Forward:
    def init(self, context):
        pass

    def process(self, record):
        pass


def two_groups():
    builder = StreamsBuilder()
    words = builder.stream("lines", value=serde.STRING).group_by(lambda k, v: v, key=serde.STRING, value=serde.STRING)
    words.count(store="counts").to_stream().to("out")
    return builder.build()


def elements(svg):
    return list(ET.fromstring(svg).iter())  # noqa: S314 - it is our own


def texts(svg):
    return [element.text or "" for element in elements(svg) if element.tag == f"{SVG}text"]


def test_everything_is_in_the_picture():
    topology = two_groups()
    shown = set(texts(picture(topology.graph())))
    assert {"Sub-topology 0", "Sub-topology 1", "counts", "lines", "out"} <= shown
    assert all(any(text.startswith(name[:20]) for text in shown) for name in topology.graph().nodes)


def test_the_same_topology_is_the_same_picture():
    assert picture(two_groups().graph()) == picture(two_groups().graph())


def test_what_feeds_stands_above_what_is_fed_and_nothing_overlaps():
    layout = lay_out(two_groups().graph())
    for start, end, is_store in layout.edges:
        assert is_store or layout.boxes[start].y < layout.boxes[end].y
    boxes = [box for box in layout.boxes.values() if box.kind != "group"]
    for i, one in enumerate(boxes):
        assert one.x >= 0
        assert one.x + one.width <= layout.width
        for other in boxes[:i]:
            apart = one.x + one.width <= other.x or other.x + other.width <= one.x
            assert apart or one.y + one.height <= other.y or other.y + other.height <= one.y


def test_nodes_and_stores_stand_inside_their_sub_topology():
    graph = two_groups().graph()
    boxes = lay_out(graph).boxes
    for number, group in enumerate(graph.groups):
        around = boxes[f"group {number}"]
        for inner in [*(boxes[f"node {name}"] for name in group)]:
            assert around.x < inner.x
            assert inner.x + inner.width < around.x + around.width
            assert around.y < inner.y
            assert inner.y + inner.height < around.y + around.height


def test_a_loop_through_a_topic_is_drawn():
    builder = StreamsBuilder()
    builder.stream("a").to("b")
    builder.stream("b").to("a")
    assert texts(picture(builder.build().graph())).count("a") == 1


def test_hostile_names_are_text_and_nothing_else():
    topology = Topology().add_source(HOSTILE, HOSTILE).add_processor("p", Forward, HOSTILE)
    topology.add_sink("s", HOSTILE + "2", "p").add_store(Stores.key_value("store"), "p")  # whose names are checked
    svg = picture(topology.graph())
    assert {element.tag.removeprefix(SVG) for element in elements(svg)} == {
        "defs", "g", "marker", "path", "rect", "style", "svg", "text", "title",
    }  # fmt: skip
    lines = topology.describe().mermaid().splitlines()
    assert len(lines) == 8
    assert "<script" not in "".join(lines)
    assert all(line.count('"') in (0, 2) for line in lines)


def test_an_empty_topology_is_an_empty_picture():
    assert texts(picture(Topology().graph())) == []
