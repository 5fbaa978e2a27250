// What the bindings hand to an engine, and the table of functions that each instruction set's engine exports.
//
// An engine computes a whole operation: project, scan, contract. Shapes and strides were checked before. It
// knows no particular cell: a cell's equations come as programs of vector instructions
// (src/zstate/backends/encoding.py writes them, runtime/cell_tables.cpp reads and checks them).
#pragma once

#include <cstdint>

namespace zstate {

enum class Type { kFloat32, kFloat64, kFloat16, kBfloat16 };

inline constexpr int kMostGates = 8, kMostStates = 8, kMostOwn = 24, kMostStages = 16;
inline constexpr int kMostProducts = 16;  // of a stage, gate by gate
inline constexpr int kMostOperands = 8;   // of R
inline constexpr int kMostPlaces = 160;   // of a program, and as many values

struct Place {
  int kind, index;  // PlaceKind (opcodes.h)
  bool read;        // before the program; all others are only written, or read after that
};
// Values: first the places, then the numbers, then temporary ones.
struct Instruction {
  int op, out, a, b, c, d;  // Opcode (opcodes.h)
};
struct Output {
  int place, value;  // the same: the value is computed in its place
};
struct Number {  // in every lane of the widest vector
  alignas(64) float single[16];
  alignas(64) double twice[8];
};
struct Program {
  const Place* places;
  const Number* numbers;
  const Instruction* code;  // ended by `end`, and so are the core's
  const Instruction* late;  // what follows on the core
  const Output* outputs;
  int place_count, number_count, temporary, output_count;
  int core_outputs;  // what is left where nothing follows: without the next step's operands
};

// Products of one operand with R of some gates; backward, the gradients of such products through R.
struct GateProduct {
  int operand, gate_count;
  int gates[kMostGates];
  int extra[kMostGates];  // backward: where the product's gradient is, if it is not the gate's; or -1
};
// The mean or the variance over the units of a row, of `count` values together.
struct Reduction {
  bool is_variance;
  int first, count;  // of the values that are reduced
};
struct CellStage {
  const GateProduct* products;
  int product_count;
  int first_mean, mean_count;  // what it begins with, of all means
  // Forward: [0], or [1] where x's part is in the products already. Backward by [2·begin + first]: of rows
  // whose last step it is, and of rows whose first step it is.
  const Program* programs[4];
};
struct CellOperand {
  bool two_steps;              // made by one step for the next
  int state;                   // it is this state before the step, no more and no less; or -1
  bool vanishes;               // where the states before the step are zero
  const Program* programs[2];  // backward: its value; [1] at a first step
};
// A product that the gradient needs again, and the gradient of a product: place k of `extra`.
struct GateOperand {
  int gate, operand, extra;
};
struct CellProgram {
  int gates, states, own, own_arrays;
  int slots[kMostGates];  // where gate g lies along the G axis
  int own_array[kMostOwn * kMostGates], own_gate[kMostOwn * kMostGates];  // of vector k; no gate: -1
  int stage_count;
  CellStage stages[kMostStages];
  int operand_count;
  CellOperand operands[kMostOperands];
  int carried, means, reduced;
  Reduction reductions[kMostPlaces];  // what each of the means is
  // forward
  const Program* first;  // before the first step
  bool saves_last;       // no stage reads x's part of a gate that an earlier one has saved
  bool keeps[kMostStates];
  // backward
  const Program* end;  // behind the first step
  int extra;
  const GateOperand* recomputed;
  int recomputed_count;
  const GateOperand* factors;  // of the gradient of R, gate by gate as they lie along the G axis
  int factor_count;
  bool has_x[kMostGates];  // gates without have no gradient of x
};

// What is computed in a recurrent operation: its cell, options and sizes.
struct Problem {
  const CellProgram* cell = nullptr;
  Type type = Type::kFloat32;
  std::int64_t T = 0, N = 0, I = 0, H = 1, D = 1;
  std::int64_t G = 1;
  std::int64_t heads = 1;  // of H units each; more than one have a projected source, in float or double
  bool reverse = false, has_input_weight = true;
  bool packed = false;  // weights are packed once, before any call

  // Sequences of different lengths, longest first: step t of the input has starts[t+1] - starts[t] of the N.
  // Every [T,N,...] array but the mask is then [rows,...], its rows step after step. Null: all N at every
  // step.
  const std::int64_t* starts = nullptr;   // [T+1]
  const std::int64_t* step_of = nullptr;  // [rows]: the step that a row belongs to

  std::int64_t rows() const { return starts ? starts[T] : T * N; }
  // How far gates, and directions of states, lie apart in arrays.
  std::int64_t units() const { return heads * H; }
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
  Array source, recurrent_weight, input_weight, bias, mask, resets;
  Array training_state;
  Array initial[kMostStates], own[kMostOwn], result[kMostStates];
  // Of layers with packed weights only: scales [D·G·H] of int8 weights, and the states [N,D·H] behind the
  // last step, which may be the arrays of the initial ones.
  Array recurrent_scale, input_scale, last[kMostStates];
};

struct BackwardArrays {
  Array source, recurrent_weight, input_weight, bias, mask, resets;
  Array training_state;
  Array initial[kMostStates], own[kMostOwn], after[kMostStates], outer[kMostStates], last[kMostStates];
  Array d_source, d_recurrent, d_input, d_bias;
  Array d_initial[kMostStates], d_own[kMostOwn];
};

// C[rows, columns] = A[rows, length]·B[length, columns]; strides in elements, C contiguous.
struct Product {
  Type type = Type::kFloat32;  // or kFloat64
  std::int64_t rows = 0, columns = 0, length = 0;
  const void *a = nullptr, *b = nullptr;
  std::int64_t a_strides[2] = {0, 1}, b_strides[2] = {0, 1};
  void* c = nullptr;
};

// What packed weights are stored as; arrays are float32.
enum class Weights { kFloat32, kBfloat16, kInt8 };

struct Team;  // runtime/threads.h

// A forward operation on packed weights that can be run again and again, on the same arrays.
struct Call {
  void (*run)(Call*, const Team&);  // by every member of a team of at most `threads`
  void (*end)(Call*);               // frees it
  double work, shared;              // as TeamChoice takes them
  int threads;
};

struct GraphOps;  // graph_ops.h

struct Engine {
  const char* name;
  bool (*supported)();
  void (*forward)(const Problem&, const ForwardArrays&);
  void (*backward)(const Problem&, const BackwardArrays&);
  void (*product)(const Product&);
  void (*function)(Type, int op, const void* in, void* out, std::int64_t count);  // an Opcode of one value
  const GraphOps* graph;
  // A block (runtime/blocks.h) with the packed weights of a layer, for calls of this engine. T and N are
  // not read.
  char* (*pack)(const Problem&, const ForwardArrays&, Weights);
  Call* (*ready)(const Problem&, const ForwardArrays&, Weights, char* packed, int threads);
};

}  // namespace zstate
