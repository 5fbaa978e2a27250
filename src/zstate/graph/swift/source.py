"""A graph as Swift: the methods of MPSGraph that build it, its weights, and one step.

Every call is written from the table of published signatures (:mod:`zstate.mpsgraph.published`):
labels, order and what may be nil. What MPSGraph has no method for is refused by node. A tensor
without dimensions is written with the shape [1].
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ...errors import GraphError, OptionError, refusal
from ...types import float_dtype
from ..compiling import trained_twins
from ..ops import PLACEHOLDER
from ..tensor import Node, Tensor
from .words import (
    GLOBAL_NAMES,
    INDENT,
    LABEL,
    NAMES,
    data_type,
    filled,
    identifier,
    list_text,
    string_text,
)
from .writer import Writer


def to_swift(
    name: str,
    nodes: Sequence[Node],
    stored: Mapping[Node, str],
    targets: Sequence[tuple[str, Tensor]],
    updates: Sequence[tuple[str, Node, Tensor]],
    weights: str,
) -> str:
    """The text of a Swift file.

    Args:
        name: of the struct.
        nodes: in the order in which they are made; nothing reads one before it is made.
        stored: the name of a constant's or a variable's array in the file of weights.
        targets: (name, tensor), what a step returns.
        updates: (name of the assign, variable, tensor), what a step stores.
        weights: the name of the safetensors file.
    """
    if not isinstance(name, str) or identifier(name) != name or name in (*NAMES, *GLOBAL_NAMES):
        raise OptionError(refusal(LABEL, "name", "a name that Swift allows", repr(name)))
    writer = Writer({*NAMES, name}, stored, trained_twins(nodes))
    for node in nodes:
        writer.write(node)
    for assign, variable, tensor in updates:
        writer.assign(assign, variable, tensor)
    fed = [node.results[0] for node in nodes if node.op is PLACEHOLDER]
    return _file(name, writer, fed, targets, weights)


def _file(
    name: str,
    writer: Writer,
    fed: Sequence[Tensor],
    targets: Sequence[tuple[str, Tensor]],
    weights: str,
) -> str:
    if not targets:
        raise GraphError(refusal(LABEL, "targets", "at least one tensor", "none"))
    listed = []
    for title, tensor in targets:
        text = f"({string_text(title)}, {writer.value(tensor)}),"
        listed.append(f"            {text}")
    members = "".join(f"    let {writer.names[tensor]}: MPSGraphTensor\n" for tensor in fed)
    updates = [f"{INDENT}stored = []"]
    if writer.updates:
        updates = [f"{INDENT}stored = [", *filled(writer.updates, "]")]
    feeds = [
        f"    model.{writer.names[t]}: feed({string_text(t.name)}, "
        f"{list_text([1 if size is None else size for size in t.shape] or [1])}, "
        f"{data_type(t.dtype)}, bytes: {float_dtype(t.dtype).itemsize}),"
        for t in fed
    ]
    step = "Runs the graph"
    if writer.updates:
        step += " and stores what it assigns to its variables: one step of training"
    parts = {
        "NAME": name,
        "SINCE": ".".join(map(str, writer.since)),
        "FILE": string_text(weights),
        "MEMBERS": members,
        "LINES": "\n".join(writer.lines),
        "TARGETS": "\n".join(listed),
        "UPDATES": "\n".join(updates),
        "STEP": step,
        "FEEDS": "\n".join(feeds) if feeds else "    :",
    }
    # In one pass, because names from the graph may look like a placeholder.
    return re.sub("«([A-Z]+)»", lambda word: parts[word[1]], _TEMPLATE)


_TEMPLATE = """\
// «NAME»: a graph of MPSGraph, written by zstate; its methods are those of macOS «SINCE».
// The weights are in «FILE», beside the program:
//
//     swiftc -o model <this file> && ./model [feeds.safetensors]
//
// A descriptor's properties are set where they differ from MPSGraph's defaults. Comments give the
// types and shapes of results; a tensor without dimensions, [], has the shape [1] here.
import Foundation
import Metal
import MetalPerformanceShaders
import MetalPerformanceShadersGraph

/// A safetensors file: 8 bytes with the length of a header, the header in JSON, the arrays.
struct Safetensors {
    enum Problem: Error { case notSafetensors, missing(String), wrongSize(String, Int) }

    private let bytes: Data
    private let places: [String: Range<Int>]
    private let shapes: [String: [Int]]

    init(contentsOf url: URL) throws {
        let file = try Data(contentsOf: url, options: .mappedIfSafe)
        guard file.count >= 8 else { throw Problem.notSafetensors }
        let length = file[0..<8].reversed().reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
        guard length <= UInt64(file.count - 8) else { throw Problem.notSafetensors }
        let start = 8 + Int(length)
        let header = try JSONSerialization.jsonObject(with: file.subdata(in: 8..<start))
        guard let entries = header as? [String: [String: Any]] else { throw Problem.notSafetensors }
        var places: [String: Range<Int>] = [:]
        var shapes: [String: [Int]] = [:]
        for (name, entry) in entries where name != "__metadata__" {
            guard let bounds = entry["data_offsets"] as? [Int], bounds.count == 2,
                0 <= bounds[0], bounds[0] <= bounds[1], bounds[1] <= file.count - start,
                let shape = entry["shape"] as? [Int]
            else { throw Problem.notSafetensors }
            places[name] = start + bounds[0]..<start + bounds[1]
            shapes[name] = shape
        }
        self.bytes = file
        self.places = places
        self.shapes = shapes
    }

    /// The bytes of an array, of which there must be `count`.
    func data(_ name: String, count: Int) throws -> Data {
        guard let place = places[name] else { throw Problem.missing(name) }
        guard place.count == count else { throw Problem.wrongSize(name, place.count) }
        return bytes.subdata(in: place)
    }

    /// The shape of an array; nil where there is none of this name.
    func shape(_ name: String) -> [Int]? { shapes[name] }
}

struct «NAME» {
    let graph = MPSGraph()
    // What is fed.
«MEMBERS»    // What a step returns, and what it stores.
    let returned: [(name: String, tensor: MPSGraphTensor)]
    let stored: [MPSGraphOperation]

    init(weights: Safetensors) throws {
«LINES»
        returned = [
«TARGETS»
        ]
«UPDATES»
    }

    /// «STEP».
    func step(
        _ feeds: [MPSGraphTensor: MPSGraphTensorData]
    ) -> [MPSGraphTensor: MPSGraphTensorData] {
        graph.run(
            feeds: feeds, targetTensors: returned.map { $0.tensor },
            targetOperations: stored.isEmpty ? nil : stored)
    }
}

// One step, on the arrays of a safetensors file by the names of the placeholders, else on zeros.
let here = URL(fileURLWithPath: CommandLine.arguments[0]).deletingLastPathComponent()
let weights = try Safetensors(contentsOf: here.appendingPathComponent(«FILE»))
let model = try «NAME»(weights: weights)
let given = try CommandLine.arguments.dropFirst().first.map {
    try Safetensors(contentsOf: URL(fileURLWithPath: $0))
}
let device = MPSGraphDevice(mtlDevice: MTLCreateSystemDefaultDevice()!)

func feed(
    _ name: String, _ shape: [Int], _ dataType: MPSDataType, bytes: Int
) throws -> MPSGraphTensorData {
    let sizes = given?.shape(name) ?? shape
    let count = sizes.reduce(bytes, *)
    let data = try given?.data(name, count: count) ?? Data(count: count)
    return MPSGraphTensorData(
        device: device, data: data, shape: (sizes.isEmpty ? [1] : sizes) as [NSNumber],
        dataType: dataType)
}

let results = try model.step([
«FEEDS»
])
for (name, tensor) in model.returned {
    let result = results[tensor]!
    print(name, result.shape)
    if result.dataType == .float32 {
        var values = [Float](repeating: 0, count: result.shape.reduce(1) { $0 * $1.intValue })
        result.mpsndarray().readBytes(&values, strideBytes: nil)
        print(values.prefix(8))
    }
}
"""
