"""The keys of JSON objects that a job uses, as a tree that `records/json.cuh` walks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_COLUMNS = 32
"""The most columns. Each has a lane of a warp, and a bit of a mask."""

_MOST_NODES = 250
"""The most nodes. The kernel keeps the number of a node in a byte, in which 255 stands for no node."""

_NO_COLUMN, _REFUSED = -1, -2  # as in records/json.cuh

EDGE = np.dtype([("begin", "<i4"), ("size", "<i4"), ("node", "<i4")])


@dataclass(frozen=True)
class JsonKeys:
    """The wanted keys as a tree. Node 0 is the object of a record. An edge is a key, and leads to its value's node.

    Attributes
    ----------
    names : ndarray
        uint8, the UTF-8 of all keys.
    first : ndarray
        int32 [nodes + 1], such that the edges of node n are ``edges[first[n]:first[n + 1]]``.
    edges : ndarray
        `EDGE` [nodes - 1]: the place of the key in `names`, and the node to which it leads.
    columns : ndarray
        int32 [nodes], the column of the value at each node. It is -1 if the node has no column, and -2 if the host must
        read the records that have the key.
    below : ndarray
        uint32 [nodes], a bit for each column of a node and of all nodes to which it leads.
    texts, needed : int
        A bit for each column that must be a string, and a bit for each column that must be present.
    is_every_key : bool
        Whether the host must read a record that has another key whose value is not null.

    """

    names: NDArray[np.uint8]
    first: NDArray[np.int32]
    edges: NDArray[np.void]
    columns: NDArray[np.int32]
    below: NDArray[np.uint32]
    texts: int
    needed: int
    is_every_key: bool


class _Node:
    def __init__(self) -> None:
        self.column = _NO_COLUMN
        self.children: dict[str, _Node] = {}

    def at(self, way: Sequence[str]) -> _Node:
        node = self
        for key in way:
            node = node.children.setdefault(key, _Node())
        return node

    @property
    def below(self) -> int:
        bits = 1 << self.column if self.column >= 0 else 0
        for child in self.children.values():
            bits |= child.below
        return bits


def json_keys(
    columns: Sequence[str], texts: Sequence[str], needed: Sequence[str], is_every_key: bool
) -> JsonKeys | None:
    """Return the tree of the columns that a job uses, or None if there are too many or one is within another.

    A name with dots is either a key or a path through objects. If a record has such a key itself, the host reads it.

    Parameters
    ----------
    columns : sequence of str
        The columns, without duplicates.
    texts, needed : sequence of str
        The columns that must be strings, and the columns that every record must have.
    is_every_key : bool
        See `JsonKeys`.

    """
    # Build the tree.
    root = _Node()
    for number, name in enumerate(columns):
        node = root.at(name.split("."))
        node.column = number
        if "." in name:
            root.at([name]).column = _REFUSED
    # Number the nodes level by level, and refuse trees that the kernel cannot walk.
    nodes = [root]
    for node in nodes:
        nodes += node.children.values()
    if len(columns) > MOST_COLUMNS or len(nodes) > _MOST_NODES:
        return None
    if any(node.column >= 0 and node.children for node in nodes):
        return None
    # Write the tree to flat arrays.
    names = bytearray()
    first, edges = [0], []
    for node in nodes:
        for key, child in node.children.items():
            encoded = key.encode(errors="surrogatepass")
            edges.append((len(names), len(encoded), nodes.index(child)))
            names += encoded
        first.append(len(edges))
    return JsonKeys(
        np.frombuffer(bytes(names), np.uint8),
        np.array(first, np.int32),
        np.array(edges, EDGE),
        np.array([node.column for node in nodes], np.int32),
        np.array([node.below for node in nodes], np.uint32),
        sum(1 << columns.index(name) for name in texts),
        sum(1 << columns.index(name) for name in needed),
        is_every_key,
    )
