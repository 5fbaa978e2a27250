// What the bindings hand to an engine, and the table of functions that each instruction set's engine exports.
//
// An engine computes a whole operation: project, scan, contract. Shapes and strides were checked before.
#pragma once

#include <cstdint>

namespace zstate {

enum class Type { kFloat32, kFloat64, kFloat16, kBfloat16 };

// The cells. Their equations are in equations/cells.h, their scans in engine/rnn.h, lstm.h and gru.h.
enum class Cell { kRnn, kLstm, kGru };
struct CellInfo {
  const char* name;
  int gates, activations, states;
  bool last_gate_is_last;  // the last canonical gate has the last place along the G axis
};
inline constexpr CellInfo kCells[] = {
    // in the order of Cell
    {"rnn", 1, 1, 1, true},
    {"lstm", 4, 5, 2, false},  // gates i, f, z, o; the fifth activation is that of the cell
    {"gru", 3, 3, 1, true},    // gates z, r, o
};
constexpr const CellInfo& info(Cell cell) { return kCells[static_cast<int>(cell)]; }
inline constexpr int kMostGates = 4, kMostActivations = 5;

// What is computed in a recurrent operation: its cell, options and sizes.
struct Problem {
  Cell cell = Cell::kRnn;
  Type type = Type::kFloat32;
  std::int64_t T = 0, N = 0, I = 0, H = 1, D = 1;
  std::int64_t G = 1;
  bool reverse = false, reset_after = false, flip_z = false, has_input_weight = true;
  bool peephole_on_new_cell = false;     // the output gate's; only where there is a peephole
  int slots[kMostGates] = {0, 1, 2, 3};  // where canonical gate k lies along the G axis
  int activations[kMostActivations] = {};

  // Sequences of different lengths, longest first: step t of the input has starts[t+1] - starts[t] of the N.
  // Every [T,N,...] array but the mask is then [rows,...], its rows step after step. Null: all N at every
  // step.
  const std::int64_t* starts = nullptr;   // [T+1]
  const std::int64_t* step_of = nullptr;  // [rows]: the step that a row belongs to

  std::int64_t rows() const { return starts ? starts[T] : T * N; }
  // How many sequences step t of the input has; none beyond the ends.
  std::int64_t batch(std::int64_t t) const {
    if (t < 0 || t >= T) return 0;
    return starts ? starts[t + 1] - starts[t] : N;
  }
};

// An array whose last axis is contiguous: strides in elements of the axes before it. No data: not given.
struct Array {
  void* data = nullptr;
  std::int64_t strides[3] = {0, 0, 0};
  int rank = 0;
  explicit operator bool() const { return data != nullptr; }
};

struct ForwardArrays {
  Array source, recurrent_weight, input_weight, bias, init_state, init_cell, mask, peephole, secondary_bias;
  Array state, cell, training_state;
};

struct BackwardArrays {
  Array source, recurrent_weight, source_gradient, training_state, cell_fwd, state_fwd, state_gradient,
      cell_gradient;
  Array input_weight, bias, init_state, init_cell, mask, peephole, secondary_bias;
  Array d_source, d_recurrent, d_input, d_bias, d_peephole, d_state, d_cell, d_secondary;
};

// C[rows, columns] = A[rows, length]·B[length, columns]; strides in elements, C contiguous.
struct Product {
  Type type = Type::kFloat32;  // or kFloat64
  std::int64_t rows = 0, columns = 0, length = 0;
  const void *a = nullptr, *b = nullptr;
  std::int64_t a_strides[2] = {0, 1}, b_strides[2] = {0, 1};
  void* c = nullptr;
};

struct GraphOps;  // graph_ops.h

struct Engine {
  const char* name;
  bool (*supported)();
  void (*forward)(const Problem&, const ForwardArrays&);
  void (*backward)(const Problem&, const BackwardArrays&);
  void (*product)(const Product&);
  void (*activation)(Type, int kind, const void* in, void* out, std::int64_t count);
  const GraphOps* graph;
};

}  // namespace zstate
