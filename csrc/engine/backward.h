// What the cells share in the backward scan: their arrays and buffers, and what they read and write at one
// place.
#pragma once

#include "engine/scan.h"

namespace ZS_NAMESPACE {

// What R multiplied at a gate: nothing that its gradient needs, h·m, or h·m·r.
enum class Seen { kNothing, kState, kResetState };
// Gates [begin, end), by place along the G axis, whose weights multiplied the same. Without `input` R alone
// has them, and their gradient takes the reset gate as a factor.
struct GateBand {
  int begin = 0, end = 0;
  bool input = false;
  Seen recurrent = Seen::kNothing;
};
struct GateBands {
  GateBand list[3];
};

// Steps run from T-1 down to 0; step -1 stands for the initial state, which gets the last gradients.
template <class S>
struct Backward {
  using Real = RealOf<S>;
  using Element = typename Elements<S>::Product;
  using Op = Operand<Element>;
  using V = Vec<Real>;
  static constexpr int L = Simd<Real>::lanes;
  static constexpr bool kTakesInput = false;
  // Which differ from cell to cell, as do kStages and the kBands of their gates:
  static constexpr int kRecomputed = -1;   // the gate whose recurrent term the gradient needs by itself
  static constexpr int kReset = -1;        // the gate that resets
  static constexpr int kSeesNewCell = -1;  // the gate whose peephole looks at c[s], not at c[s-1]

  // The same for whoever knows the cell by this base only.
  struct Facts {
    int stages, recomputed, reset, sees_new_cell;
    GateBands bands;
    Apply<Backward> apply;
  };
  template <class Cell>
  static constexpr Facts kFactsOf = {Cell::kStages,      Cell::kRecomputed, Cell::kReset,
                                     Cell::kSeesNewCell, Cell::kBands,      apply_of<Cell>};
  const Facts* facts = nullptr;

  const Problem& problem;
  i64 H, Hp;
  const bool recurrent_differs;  // R sees another gradient than x does
  bool direct = false;  // no packed weights: the operands are plain values, whatever the elements are
  Stage<Element> stages[2];
  i64 weight_bytes = 0;  // packed, of all that a step reads

  Rows<const S> dy[2], z[2], c[2], h[2], dc_steps[2], h0[2], c0[2], ds[2], dc_last[2];
  MaskRows<S> mask[2];
  const S *peephole[2] = {}, *b2[2] = {};
  const S* R[2] = {};
  i64 ldr = 0;
  Rows<S> dh0[2], dc0[2];
  Rows<Real> dgates[2];    // [T][N][G·H] in the descriptor's gate order
  Real* carry[2] = {};     // [N][Hp]: dc of the LSTM; what the GRU's blend passes on
  Real* products[2] = {};  // [N][Hp]: a stage's product where the weights are not packed
  // [2][N][G·H]: the gates' gradient of this step and the next as R sees it, where that differs from dgates
  // or the kernel multiplies other elements.
  Element* recurrent[2] = {};

  explicit Backward(const Problem& p, bool recurrent_differs = false)
      : problem(p), H(p.H), Hp(round_up(p.H, L)), recurrent_differs(recurrent_differs) {}
  virtual ~Backward() = default;

  Split split(int members) const { return choose_split(members, problem, weight_bytes); }
  // The sequences of this step and, to be finished, those of the step before it.
  i64 rows_at(int d, i64 s) const {
    if (!problem.starts) return problem.N;
    return max_of(batch_at(problem, d, s), batch_at(problem, d, s + 1));
  }
  i64 product_rows(int index, int d, i64 s) const { return batch_at(problem, d, index == 1 ? s : s + 1); }

  // First row of R that a stage's product starts at.
  virtual i64 first_weight_row(int) const { return 0; }
  const Element* operand(int index, int d, i64 s, i64& lda) const {
    const i64 step = index == 1 ? s : s + 1, first = first_weight_row(index);
    if (recurrent[d]) {
      lda = problem.G * H;
      return recurrent_at(d, step) + (direct ? first : first / Op::kValues);
    }
    lda = dgates[d].row;
    return reinterpret_cast<const Element*>(dgates[d].at(step, 0) + first);
  }
  Element* recurrent_at(int d, i64 s) const { return recurrent[d] + (s & 1) * problem.N * problem.G * H; }
  // A gate's gradient as R sees it.
  ZS_DEVICE void set_recurrent(int d, i64 s, i64 n, i64 u, int lanes, int k, V value) const {
    const i64 at = problem.slots[k] * H + u;
    Element* row = recurrent_at(d, s) + n * problem.G * H;
    if (!Op::kPlain && direct)
      Io<Real>::store_n(reinterpret_cast<Real*>(row) + at, value, lanes);
    else
      Op::write(row, 0, at, value, lanes);
  }
  // The product of one stage without packed weights, for hidden units [begin, end), into `products`.
  void direct_product(int index, int d, i64 s, i64 begin, i64 end) const {
    for (i64 n = 0; n < problem.N; ++n) {
      i64 lda;
      const Real* a = reinterpret_cast<const Real*>(operand(index, d, s, lda) + n * lda);
      weighted_rows<S>(R[d] + first_weight_row(index) * ldr, ldr, begin, end, a, stages[index].length,
                       products[d] + n * Hp + begin, false);
    }
  }
  void pack_part(int index, int d, i64 part, Element* packed) const {
    const Stage<Element>& stage = stages[index];
    const i64 panel = stage.panel_of(part), begin = stage.begin(panel), u = part * L;
    pack_straight(packed + begin * stage.K * L + (part - begin) * L, stage.width(panel) * L,
                  R[d] + first_weight_row(index) * ldr + u, ldr, lanes_at<Real>(u, H), stage.length);
  }

  // h[s-1] of the forward pass; never called for a sequence's first step.
  virtual V previous_state(int d, i64 s, i64 n, i64 u, int lanes) const = 0;
  // h[s-1], or zero where there is no initial state.
  ZS_DEVICE V h_before(int d, i64 s, i64 n, i64 u, int lanes) const {
    if (!absent(problem, d, s - 1, n)) return previous_state(d, s, n, u, lanes);
    return h0[d] ? Io<S>::load_n(h0[d].at(0, n) + u, lanes) : V{};
  }
  // What R multiplied at step s.
  ZS_DEVICE V masked_before(int d, i64 s, i64 n, i64 u, int lanes) const {
    const V value = h_before(d, s, n, u, lanes);
    return mask[d] ? value * mask[d].load(s, n, u, lanes) : value;
  }
  ZS_DEVICE V c_before(int d, i64 s, i64 n, i64 u, int lanes) const {
    if (!absent(problem, d, s - 1, n)) return Io<S>::load_n(c[d].at(s - 1, n) + u, lanes);
    return c0[d] ? Io<S>::load_n(c0[d].at(0, n) + u, lanes) : V{};
  }
  ZS_DEVICE V gate(int d, i64 s, i64 n, i64 u, int lanes, int k) const {
    return Io<S>::load_n(z[d].at(s, n) + problem.slots[k] * H + u, lanes);
  }
  ZS_DEVICE void set_dgate(int d, i64 s, i64 n, i64 u, int lanes, int k, V value) const {
    Io<Real>::store_n(dgates[d].at(s, n) + problem.slots[k] * H + u, value, lanes);
    if (!Op::kPlain && !direct && !recurrent_differs) set_recurrent(d, s, n, u, lanes, k, value);
  }
  // The gradient that reaches h[s] through R from step s+1, or from outside at the last step.
  ZS_DEVICE V from_next(int d, i64 s, i64 n, i64 u, int lanes, const Real* tile) const {
    if (absent(problem, d, s + 1, n)) return ds[d] ? Io<S>::load_n(ds[d].at(0, n) + u, lanes) : V{};
    const V product = Io<Real>::load(tile);
    return mask[d] ? product * mask[d].load(s + 1, n, u, lanes) : product;
  }
  ZS_DEVICE V source_gradient(int d, i64 s, i64 n, i64 u, int lanes) const {
    return Io<S>::load_n(dy[d].at(s, n) + u, lanes);
  }
  ZS_DEVICE void finish_state(int d, i64 n, i64 u, int lanes, V value) const {
    if (dh0[d]) Io<S>::store_n(dh0[d].at(0, n) + u, value, lanes);
  }
};

}  // namespace ZS_NAMESPACE
