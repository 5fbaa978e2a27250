// The other operations of a graph that an engine computes in one pass, on its own threads. A composition of
// array functions would walk memory several times, on one thread.
//
// All arrays are contiguous; sizes and indices were checked before.
#pragma once

#include "engine/engine.h"

namespace zstate {

// Per row: loss = -Σ labels·log softmax(source), and the softmax. Types float32 and float64, here and below.
struct CrossEntropy {
  Type type = Type::kFloat32;
  std::int64_t rows = 0, classes = 0;
  const void *source = nullptr, *labels = nullptr;  // [rows, classes]
  void *loss = nullptr, *soft_max = nullptr;        // [rows], [rows, classes]
};

// result = (softmax·Σ labels - labels)·factor.
struct CrossEntropyGradient {
  Type type = Type::kFloat32;
  std::int64_t rows = 0, classes = 0;
  const void *soft_max = nullptr, *labels = nullptr;  // [rows, classes]
  const void* factors = nullptr;                      // [rows]; null: `factor`
  double factor = 0;
  void* result = nullptr;
};

// m = beta1·m + rest1·g, v = beta2·v + rest2·g², values - rate·m / (√v + epsilon); with `largest`, √ of the
// largest v so far.
struct Adam {
  Type type = Type::kFloat32;
  std::int64_t count = 0;
  double rate = 0, beta1 = 0, rest1 = 0, beta2 = 0, rest2 = 0, epsilon = 0;
  const void *values = nullptr, *momentum = nullptr, *velocity = nullptr, *gradient = nullptr;
  const void* largest = nullptr;  // null: without
  void *new_values = nullptr, *new_momentum = nullptr, *new_velocity = nullptr, *new_largest = nullptr;
};

// result[k] = table[places[k]].
struct TakeRows {
  Type type = Type::kFloat32;
  std::int64_t count = 0, width = 0;
  const std::int64_t* places = nullptr;  // [count]
  const void* table = nullptr;           // [?, width]
  void* result = nullptr;                // [count, width]
};

// result[r] = Σ updates[k] over all k with places[k] = r, in the order of k.
struct AddRows {
  Type type = Type::kFloat32;
  std::int64_t count = 0, width = 0, rows = 0;
  const std::int64_t* places = nullptr;  // [count]
  const void* updates = nullptr;         // [count, width]
  void* result = nullptr;                // [rows, width]
};

// What an engine offers of them.
struct GraphOps {
  void (*cross_entropy)(const CrossEntropy&);
  void (*cross_entropy_gradient)(const CrossEntropyGradient&);
  void (*adam)(const Adam&);
  void (*take_rows)(const TakeRows&);
  void (*add_rows)(const AddRows&);
};

}  // namespace zstate
