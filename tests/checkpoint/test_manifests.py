"""Manifests as bytes, and what several of them say together."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.checkpoint.files import BlobRef, DeltaRef, FileRef, manifest_name, read_blob
from headrace.checkpoint.fingerprint import Fingerprint, StoreShape, SubtopologyShape
from headrace.checkpoint.ledger import Ledger, read_ledger
from headrace.checkpoint.manifest import (
    Carried,
    Manifest,
    ManifestBlobs,
    Outbox,
    TaskChange,
    decode_manifest,
    encode_manifest,
    manifest_digest,
)
from headrace.checkpoint.manifest_builder import ManifestBuilder
from headrace.checkpoint.receipt import Receipt
from headrace.checkpoint.storage import ObjectStorage
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError
from headrace.model.ids import TaskId, TopicPartition
from tests.profiles import examples

SHAPE = Fingerprint(
    (SubtopologyShape(0, ("in",), 2, (StoreShape("s", "KeyValueKind()", "STRING", "LONG", True),)),), (), {}
)


def example() -> tuple[Manifest, bytes]:
    blobs = ManifestBlobs(7)
    delta, carried = blobs.add(b"a delta"), blobs.add(b"rows")
    manifest = Manifest(
        number=7, predecessor=b"p" * 16, since=7, checkpoint="c0", application="app", epoch=3, clock=1700, delivered=5,
        tasks=(TaskChange(TaskId(0, 1), True, (DeltaRef(7, "x", 2, delta),), 1800),),
        positions={"in": {0: 4, 1: 300}}, topics={"in": "id"},
        outboxes=(Outbox(TaskId(0, 1), BlobRef("outboxes/0_1/000000000007-x", 0, 9, b"d" * 16)),),
        carried=(Carried(TaskId(1, 0), TaskId(0, 1), carried),), dropped={"late": 2}, fingerprint=SHAPE,
    )  # fmt: skip
    return manifest, encode_manifest(manifest, blobs)


def test_a_manifest_survives_being_bytes():
    manifest, raw = example()
    assert decode_manifest(raw, "x") == (manifest, manifest_digest(raw))


def test_the_bytes_of_a_manifest_do_not_change():
    assert example()[1].hex() == GOLDEN


def test_manifests_of_earlier_headraces_can_be_read():
    for earlier in EARLIER:
        assert decode_manifest(bytes.fromhex(earlier), "x")[0] == example()[0]


def test_what_lies_in_a_manifest_can_be_read_by_its_piece():
    manifest, raw = example()
    storage = ObjectStorage.at("memory:///", {})
    storage.create(manifest_name(7), raw)
    assert read_blob(storage, manifest.tasks[0].deltas[0].blob, "x") == b"a delta"
    assert read_blob(storage, manifest.carried[0].blob, "x") == b"rows"


def read_all(storage, blobs) -> None:
    decode_manifest(storage.read(manifest_name(7)), manifest_name(7))
    for blob in blobs:
        read_blob(storage, blob, "a delta")


def test_a_flipped_bit_is_found_wherever_it_is():
    manifest, raw = example()
    blobs = [manifest.tasks[0].deltas[0].blob, manifest.carried[0].blob]
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 4
        storage = ObjectStorage.at("memory:///", {})
        storage.create(manifest_name(7), bytes(damaged))
        with pytest.raises(CheckpointCorruptedError, match="manifests/000000000007"):
            read_all(storage, blobs)


def test_a_manifest_that_is_cut_off_or_too_long_is_found():
    raw = example()[1]
    for damaged in [*(raw[:length] for length in range(len(raw))), raw + b"x", b""]:
        with pytest.raises(CheckpointCorruptedError, match="the manifest m cannot be read"):
            decode_manifest(damaged, "m")


def test_a_file_of_another_kind_is_refused():
    with pytest.raises(CheckpointCorruptedError, match="a newer Headrace's"):
        decode_manifest(b"HRM2" + example()[1][4:], "m")


# ---------------------------------------------------------------------------------------------------------- together
tasks = st.builds(TaskId, st.integers(0, 1), st.integers(0, 2))
blobs = st.one_of(
    st.binary(max_size=9), st.builds(FileRef, st.text("ab", min_size=1), st.integers(0, 9), st.just(b"d" * 16))
)
receipts = st.builds(
    Receipt, task=tasks, level=st.integers(0, 1), number=st.just(0), attempt=st.text("xyz", max_size=3), base=st.none(),
    delta=blobs, entries=st.integers(0, 5), whole=st.booleans(), outbox=st.none() | blobs,
    carried=st.dictionaries(tasks, blobs, max_size=2),
    positions=st.dictionaries(st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 2)), st.integers(0, 99)),
    dropped=st.dictionaries(st.sampled_from(["late", "null"]), st.integers(1, 9)), due=st.none() | st.integers(0, 9),
)  # fmt: skip
batches = st.lists(st.lists(receipts, max_size=3, unique_by=lambda receipt: receipt.task), min_size=1, max_size=8)
BUILDER = ManifestBuilder(checkpoint="c", application="app", epoch=1)


def written(batches, storage, full_up_to) -> Ledger:
    """The ledger of a coordinator that writes one manifest after the other."""
    ledger = Ledger()
    for number, batch in enumerate(batches):
        builder = replace(BUILDER, clock=number, receipts=[replace(receipt, number=number) for receipt in batch])
        manifest, data = builder.build(ledger, full_up_to=full_up_to)
        assert storage.create(manifest_name(number), data)
        ledger.apply(manifest, manifest_digest(data))
    return ledger


def said(ledger: Ledger) -> dict:
    """All that matters of a ledger; where its blobs lie may differ, what they are may not."""
    tasks = {
        task: ([(delta.version, delta.entries, delta.blob.digest) for delta in at.chain], at.due)
        for task, at in ledger.tasks.items()
    }
    carried = [(rows.target, rows.origin, rows.blob.digest) for rows in ledger.carried]
    return {"tasks": tasks, "carried": carried, "positions": ledger.positions, "dropped": dict(ledger.dropped)}


@settings(max_examples=examples(60), deadline=None)
@given(batches)
def test_manifests_that_say_what_changed_say_the_same_as_those_that_say_all(batches):
    short, long = ObjectStorage.at("memory:///", {}), ObjectStorage.at("memory:///", {})
    ledger = written(batches, short, 0)
    assert said(ledger) == said(written(batches, long, 1_000_000))
    last = len(batches) - 1
    assert said(read_ledger(short, last)) == said(read_ledger(long, last)) == said(ledger)
    assert read_ledger(short, last).digest == ledger.digest


def run_of(task: int, number: int) -> Receipt:
    return Receipt(
        task=TaskId(0, task), level=0, number=number, attempt=f"{task}-{number}", base=None, delta=b"", entries=0,
        positions={TopicPartition("a topic", task): number},
    )  # fmt: skip


@pytest.mark.slow
def test_a_manifest_stays_small_with_many_tasks():
    storage = ObjectStorage.at("memory:///", {})
    everything = [[run_of(task, 0) for task in range(2000)]]
    some = [[run_of(task, number) for task in range(10)] for number in range(1, 300)]
    ledger = written(everything + some, storage, 1000)
    sizes = [len(storage.read(name)) for name in storage.names("manifests/")]
    assert sizes[0] < 200_000
    assert sorted(sizes[1:])[-10] < 2_000
    assert sum(sizes[1:]) < 4 * len(sizes) * 2_000
    assert said(read_ledger(storage, 299)) == said(ledger)


def test_a_manifest_of_another_history_is_found():
    storage, other = ObjectStorage.at("memory:///", {}), ObjectStorage.at("memory:///", {})
    written([[run_of(0, n)] for n in range(3)], storage, 0)
    written([[replace(run_of(0, n), entries=9)] for n in range(3)], other, 0)
    storage.delete(manifest_name(1))
    storage.create(manifest_name(1), other.read(manifest_name(1)))
    assert read_ledger(other, 2).number == 2
    with pytest.raises(CheckpointMismatchError, match="manifests/000000000001 is out of place: it does not follow"):
        read_ledger(storage, 2)


def test_a_manifest_that_is_missing_or_under_another_name_is_named():
    storage = ObjectStorage.at("memory:///", {})
    written([[run_of(0, n)] for n in range(3)], storage, 0)
    storage.create(manifest_name(5), storage.read(manifest_name(2)))
    with pytest.raises(CheckpointCorruptedError, match="000000000005 holds manifest 2"):
        read_ledger(storage, 5)
    with pytest.raises(CheckpointCorruptedError, match="manifests/000000000003 is missing") as caught:
        read_ledger(storage, 3)
    assert caught.value.file == manifest_name(3)


def test_files_are_needed_as_long_as_a_kept_manifest_names_them():
    ledger, storage = Ledger(), ObjectStorage.at("memory:///", {})
    for number in range(6):
        file = FileRef(f"deltas/0_0/{number:012}-x", 1, b"d" * 16)
        outbox = FileRef(f"outboxes/0_0/{number:012}-x", 1, b"d" * 16)
        receipt = replace(run_of(0, number), delta=file, outbox=outbox, whole=number == 4)
        manifest, data = replace(BUILDER, receipts=[receipt]).build(ledger, full_up_to=1000)
        storage.create(manifest_name(number), data)
        ledger.apply(manifest, manifest_digest(data))
        ledger.forget_outboxes(number - 2)
    deltas = [f"deltas/0_0/{number:012}-x" for number in range(6)]
    outboxes = [f"outboxes/0_0/{number:012}-x" for number in range(6)]
    manifests = [manifest_name(number) for number in range(6)]
    #  0 1 2 3 [4 5      whole at 4: those before are named by manifests up to 3; delivered up to 3
    assert ledger.needed_files(1) == {*manifests[4:], *deltas[4:], *outboxes[4:]}
    assert ledger.needed_files(2) == {*manifests[4:], *deltas[4:], *outboxes[4:]}
    again = read_ledger(storage, 5, 3)
    again.forget_outboxes(3)
    assert again.needed_files(3) == {*manifests[3:], *deltas, *outboxes[3:]}


GOLDEN = (
    "48524d31612064656c7461726f7773de0012a66e756d62657207ab7072656465636573736f72c41070707070707070707070707070707070"
    "a573696e636507aa636865636b706f696e74a26330ab6170706c69636174696f6ea3617070a565706f636803a5636c6f636bcd06a4a96465"
    "6c69766572656405a57461736b739194920001c3919407a1780294070407c4102c19ed170628dc213b9a6c0575fdd374cd0708a9706f7369"
    "74696f6e7381a2696e82000401cd012ca6746f7069637381a2696ea26964a86f7574626f786573919292000194bb6f7574626f7865732f30"
    "5f312f3030303030303030303030372d780009c41064646464646464646464646464646464a763617272696564919392010092000194070b"
    "04c410f2305e3ea413d261c40604673f9fbe7da764726f7070656481a46c61746502a564726f707390ab66696e6765727072696e7488a667"
    "726f75707391950091a2696e029196a173ae4b657956616c75654b696e642829a6535452494e47a44c4f4e47c3a000ad676c6f62616c5f73"
    "746f72657390aa706172746974696f6e7380a96f70657261746f727390a86c696e656167657380a772656d6f76656490a764656369646564"
    "90a567726f776e80aa6368616e67656c6f677380a573746f7073802a542c87653bb24c8a919478b973b528000001cc"
)

# As they were before a manifest could name changelogs, the growth of topics, and where stores are.
EARLIER = [
    (
        "48524d31612064656c7461726f7773de0012a66e756d62657207ab7072656465636573736f72c41070707070707070707070707070707070"
        "a573696e636507aa636865636b706f696e74a26330ab6170706c69636174696f6ea3617070a565706f636803a5636c6f636bcd06a4a96465"
        "6c69766572656405a57461736b739194920001c3919407a1780294070407c4102c19ed170628dc213b9a6c0575fdd374cd0708a9706f7369"
        "74696f6e7381a2696e82000401cd012ca6746f7069637381a2696ea26964a86f7574626f786573919292000194bb6f7574626f7865732f30"
        "5f312f3030303030303030303030372d780009c41064646464646464646464646464646464a763617272696564919392010092000194070b"
        "04c410f2305e3ea413d261c40604673f9fbe7da764726f7070656481a46c61746502a564726f707390ab66696e6765727072696e7488a667"
        "726f75707391950091a2696e029195a173ae4b657956616c75654b696e642829a6535452494e47a44c4f4e47c300ad676c6f62616c5f7374"
        "6f72657390aa706172746974696f6e7380a96f70657261746f727390a86c696e656167657380a772656d6f76656490a76465636964656490"
        "a567726f776e80aa6368616e67656c6f677380a573746f7073809bfb05845478e228d9902b9ff14749ca000001cb"
    ),
    (
        "48524d31612064656c7461726f7773de0012a66e756d62657207ab7072656465636573736f72c41070707070707070707070707070707070"
        "a573696e636507aa636865636b706f696e74a26330ab6170706c69636174696f6ea3617070a565706f636803a5636c6f636bcd06a4a96465"
        "6c69766572656405a57461736b739194920001c3919407a1780294070407c4102c19ed170628dc213b9a6c0575fdd374cd0708a9706f7369"
        "74696f6e7381a2696e82000401cd012ca6746f7069637381a2696ea26964a86f7574626f786573919292000194bb6f7574626f7865732f30"
        "5f312f3030303030303030303030372d780009c41064646464646464646464646464646464a763617272696564919392010092000194070b"
        "04c410f2305e3ea413d261c40604673f9fbe7da764726f7070656481a46c61746502a564726f707390ab66696e6765727072696e7487a667"
        "726f75707391950091a2696e029195a173ae4b657956616c75654b696e642829a6535452494e47a44c4f4e47c300ad676c6f62616c5f7374"
        "6f72657390aa706172746974696f6e7380a96f70657261746f727390a86c696e656167657380a772656d6f76656490a76465636964656490"
        "aa6368616e67656c6f677380a573746f707380af1b2d5839770ffd1c4d62624583772d000001c4"
    ),
    (
        "48524d31612064656c7461726f77738fa66e756d62657207ab7072656465636573736f72c41070707070707070707070707070707070a573"
        "696e636507aa636865636b706f696e74a26330ab6170706c69636174696f6ea3617070a565706f636803a5636c6f636bcd06a4a964656c69"
        "766572656405a57461736b739194920001c3919407a1780294070407c4102c19ed170628dc213b9a6c0575fdd374cd0708a9706f73697469"
        "6f6e7381a2696e82000401cd012ca6746f7069637381a2696ea26964a86f7574626f786573919292000194bb6f7574626f7865732f305f31"
        "2f3030303030303030303030372d780009c41064646464646464646464646464646464a763617272696564919392010092000194070b04c4"
        "10f2305e3ea413d261c40604673f9fbe7da764726f7070656481a46c61746502ab66696e6765727072696e7483a667726f75707391940091"
        "a2696e029195a173ae4b657956616c75654b696e642829a6535452494e47a44c4f4e47c3ad676c6f62616c5f73746f72657390aa70617274"
        "6974696f6e7380ca997a11c6d95ec81336374f4557970c00000180"
    ),
    (
        "48524d31612064656c7461726f7773de0010a66e756d62657207ab7072656465636573736f72c41070707070707070707070707070707070"
        "a573696e636507aa636865636b706f696e74a26330ab6170706c69636174696f6ea3617070a565706f636803a5636c6f636bcd06a4a96465"
        "6c69766572656405a57461736b739194920001c3919407a1780294070407c4102c19ed170628dc213b9a6c0575fdd374cd0708a9706f7369"
        "74696f6e7381a2696e82000401cd012ca6746f7069637381a2696ea26964a86f7574626f786573919292000194bb6f7574626f7865732f30"
        "5f312f3030303030303030303030372d780009c41064646464646464646464646464646464a763617272696564919392010092000194070b"
        "04c410f2305e3ea413d261c40604673f9fbe7da764726f7070656481a46c61746502ab66696e6765727072696e7483a667726f7570739194"
        "0091a2696e029195a173ae4b657956616c75654b696e642829a6535452494e47a44c4f4e47c3ad676c6f62616c5f73746f72657390aa7061"
        "72746974696f6e7380aa6368616e67656c6f67738056dc877f1288c84c4f780f952bfff4e40000018e"
    ),
    (
        "48524d31612064656c7461726f7773de0010a66e756d62657207ab7072656465636573736f72c41070707070707070707070707070707070"
        "a573696e636507aa636865636b706f696e74a26330ab6170706c69636174696f6ea3617070a565706f636803a5636c6f636bcd06a4a96465"
        "6c69766572656405a57461736b739194920001c3919407a1780294070407c4102c19ed170628dc213b9a6c0575fdd374cd0708a9706f7369"
        "74696f6e7381a2696e82000401cd012ca6746f7069637381a2696ea26964a86f7574626f786573919292000194bb6f7574626f7865732f30"
        "5f312f3030303030303030303030372d780009c41064646464646464646464646464646464a763617272696564919392010092000194070b"
        "04c410f2305e3ea413d261c40604673f9fbe7da764726f7070656481a46c61746502ab66696e6765727072696e7483a667726f7570739195"
        "0091a2696e029195a173ae4b657956616c75654b696e642829a6535452494e47a44c4f4e47c300ad676c6f62616c5f73746f72657390aa70"
        "6172746974696f6e7380aa6368616e67656c6f67738057443a4d7438452367d5d9048e163f9a0000018f"
    ),
]
