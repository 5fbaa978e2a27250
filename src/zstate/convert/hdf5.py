"""HDF5 as untrusted input: every object once, by its path, and nothing outside the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..types import Array
from .limits import LONGEST_TEXT, Budget
from .objects import as_array


class Hdf5Error(ValueError):
    """Why a file of HDF5 is refused."""


@dataclass
class Tree:
    """The groups and datasets of a file by path, without the slash in front."""

    budget: Budget
    groups: dict[str, Any] = field(default_factory=dict)  # "" is the root
    datasets: dict[str, Any] = field(default_factory=dict)

    def array(self, path: str) -> Array:
        """A copy of a dataset."""
        dataset = self.datasets.get(path)
        if dataset is None:
            raise Hdf5Error(f"no dataset {path!r}")
        self.budget.take(int(dataset.size or 0) * dataset.dtype.itemsize, path)
        return as_array(path, dataset[()])

    def texts(self, group: str, attribute: str) -> list[str] | None:
        """An attribute of a group that is a string or a list of strings; None without one."""
        attributes = self.groups[group].attrs
        if attribute not in attributes:
            return None
        stored = attributes.get_id(attribute)
        count = int(np.prod(stored.shape, dtype=np.int64))
        # Strings of any length lie elsewhere in the file, and many may share one place.
        size = self.budget.size if stored.dtype.hasobject else stored.dtype.itemsize
        if stored.dtype.hasobject and count == 1:
            count, size = 1, min(size, LONGEST_TEXT)
        self.budget.take(count * size, f"{group}@{attribute}")
        return [_text(each) for each in np.asarray(attributes[attribute]).reshape(-1).tolist()]

    def text(self, group: str, attribute: str) -> str | None:
        """An attribute of a group that is one string."""
        found = self.texts(group, attribute)
        return found[0] if found else None


def read_tree(h5py: Any, file: Any, budget: Budget) -> Tree:
    """All objects of an open file; raises if any of them is stored in another file."""
    tree = Tree(budget, {"": file["/"]})
    seen = {_address(h5py, file["/"])}
    waiting = [""]
    while waiting:
        path = waiting.pop()
        group = tree.groups[path]
        for name in group:
            where = f"{path}/{name}" if path else name
            _check_link(h5py, group, name, where)
            found = group[name]
            if _address(h5py, found) in seen:
                continue  # a second name of the same object, perhaps of a group around it
            seen.add(_address(h5py, found))
            if isinstance(found, h5py.Group):
                tree.groups[where] = found
                waiting.append(where)
            elif isinstance(found, h5py.Dataset):
                _check_storage(found, where)
                tree.datasets[where] = found
    return tree


def _address(h5py: Any, found: Any) -> tuple[int, int]:
    info = h5py.h5o.get_info(found.id)
    return info.fileno, info.addr


def _check_link(h5py: Any, group: Any, name: str, where: str) -> None:
    link = group.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink):
        kind = "an external link" if isinstance(link, h5py.ExternalLink) else "a soft link"
        raise Hdf5Error(f"{where!r} is {kind}, which zstate does not follow")


def _check_storage(dataset: Any, where: str) -> None:
    if dataset.external:
        raise Hdf5Error(f"{where!r} is stored in another file (external storage)")
    if dataset.is_virtual:
        raise Hdf5Error(f"{where!r} is a virtual dataset, made of others")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
