// What each cell reads, computes and writes at one place of the backward scan.
#pragma once

#include "cells.h"
#include "scan.h"

namespace ZS_NAMESPACE {

// Steps run from T-1 down to 0; step -1 stands for the initial state, where the last gradients are handed
// out.
template <class S>
struct Backward {
  using Real = RealOf<S>;
  using Element = typename Elements<S>::Product;
  using Op = Operand<Element>;
  using V = Vec<Real>;
  static constexpr int L = Simd<Real>::lanes;
  static constexpr bool kTakesInput = false;

  const Problem& problem;
  i64 H, Hp;
  bool direct = false;  // no packed weights: the operands are plain values, whatever the elements are
  Stage<Element> stages[2];
  i64 weight_bytes = 0;

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
  // (GRU, reset after) or the kernel multiplies other elements.
  Element* recurrent[2] = {};

  explicit Backward(const Problem& p) : problem(p), H(p.H), Hp(round_up(p.H, L)) {}
  virtual ~Backward() = default;

  Split split(const Team& team) const { return choose_split(team, problem, weight_bytes); }
  // The sequences of this step and, to be finished, those of the step before it.
  i64 rows_at(int d, i64 s) const {
    if (!problem.starts) return problem.N;
    return max_of(batch_at(problem, d, s), batch_at(problem, d, s + 1));
  }
  i64 product_rows(int index, int d, i64 s) const { return batch_at(problem, d, index == 1 ? s : s + 1); }

  // R sees another gradient than x does.
  bool resets_after() const { return problem.cell == zstate::Cell::kGru && problem.reset_after; }
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
  void pack_column(int index, int d, i64 column, Element* packed) const {
    const Stage<Element>& stage = stages[index];
    const i64 panel = column / stage.vectors, v = column % stage.vectors, width = stage.vectors * L,
              u = column * L;
    pack_straight(packed + panel * stage.K * width + v * L, width,
                  R[d] + first_weight_row(index) * ldr + min_of(u, H - 1), ldr, lanes_at<Real>(u, H),
                  stage.length);
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
    if (!Op::kPlain && !direct && !resets_after()) set_recurrent(d, s, n, u, lanes, k, value);
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

template <class S, class Acts>
struct RnnBackward final : Backward<S> {
  using Base = Backward<S>;
  using typename Base::Real;
  using typename Base::V;
  static constexpr int kStages = 1;
  Acts acts;

  RnnBackward(const Problem& p, const Acts& a) : Base(p), acts(a) {
    this->stages[0] = plain_stage<typename Base::Element>(p.H, p.H);
  }
  V previous_state(int d, i64 s, i64 n, i64 u, int lanes) const override {
    return rnn_forward(acts, this->gate(d, s - 1, n, u, lanes, 0));
  }
  ZS_DEVICE void apply(int, int d, i64 s, i64 n, i64 u, int lanes, const Real* tile) const {
    const V dh = this->from_next(d, s, n, u, lanes, tile);
    if (absent(this->problem, d, s, n)) return this->finish_state(d, n, u, lanes, dh);
    const V z = this->gate(d, s, n, u, lanes, 0);
    this->set_dgate(d, s, n, u, lanes, 0,
                    rnn_backward(acts, z, dh + this->source_gradient(d, s, n, u, lanes)));
  }
};

template <class S, class Acts>
struct LstmBackward final : Backward<S> {
  using Base = Backward<S>;
  using typename Base::Real;
  using typename Base::V;
  static constexpr int kStages = 1;
  Acts acts;

  LstmBackward(const Problem& p, const Acts& a) : Base(p), acts(a) {
    this->stages[0] = plain_stage<typename Base::Element>(p.H, 4 * p.H);
  }
  V previous_state(int d, i64 s, i64 n, i64 u, int lanes) const override {
    return lstm_output(acts, this->gate(d, s - 1, n, u, lanes, 3),
                       Io<S>::load_n(this->c[d].at(s - 1, n) + u, lanes));
  }
  ZS_DEVICE void apply(int, int d, i64 s, i64 n, i64 u, int lanes, const Real* tile) const {
    Real* carry = this->carry[d] + n * this->Hp + u;
    V dh = this->from_next(d, s, n, u, lanes, tile), dc = Io<Real>::load(carry);
    if (absent(this->problem, d, s, n)) {
      this->finish_state(d, n, u, lanes, dh);
      if (this->dc0[d]) Io<S>::store_n(this->dc0[d].at(0, n) + u, dc, lanes);
      return;
    }
    dh += this->source_gradient(d, s, n, u, lanes);
    if (this->dc_steps[d]) dc += Io<S>::load_n(this->dc_steps[d].at(s, n) + u, lanes);
    V gate[4];
    for (int k = 0; k < 4; ++k) gate[k] = this->gate(d, s, n, u, lanes, k);
    const V c = Io<S>::load_n(this->c[d].at(s, n) + u, lanes);
    LstmGradient<V> g = lstm_backward(acts, gate, c, this->c_before(d, s, n, u, lanes), dh, dc);
    for (int k = 0; k < 4; ++k) {
      this->set_dgate(d, s, n, u, lanes, k, g.da[k]);
      if (this->peephole[d])
        g.dc_prev += Io<S>::load_n(this->peephole[d] + this->problem.slots[k] * this->H + u, lanes) * g.da[k];
    }
    Io<Real>::store(carry, g.dc_prev);
  }
};

template <class S, class Acts, bool ResetAfter>
struct GruBackward final : Backward<S> {
  using Base = Backward<S>;
  using typename Base::Real;
  using typename Base::V;
  static constexpr int kStages = ResetAfter ? 1 : 2;
  Acts acts;

  // Reset before: the products with Rz, Rr (of the step behind) and with Ro (of this step) depend on each
  // other.
  GruBackward(const Problem& p, const Acts& a) : Base(p), acts(a) {
    this->stages[0] = plain_stage<typename Base::Element>(p.H, (ResetAfter ? 3 : 2) * p.H);
    if (!ResetAfter) this->stages[1] = plain_stage<typename Base::Element>(p.H, p.H);
  }
  V previous_state(int d, i64 s, i64 n, i64 u, int lanes) const override {
    return Io<S>::load_n(this->h[d].at(s - 1, n) + u, lanes);
  }
  i64 first_weight_row(int index) const override { return index == 1 ? 2 * this->H : 0; }
  ZS_DEVICE void apply(int index, int d, i64 s, i64 n, i64 u, int lanes, const Real* tile) const {
    if (index == 1) return through_reset_before(d, s, n, u, lanes, Io<Real>::load(tile));
    Real* carry = this->carry[d] + n * this->Hp + u;
    V dh = this->from_next(d, s, n, u, lanes, tile) + Io<Real>::load(carry);
    if (absent(this->problem, d, s, n)) return this->finish_state(d, n, u, lanes, dh);
    dh += this->source_gradient(d, s, n, u, lanes);
    const V z = this->gate(d, s, n, u, lanes, 0), o = this->gate(d, s, n, u, lanes, 2);
    const V h_prev = this->h_before(d, s, n, u, lanes);
    const GruGradient<V> g = gru_blend_backward(acts, this->problem.flip_z, z, o, h_prev, dh);
    Io<Real>::store(carry, g.dh_prev);
    if constexpr (ResetAfter) through_reset_after(d, s, n, u, lanes, g);
    this->set_dgate(d, s, n, u, lanes, 0, g.da_z);
    this->set_dgate(d, s, n, u, lanes, 2, g.da_o);
  }

 private:
  // Until now the o slot of dgates held the un-reset recurrent term, without its bias.
  ZS_DEVICE void through_reset_after(int d, i64 s, i64 n, i64 u, int lanes, const GruGradient<V>& g) const {
    V term = Io<Real>::load_n(this->dgates[d].at(s, n) + 2 * this->H + u, lanes);
    if (this->b2[d]) term += Io<S>::load_n(this->b2[d] + u, lanes);
    const V r = this->gate(d, s, n, u, lanes, 1);
    const V da_r = gru_reset_gradient(acts, r, g.da_o * term);
    this->set_dgate(d, s, n, u, lanes, 1, da_r);
    this->set_recurrent(d, s, n, u, lanes, 0, g.da_z);
    this->set_recurrent(d, s, n, u, lanes, 1, da_r);
    this->set_recurrent(d, s, n, u, lanes, 2, g.da_o * r);
  }
  // d_reset is the gradient of h_prev·m·r.
  ZS_DEVICE void through_reset_before(int d, i64 s, i64 n, i64 u, int lanes, V d_reset) const {
    if (absent(this->problem, d, s, n)) return;
    const V r = this->gate(d, s, n, u, lanes, 1);
    const V dr = d_reset * this->masked_before(d, s, n, u, lanes);
    this->set_dgate(d, s, n, u, lanes, 1, gru_reset_gradient(acts, r, dr));
    V passed = d_reset * r;
    if (this->mask[d]) passed *= this->mask[d].load(s, n, u, lanes);
    Real* carry = this->carry[d] + n * this->Hp + u;
    Io<Real>::store(carry, Io<Real>::load(carry) + passed);
  }
};

}  // namespace ZS_NAMESPACE
