// A character language model with MPSGraph: embedding, LSTM, projection, loss, gradients, Adam.
// The same in Python: language_model.py. Numbers in brackets tie the two together.
import Foundation
import MetalPerformanceShadersGraph

let (T, N, E, H, V) = (32, 8, 16, 64, 27)

// [1] The graph and its feeds.
let g = MPSGraph()
let tokens = g.placeholder(shape: [T, N] as [NSNumber], dataType: .int32, name: "tokens")
let targets = g.placeholder(shape: [T, N] as [NSNumber], dataType: .int32, name: "targets")

// [2] The parameters.
func parameter(_ shape: [Int], _ scale: Float, _ name: String) -> MPSGraphTensor {
    let count = shape.reduce(1, *)
    let values = (0..<count).map { _ in Float.random(in: -scale...scale) }
    let data = values.withUnsafeBufferPointer { Data(buffer: $0) }
    return g.variable(with: data, shape: shape as [NSNumber], dataType: .float32, name: name)
}
let table = parameter([V, E], 1, "table")
let W = parameter([4 * H, E], 0.125, "W")
let R = parameter([4 * H, H], 0.125, "R")
let b = parameter([4 * H], 0, "b")
let P = parameter([H, V], 0.125, "P")
let parameters = [table, W, R, b, P]

// [3] The model. `training` must be on, and the cell and the training state are returned with h.
let descriptor = MPSGraphLSTMDescriptor()
descriptor.training = true
let x = g.gather(withUpdatesTensor: table, indicesTensor: tokens, axis: 0, batchDimensions: 0, name: nil)
let outputs = g.LSTM(x, recurrentWeight: R, inputWeight: W, bias: b, initState: nil, initCell: nil,
                     descriptor: descriptor, name: "encoder")
let rows = g.reshape(outputs[0], shape: [T * N, H] as [NSNumber], name: nil)
let logits = g.matrixMultiplication(primary: rows, secondary: P, name: nil)

// [4] The loss.
let flat = g.reshape(targets, shape: [T * N] as [NSNumber], name: nil)
let labels = g.oneHot(withIndicesTensor: flat, depth: V, dataType: .float32, name: nil)
let loss = g.softMaxCrossEntropy(logits, labels: labels, axis: -1, reuctionType: .mean, name: nil)

// [5] Its gradients.
let gradients = g.gradients(of: loss, with: parameters, name: nil)

// [6] Adam: one step per parameter, stored by assigning.
func scalar(_ value: Double) -> MPSGraphTensor { g.constant(value, dataType: .float32) }
let (beta1, beta2) = (scalar(0.9), scalar(0.99))
let power1 = g.variable(with: Data(bytes: [Float(1)], count: 4), shape: [1], dataType: .float32, name: "power1")
let power2 = g.variable(with: Data(bytes: [Float(1)], count: 4), shape: [1], dataType: .float32, name: "power2")
let next1 = g.multiplication(power1, beta1, name: nil)
let next2 = g.multiplication(power2, beta2, name: nil)
var operations = [g.assign(power1, tensor: next1, name: nil), g.assign(power2, tensor: next2, name: nil)]
for p in parameters {
    let zeros = Data(count: 4 * p.shape!.map(\.intValue).reduce(1, *))
    let m = g.variable(with: zeros, shape: p.shape!, dataType: .float32, name: nil)
    let v = g.variable(with: zeros, shape: p.shape!, dataType: .float32, name: nil)
    let updated = g.adam(learningRate: scalar(0.01), beta1: beta1, beta2: beta2, epsilon: scalar(1e-8),
                         beta1Power: next1, beta2Power: next2, values: p, momentum: m, velocity: v,
                         maximumVelocity: nil, gradient: gradients[p]!, name: nil)
    for (variable, value) in zip([p, m, v], updated) {
        operations.append(g.assign(variable, tensor: value, name: nil))
    }
}

// [7] Compile once, run many times.
let shaped = { (t: MPSGraphTensor) in MPSGraphShapedType(shape: t.shape, dataType: t.dataType) }
let program = g.compile(with: nil, feeds: [tokens: shaped(tokens), targets: shaped(targets)],
                        targetTensors: [loss], targetOperations: operations, compilationDescriptor: nil)
// for each batch: program.run(with: commandQueue, inputs: [tokenData, targetData], results: nil, executionDescriptor: nil)
