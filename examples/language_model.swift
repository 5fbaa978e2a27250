// LanguageModel: a graph of MPSGraph, written by zstate; its methods are those of macOS 13.0.
// The weights are in "language_model.safetensors", beside the program:
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

struct LanguageModel {
    let graph = MPSGraph()
    // What is fed.
    let tokens: MPSGraphTensor
    let targets: MPSGraphTensor
    // What a step returns, and what it stores.
    let returned: [(name: String, tensor: MPSGraphTensor)]
    let stored: [MPSGraphOperation]

    init(weights: Safetensors) throws {
        tokens = graph.placeholder(shape: [32, 8], dataType: .int32, name: "tokens")
        targets = graph.placeholder(shape: [32, 8], dataType: .int32, name: "targets")
        let table = try graph.variable(
            with: weights.data("n2", count: 1728), shape: [27, 16], dataType: .float32, name: "table")
        let W = try graph.variable(
            with: weights.data("n3", count: 16384), shape: [256, 16], dataType: .float32, name: "W")
        let R = try graph.variable(
            with: weights.data("n4", count: 65536), shape: [256, 64], dataType: .float32, name: "R")
        let b = try graph.variable(
            with: weights.data("n5", count: 1024), shape: [256], dataType: .float32, name: "b")
        let P = try graph.variable(
            with: weights.data("n6", count: 6912), shape: [64, 27], dataType: .float32, name: "P")
        // float32[32,8,16]
        let x = graph.gather(
            withUpdatesTensor: table, indicesTensor: tokens, axis: 0, batchDimensions: 0, name: "x")
        let encoder_descriptor = MPSGraphLSTMDescriptor()
        encoder_descriptor.training = true  // default false
        // state float32[32,8,64], cell float32[32,8,64], training_state float32[32,8,256]
        let encoder = graph.LSTM(
            x, recurrentWeight: R, inputWeight: W, bias: b, initState: nil, initCell: nil,
            descriptor: encoder_descriptor, name: "encoder")
        let rows = graph.reshape(encoder[0], shape: [256, 64], name: "rows")  // float32[256,64]
        // float32[256,27]
        let logits = graph.matrixMultiplication(primary: rows, secondary: P, name: "logits")
        let reshape_11 = graph.reshape(targets, shape: [256], name: nil)  // int32[256]
        // float32[256,27]
        let labels = graph.oneHot(
            withIndicesTensor: reshape_11, depth: 27, dataType: .float32, name: "labels")
        // float32[]
        let loss = graph.softMaxCrossEntropy(
            logits, labels: labels, axis: 1, reuctionType: .mean, name: "loss")
        let constant_14 = graph.constant(1.0, dataType: .float32)
        // float32[256,27]
        let soft_max_cross_entropy_gradient_15 = graph.softMaxCrossEntropyGradient(
            constant_14, source: logits, labels: labels, axis: 1, reuctionType: .mean, name: nil)
        let transpose_16 = graph.transpose(P, permutation: [1, 0], name: nil)  // float32[27,64]
        // float32[256,64]
        let matrix_multiplication_17 = graph.matrixMultiplication(
            primary: soft_max_cross_entropy_gradient_15, secondary: transpose_16, name: nil)
        let reshape_18 = graph.reshape(rows, shape: [256, 64], name: nil)  // float32[256,64]
        // float32[256,27]
        let reshape_19 = graph.reshape(soft_max_cross_entropy_gradient_15, shape: [256, 27], name: nil)
        let transpose_20 = graph.transpose(reshape_18, permutation: [1, 0], name: nil)  // float32[64,256]
        // float32[64,27]
        let matrix_multiplication_21 = graph.matrixMultiplication(
            primary: transpose_20, secondary: reshape_19, name: nil)
        // float32[32,8,64]
        let reshape_22 = graph.reshape(matrix_multiplication_17, shape: [32, 8, 64], name: nil)
        // source float32[32,8,16], recurrent_weight float32[256,64], input_weight float32[256,16], bias float32[256]
        let lstm_gradients_24 = graph.LSTMGradients(
            x, recurrentWeight: R, sourceGradient: reshape_22, zState: encoder[2], cellOutputFwd: encoder[1],
            inputWeight: W, bias: b, initState: nil, initCell: nil, descriptor: encoder_descriptor, name: nil)
        // float32[27,16]
        let scatter_25 = graph.scatter(
            lstm_gradients_24[0], indices: tokens, shape: [27, 16], axis: 0, mode: .add, name: nil)
        let power1 = try graph.variable(
            with: weights.data("n26", count: 4), shape: [1], dataType: .float32, name: "power1")
        let power2 = try graph.variable(
            with: weights.data("n27", count: 4), shape: [1], dataType: .float32, name: "power2")
        let constant_28 = graph.constant(0.9, dataType: .float32)
        let multiplication_29 = graph.multiplication(power1, constant_28, name: nil)  // float32[]
        let constant_30 = graph.constant(0.99, dataType: .float32)
        let multiplication_31 = graph.multiplication(power2, constant_30, name: nil)  // float32[]
        let table_momentum = try graph.variable(
            with: weights.data("n34", count: 1728), shape: [27, 16], dataType: .float32,
            name: "table_momentum")
        let table_velocity = try graph.variable(
            with: weights.data("n35", count: 1728), shape: [27, 16], dataType: .float32,
            name: "table_velocity")
        let constant_36 = graph.constant(0.01, dataType: .float32)
        let constant_39 = graph.constant(1e-08, dataType: .float32)
        // values float32[27,16], momentum float32[27,16], velocity float32[27,16]
        let table_updated = graph.adam(
            learningRate: constant_36, beta1: constant_28, beta2: constant_30, epsilon: constant_39,
            beta1Power: multiplication_29, beta2Power: multiplication_31, values: table,
            momentum: table_momentum, velocity: table_velocity, maximumVelocity: nil, gradient: scatter_25,
            name: "table_updated")
        let W_momentum = try graph.variable(
            with: weights.data("n44", count: 16384), shape: [256, 16], dataType: .float32, name: "W_momentum")
        let W_velocity = try graph.variable(
            with: weights.data("n45", count: 16384), shape: [256, 16], dataType: .float32, name: "W_velocity")
        // values float32[256,16], momentum float32[256,16], velocity float32[256,16]
        let W_updated = graph.adam(
            learningRate: constant_36, beta1: constant_28, beta2: constant_30, epsilon: constant_39,
            beta1Power: multiplication_29, beta2Power: multiplication_31, values: W, momentum: W_momentum,
            velocity: W_velocity, maximumVelocity: nil, gradient: lstm_gradients_24[2], name: "W_updated")
        let R_momentum = try graph.variable(
            with: weights.data("n54", count: 65536), shape: [256, 64], dataType: .float32, name: "R_momentum")
        let R_velocity = try graph.variable(
            with: weights.data("n55", count: 65536), shape: [256, 64], dataType: .float32, name: "R_velocity")
        // values float32[256,64], momentum float32[256,64], velocity float32[256,64]
        let R_updated = graph.adam(
            learningRate: constant_36, beta1: constant_28, beta2: constant_30, epsilon: constant_39,
            beta1Power: multiplication_29, beta2Power: multiplication_31, values: R, momentum: R_momentum,
            velocity: R_velocity, maximumVelocity: nil, gradient: lstm_gradients_24[1], name: "R_updated")
        let b_momentum = try graph.variable(
            with: weights.data("n64", count: 1024), shape: [256], dataType: .float32, name: "b_momentum")
        let b_velocity = try graph.variable(
            with: weights.data("n65", count: 1024), shape: [256], dataType: .float32, name: "b_velocity")
        // values float32[256], momentum float32[256], velocity float32[256]
        let b_updated = graph.adam(
            learningRate: constant_36, beta1: constant_28, beta2: constant_30, epsilon: constant_39,
            beta1Power: multiplication_29, beta2Power: multiplication_31, values: b, momentum: b_momentum,
            velocity: b_velocity, maximumVelocity: nil, gradient: lstm_gradients_24[3], name: "b_updated")
        let P_momentum = try graph.variable(
            with: weights.data("n74", count: 6912), shape: [64, 27], dataType: .float32, name: "P_momentum")
        let P_velocity = try graph.variable(
            with: weights.data("n75", count: 6912), shape: [64, 27], dataType: .float32, name: "P_velocity")
        // values float32[64,27], momentum float32[64,27], velocity float32[64,27]
        let P_updated = graph.adam(
            learningRate: constant_36, beta1: constant_28, beta2: constant_30, epsilon: constant_39,
            beta1Power: multiplication_29, beta2Power: multiplication_31, values: P, momentum: P_momentum,
            velocity: P_velocity, maximumVelocity: nil, gradient: matrix_multiplication_21, name: "P_updated")
        let assign_32 = graph.assign(power1, tensor: multiplication_29, name: nil)
        let assign_33 = graph.assign(power2, tensor: multiplication_31, name: nil)
        let assign_41 = graph.assign(table, tensor: table_updated[0], name: nil)
        let assign_42 = graph.assign(table_momentum, tensor: table_updated[1], name: nil)
        let assign_43 = graph.assign(table_velocity, tensor: table_updated[2], name: nil)
        let assign_51 = graph.assign(W, tensor: W_updated[0], name: nil)
        let assign_52 = graph.assign(W_momentum, tensor: W_updated[1], name: nil)
        let assign_53 = graph.assign(W_velocity, tensor: W_updated[2], name: nil)
        let assign_61 = graph.assign(R, tensor: R_updated[0], name: nil)
        let assign_62 = graph.assign(R_momentum, tensor: R_updated[1], name: nil)
        let assign_63 = graph.assign(R_velocity, tensor: R_updated[2], name: nil)
        let assign_71 = graph.assign(b, tensor: b_updated[0], name: nil)
        let assign_72 = graph.assign(b_momentum, tensor: b_updated[1], name: nil)
        let assign_73 = graph.assign(b_velocity, tensor: b_updated[2], name: nil)
        let assign_81 = graph.assign(P, tensor: P_updated[0], name: nil)
        let assign_82 = graph.assign(P_momentum, tensor: P_updated[1], name: nil)
        let assign_83 = graph.assign(P_velocity, tensor: P_updated[2], name: nil)
        returned = [
            ("loss:loss", loss),
        ]
        stored = [
            assign_32, assign_33, assign_41, assign_42, assign_43, assign_51, assign_52, assign_53, assign_61,
            assign_62, assign_63, assign_71, assign_72, assign_73, assign_81, assign_82, assign_83]
    }

    /// Runs the graph and stores what it assigns to its variables: one step of training.
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
let weights = try Safetensors(contentsOf: here.appendingPathComponent("language_model.safetensors"))
let model = try LanguageModel(weights: weights)
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
    model.tokens: feed("tokens", [32, 8], .int32, bytes: 4),
    model.targets: feed("targets", [32, 8], .int32, bytes: 4),
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
