// What the cells share in the forward scan: their arrays and buffers, and what they read and write at one
// place.
#pragma once

#include "engine/arena.h"
#include "engine/scan.h"

namespace ZS_NAMESPACE {

// What a cell keeps from one step to the next, besides what R multiplies, in the type of the arithmetic.
enum class Kept { kNothing, kCell, kState };

template <class S>
struct Forward {
  using Real = RealOf<S>;
  using Element = typename Elements<S>::State;
  using Op = Operand<Element>;
  using V = Vec<Real>;
  static constexpr int L = Simd<Real>::lanes;
  static constexpr bool kTakesInput = true;
  // Which differ from cell to cell, as does kStages:
  static constexpr Kept kKeeps = Kept::kNothing;
  static constexpr bool kAddsInput = true;  // no gate needs x's part apart from R's

  // The same for whoever knows the cell by this base only.
  struct Facts {
    int stages;
    Kept keeps;
    bool adds_input;
    Apply<Forward> apply;
  };
  template <class Cell>
  static constexpr Facts kFactsOf = {Cell::kStages, Cell::kKeeps, Cell::kAddsInput, apply_of<Cell>};
  const Facts* facts = nullptr;

  const Problem& problem;
  i64 H, Hp;  // hidden units, and rounded up to whole vectors: the row length of the buffers below
  bool starts_from_zero = false;  // nothing to multiply at the first step, as long as R is finite
  int weights_not_finite = 0;     // set by the members that find so, read after a barrier
  bool direct = false;  // no packed weights: the operands are plain values, whatever the elements are
  Stage<Element> stages[2];
  i64 weight_bytes = 0;  // packed, of all that a step reads

  // x W^T comes from a product beforehand, or is added to every tile from x itself and packed panels of W.
  bool fused = false;
  bool input_is_far = false;  // projected by the caller, and more than a second-level cache holds
  Rows<const Real> gates_x[2];
  Rows<const S> x[2];
  typename Elements<S>::Product* packed_input[2] = {};
  Rows<S> h[2], c[2], z[2];
  MaskRows<S> mask[2];
  const S *bias[2] = {}, *peephole[2] = {}, *b2[2] = {};
  const S* R[2] = {};
  i64 ldr = 0;

  Real* products[2] = {};           // [N][gates][Hp]: a stage's product where the weights are not packed
  bool backwards = false;           // which way even steps go through the weights
  bool far = false;                 // weights that no cache holds
  Element* operand_buffer[2] = {};  // [2][N][Hp]: h·m for this step and for the next
  Element* second_operand[2] = {};  // [N][Hp]: what the second stage multiplies
  Real* kept[2] = {};               // [N][Hp]: what kKeeps says, unmasked

  explicit Forward(const Problem& p) : problem(p), H(p.H), Hp(round_up(p.H, L)) {}

  virtual void lay_out_own(Arena&, int) {}  // the buffers that only this cell has

  Split split(int members) const { return choose_split(members, problem, weight_bytes); }
  i64 rows_at(int d, i64 s) const { return batch_at(problem, d, s); }
  i64 product_rows(int, int, i64 s) const {
    return s > 0 || !starts_from_zero || __atomic_load_n(&weights_not_finite, __ATOMIC_RELAXED) ? problem.N
                                                                                                : 0;
  }
  // 0·NaN is NaN: looks at rows of R that the first step would leave out.
  void check_weights(const S* rows, i64 count) {
    if (!all_finite(rows, ldr, count, H)) __atomic_store_n(&weights_not_finite, 1, __ATOMIC_RELAXED);
  }
  Element* operand_at(int d, i64 s) const { return operand_buffer[d] + (s & 1) * problem.N * Hp; }
  const Element* operand(int index, int d, i64 s, i64& lda) const {
    lda = Hp;
    return index == 1 ? second_operand[d] : operand_at(d, s);
  }
  // Row of R for canonical gate `k`, unit `u`.
  const S* weight_row(int d, int k, i64 u) const { return R[d] + (problem.slots[k] * H + u) * ldr; }

  // The gate of vector v of a stage.
  virtual int gate_of(int index, int v) const = 0;
  virtual ~Forward() = default;

  // The product of one stage without packed weights, for hidden units [begin, end), into `products`.
  void direct_product(int index, int d, i64 s, i64 begin, i64 end) const {
    const Stage<Element>& stage = stages[index];
    const int gates = stage.gated ? stage.vectors : 1;
    for (i64 n = 0; n < problem.N; ++n) {
      i64 lda;
      const Real* a = reinterpret_cast<const Real*>(operand(index, d, s, lda) + n * lda);
      for (int v = 0; v < gates; ++v)
        dot_rows<S>(weight_row(d, gate_of(index, v), begin), ldr, end - begin, a, stage.length,
                    products[d] + (n * gates + v) * Hp + begin, far);
    }
  }
  // One part of a panel of R; parts are numbered through all panels of a direction.
  void pack_part(int index, int d, i64 part, Element* packed) {
    const Part rows = pack_part_of(stages[index], index, R[d], ldr, stages[index].length, part, packed);
    if (starts_from_zero) check_weights(rows.first, rows.count);
  }
  // The same of W, for the panels of the first stage.
  void pack_input_part(const S* weight, i64 ld, i64 length, i64 part, Element* packed) const {
    pack_part_of(stages[0], 0, weight, ld, length, part, packed);
  }
  struct Part {  // the rows of a weight that make one
    const S* first;
    int count;
  };
  Part pack_part_of(const Stage<Element>& stage, int index, const S* weight, i64 ld, i64 length, i64 part,
                    Element* packed) const {
    const i64 panel = stage.panel_of(part), begin = stage.begin(panel), width = stage.width(panel) * L;
    const int v = static_cast<int>(part - begin);
    const i64 u = stage.gated ? panel * L : part * L;
    const i64 row = problem.slots[gate_of(index, v)] * H + u;
    const Part rows{weight + row * ld, lanes_at<Real>(u, H)};
    Element* to = packed + begin * depth_of<Element>(length) * L;
    if (!stage.narrow(panel)) {
      pack_transposed(to + v * L, width, rows.first, ld, rows.count, length);
    } else {  // gate after gate, and zeros behind the last one
      const int at = v * rows.count;
      const i64 lanes = v + 1 < stage.vectors ? rows.count : min_of(L, width - at);
      pack_lanes_transposed(to + at, width, rows.first, ld, rows.count, static_cast<int>(lanes), length);
    }
    return rows;
  }

  // Adds x W^T of a tile's rows to the tile.
  void add_input(int d, i64 s, i64 panel, i64 row, int rows, Real* tile) const {
    if constexpr (sizeof(S) == sizeof(Real)) {  // other types are projected beforehand
      const int vectors = stages[0].width(panel);
      const i64 width = vectors * L;
      const auto product = step_kernel<Element>(vectors, rows, false);
      product(problem.I, reinterpret_cast<const Element*>(x[d].at(s, row)), x[d].row,
              packed_input[d] + stages[0].begin(panel) * problem.I * L, width, tile, width, true);
    }
  }

  // Prefetches x's part of a tile: one or a few lines of each of many rows, where the hardware sees no
  // pattern.
  void prefetch_input(int index, int d, i64 s, i64 panel, i64 row, int rows) const {
    const Stage<Element>& stage = stages[index];
    for (int r = 0; r < rows; ++r) {
      const Real* from = gates_x[d].at(s, row + r);
      for (int v = 0; v < (stage.gated ? stage.vectors : stage.width(panel)); ++v)
        __builtin_prefetch(from + problem.slots[gate_of(index, v)] * H + stage.first_unit(panel) +
                           (stage.gated ? 0 : v * L));
    }
  }
  // x's part of gate k, with the bias.
  ZS_DEVICE V input(int d, i64 s, i64 n, i64 u, int lanes, int k) const {
    const i64 at = problem.slots[k] * H + u;
    V a = fused ? V{} : Io<Real>::load_n(gates_x[d].at(s, n) + at, lanes);
    if (bias[d]) a += Io<S>::load_n(bias[d] + at, lanes);
    return a;
  }
  ZS_DEVICE void keep_gate(int d, i64 s, i64 n, i64 u, int lanes, int k, V gate) const {
    if (z[d]) Io<S>::store_n(z[d].at(s, n) + problem.slots[k] * H + u, gate, lanes);
  }
  // Stores h and prepares what the next step multiplies by R.
  ZS_DEVICE void publish(int d, i64 s, i64 n, i64 u, int lanes, V value) const {
    Io<S>::store_n(h[d].at(s, n) + u, value, lanes);
    if (s + 1 < problem.T) set_operand(d, s + 1, n, u, lanes, value);
  }
  ZS_DEVICE void set_operand(int d, i64 s, i64 n, i64 u, int lanes, V value) const {
    if (mask[d]) value *= mask[d].load(s, n, u, lanes);
    write_operand(operand_at(d, s) + n * Hp, u, value);
  }
  // A row of operand_buffer or second_operand.
  ZS_DEVICE void write_operand(Element* row, i64 u, V value) const {
    if (!Op::kPlain && direct)
      Io<Real>::store(reinterpret_cast<Real*>(row) + u, value);
    else
      Op::write(row, Hp, u, value, L);
  }
  ZS_DEVICE V read_operand(const Element* row, i64 u) const {
    if (!Op::kPlain && direct) return Io<Real>::load(reinterpret_cast<const Real*>(row) + u);
    return Op::read(row, Hp, u);
  }
};

}  // namespace ZS_NAMESPACE
