"""Files from strangers: nothing outside the file is read, and no file unfolds without bound."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
import zstate.convert as zc
from zstate import cli
from zstate.convert import files, keras_files
from zstate.convert.limits import MIB, Budget

from .common import H, I, random_layer

pytestmark = pytest.mark.usefixtures("in_folder")


# HDF5 that reaches into other files.

_SECRET = "secret.bin"


def _external_storage(file: Any, path: str, shape: tuple[int, ...]) -> None:
    size = 4 * int(np.prod(shape))
    file.create_dataset(path, shape, "f4", external=[(_SECRET, 0, size)])


def _external_link(file: Any, path: str, shape: tuple[int, ...]) -> None:
    import h5py

    with h5py.File("other.h5", "w") as other:
        other["secret"] = np.ones(shape, "f4")
    file[path] = h5py.ExternalLink("other.h5", "/secret")


def _virtual(file: Any, path: str, shape: tuple[int, ...]) -> None:
    import h5py

    with h5py.File("other.h5", "w") as other:
        other["secret"] = np.ones(shape, "f4")
    layout = h5py.VirtualLayout(shape, "f4")
    layout[...] = h5py.VirtualSource("other.h5", "secret", shape)
    file.create_virtual_dataset(path, layout)


def _soft_link(file: Any, path: str, shape: tuple[int, ...]) -> None:
    import h5py

    _external_storage(file, "elsewhere", shape)
    file[path] = h5py.SoftLink("/elsewhere")


def _group_link(file: Any, path: str, shape: tuple[int, ...]) -> None:
    """The whole group around it lies in another file."""
    import h5py

    group = path.rsplit("/", 1)[0]
    with h5py.File("other.h5", "w") as other:
        for name in file[group]:
            other[name] = file[group][name][()]
        other[path.rsplit("/", 1)[1]] = np.ones(shape, "f4")
    del file[group]
    file[group] = h5py.ExternalLink("other.h5", "/")


_REACHING: dict[str, tuple[Callable[[Any, str, tuple[int, ...]], None], str]] = {
    "external storage": (_external_storage, "another file (external storage)"),
    "external link": (_external_link, "an external link, which zstate does not follow"),
    "virtual": (_virtual, "a virtual dataset, made of others"),
    "soft link": (_soft_link, ""),  # refused as such, or for where it leads
    "group": (_group_link, "an external link, which zstate does not follow"),
}


@pytest.mark.parametrize("kind", ["keras", "h5"])
@pytest.mark.parametrize("way", list(_REACHING))
def test_hdf5_reads_no_other_file(
    way: str, kind: str, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    h5py = pytest.importorskip("h5py")
    Path(_SECRET).write_bytes(bytes(range(256)) * 40)
    files.write(f"in.{kind}", {"": [random_layer(rng, "lstm")]}, "keras")
    reach, message = _REACHING[way]
    if kind == "h5":
        with h5py.File("in.h5", "r+") as file:
            _replaced(file, reach)
    else:
        with zipfile.ZipFile("in.keras") as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        Path("weights.h5").write_bytes(members["model.weights.h5"])
        with h5py.File("weights.h5", "r+") as file:
            _replaced(file, reach)
        members["model.weights.h5"] = Path("weights.h5").read_bytes()
        with zipfile.ZipFile("in.keras", "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
    assert cli.main(["convert", f"in.{kind}", "out.npz", "--from", "keras", "--to", "torch"]) == 2
    refused = capsys.readouterr().err
    assert message in refused
    assert f"[convert] in.{kind}: expected a whole .{kind} file, got Hdf5Error" in refused
    assert not Path("out.npz").exists()


def _replaced(file: Any, reach: Callable[[Any, str, tuple[int, ...]], None]) -> None:
    """One of the layer's arrays, put elsewhere."""
    paths: list[str] = []
    file.visit(paths.append)
    (path,) = [each for each in paths if each.endswith(("/recurrent_kernel", "/vars/1"))]
    shape = file[path].shape
    del file[path]
    reach(file, path, shape)


def test_a_group_inside_itself_ends(rng: np.random.Generator) -> None:
    h5py = pytest.importorskip("h5py")
    files.write("in.h5", {"": [random_layer(rng, "lstm")]}, "keras")
    with h5py.File("in.h5", "r+") as file:
        file["model_weights/again"] = file["model_weights"]
        file["model_weights/lstm_0/again"] = file["/"]
    assert len(files.read("in.h5", "keras").stacks[""]) == 1


# Small files with large arrays.


def _bomb(path: str, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _npy(shape: tuple[int, ...], data: int) -> bytes:
    buffer = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + bytes(data)


def test_an_npz_does_not_unfold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    side = 1024
    kernel = _npy((side, 4 * side), 16 * side * side)  # 16 MiB, some kB in the file
    _bomb("in.npz", {"kernel.npy": kernel, "recurrent_kernel.npy": kernel})
    to = ("convert", "in.npz", "out.npz", "--from", "keras", "--to", "torch")
    assert cli.main([*to, "--limit", "20"]) == 2
    refused = capsys.readouterr().err
    assert "[convert] in.npz: expected arrays of at most 20 MiB (--limit)" in refused
    assert "got 32 MiB with 'recurrent_kernel.npy'" in refused
    monkeypatch.setattr("zstate.convert.limits.LEAST", 20 * MIB)  # the bound without --limit
    assert cli.main(list(to)) == 2
    assert cli.main([*to, "--limit", "100"]) == 0


def test_sizes_that_the_data_does_not_have() -> None:
    """Neither a header nor the archive's directory is believed."""
    for shape, data in (((1 << 20, 1 << 20), 8), ((2, 3), 8), ((-1, 2), 8), ((2**62, 8), 0)):
        _bomb("in.npz", {"kernel.npy": _npy(shape, data)})
        with pytest.raises(zs.OptionError, match=r"in\.npz: expected a whole \.npz file, got Val"):
            files.read("in.npz", "keras")
    _bomb("in.npz", {"kernel.npy": _npy((1 << 20,), 4 << 20)})
    raw = Path("in.npz").read_bytes()
    size = len(_npy((1 << 20,), 4 << 20)).to_bytes(4, "little")
    assert raw.count(size) == 2  # in front of the data, and in the directory
    Path("in.npz").write_bytes(raw.replace(size, (300).to_bytes(4, "little")))
    with pytest.raises(zs.OptionError, match="in.npz: expected a whole"):
        files.read("in.npz", "keras")


@pytest.mark.parametrize("name", ["model.weights.h5", "config.json"])
def test_a_model_of_keras_does_not_unfold(name: str) -> None:
    members = {"config.json": b"{}", "metadata.json": b'{"keras_version": "3.0.0"}'}
    members["model.weights.h5"] = b""
    _bomb("in.keras", members | {name: bytes(20 * MIB)})
    budget = Budget("in.keras", 10 * MIB)
    # Before HDF5 is asked for anything, so without its package too.
    with pytest.raises((zs.OptionError, ValueError), match=name):  # noqa: SIM117
        with keras_files.reading(None, "in.keras", "keras", "keras", budget):
            pass


def test_compressed_arrays_of_hdf5_do_not_unfold() -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File("in.h5", "w") as file:
        group = file.create_group("lstm")
        names = ["kernel", "recurrent_kernel"]
        group.attrs["weight_names"] = np.array([name.encode() for name in names])
        for name in names:  # never written, so not even there
            group.create_dataset(name, (1 << 14, 1 << 14), "f4", compression="gzip")
    assert Path("in.h5").stat().st_size < MIB
    with pytest.raises(zs.OptionError, match=r"at most 256 MiB .* got 1024 MiB with 'lstm/kernel'"):
        files.read("in.h5", "keras")


def test_tensors_of_torch_do_not_unfold() -> None:
    """A tensor of one number may say that it has 2^40."""
    wide = torch.zeros(1).expand(1 << 20, 1 << 20)
    torch.save({"weight_ih_l0": wide, "weight_hh_l0": wide}, "in.pt")
    with pytest.raises(zs.OptionError, match="at most 256 MiB .* with 'weight_.h_l0'"):
        files.read("in.pt", "torch")


# Bytes that are not what they say.

_ODD: list[Any] = [None, True, -1, 2**70, 1e308, "", "x", [], {}, [[]], ["a", 0, 0], float("nan")]


def _mutated_bytes(random: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5, 20])):
        place = random.randrange(len(found) or 1)
        change = random.randrange(4)
        if change == 0:
            found[place : place + 1] = bytes([random.randrange(256)])
        elif change == 1:
            del found[place : place + random.randrange(1, 40)]
        elif change == 2:
            found[place:place] = random.randbytes(random.randrange(1, 9))
        elif random.random() < 0.2:
            del found[place:]
    return bytes(found)


def _mutated_json(random: random.Random, value: Any) -> Any:
    if random.random() < 0.04:
        return random.choice(_ODD)
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if random.random() > 0.01}
        return {key: _mutated_json(random, each) for key, each in kept.items()}
    if isinstance(value, list):
        return [_mutated_json(random, each) for each in value if random.random() > 0.01]
    return value


def _mutated(random: random.Random, kind: str, data: bytes) -> bytes:
    """Other bytes, or another structure in whole archives."""
    if kind not in ("npz", "keras") or random.random() < 0.4:
        return _mutated_bytes(random, data)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(buffer, "w") as changed:
        for name in archive.namelist():
            member = archive.read(name)
            if name.endswith(".json"):
                member = json.dumps(_mutated_json(random, json.loads(member))).encode()
            elif random.random() < 0.3:
                member = _mutated_bytes(random, member)
            changed.writestr(name, member)
        if archive.comment:
            facts = _mutated_json(random, json.loads(archive.comment))
            changed.comment = json.dumps(facts).encode()
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["npz", "safetensors", "onnx", "pt", "keras", "h5"])
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_is_read_or_refused(kind: str, rng: np.random.Generator) -> None:
    if kind in ("keras", "h5"):
        pytest.importorskip("h5py")
    source = {"onnx": "onnx", "pt": "torch"}.get(kind, "keras")
    layers = [random_layer(rng, "lstm", bidirectional=True), random_layer(rng, "gru", inputs=2 * H)]
    if kind == "pt":
        torch.save(torch.nn.LSTM(I, H, bidirectional=True).state_dict(), "in.pt")
    else:
        files.write(f"in.{kind}", {"": layers}, source)
    data = Path(f"in.{kind}").read_bytes()
    chance = random.Random(int(rng.integers(1 << 32)))
    refused = 0
    for _ in range(150):
        damaged = _mutated(chance, kind, data)
        Path(f"damaged.{kind}").write_bytes(damaged)
        try:
            chosen = files.read(f"damaged.{kind}", source, chance.choice([(), (), ("0",), (".",)]))
            for pieces in chosen.stacks.values():
                zc.load(pieces, source=source)
        except zs.ZStateError:
            refused += 1
    assert refused > 50
    assert files.read(f"in.{kind}", source).stacks  # the undamaged one
