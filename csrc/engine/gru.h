// The GRU in the scans, with the reset gate after the recurrent product or before it.
#pragma once

#include "engine/backward.h"
#include "engine/forward.h"
#include "equations/cells.h"

namespace ZS_NAMESPACE {

template <bool ResetAfter>
void mark_gru() {
  mark(ResetAfter ? Path::reset_after : Path::reset_before);
}

template <class S, class Acts, bool ResetAfter>
struct GruForward final : Forward<S> {
  using Base = Forward<S>;
  using typename Base::Real;
  using typename Base::V;
  static constexpr int kStages = ResetAfter ? 1 : 2;
  static constexpr Kept kKeeps = Kept::kState;
  static constexpr bool kAddsInput = false;
  Acts acts;
  Real* update[2] = {};  // [N][Hp]: z, from the first stage to the second

  GruForward(const Problem& p, const Acts& a) : Base(p), acts(a) {
    mark_gru<ResetAfter>();
    this->stages[0] = gated_stage<typename Base::Element>(ResetAfter ? 3 : 2, p);
    if (!ResetAfter) this->stages[1] = plain_stage<typename Base::Element>(p.H, p.H);
  }
  void lay_out_own(Arena& arena, int d) override {
    if (ResetAfter) return;
    this->second_operand[d] = arena.take<typename Base::Element>(this->problem.N, this->Hp);  // h·m·r
    update[d] = arena.take<Real>(this->problem.N, this->Hp);
  }
  int gate_of(int index, int v) const override { return index == 1 ? 2 : v; }

  ZS_DEVICE void apply(int index, int d, i64 s, i64 n, i64 u, int lanes, const Real* tile) const {
    if (index == 1)
      finish_before(d, s, n, u, lanes, Io<Real>::load(tile));
    else if constexpr (ResetAfter)
      step_after(d, s, n, u, lanes, tile);
    else
      begin_before(d, s, n, u, lanes, tile);
  }

 private:
  ZS_DEVICE V gate(int d, i64 s, i64 n, i64 u, int lanes, const Real* tile, int k) const {
    const V a = Io<Real>::load(tile + k * Base::L) + this->input(d, s, n, u, lanes, k);
    const V value = activate(acts.kind(k), a);
    this->keep_gate(d, s, n, u, lanes, k, value);
    return value;
  }
  ZS_DEVICE void blend(int d, i64 s, i64 n, i64 u, int lanes, V z, V o) const {
    this->keep_gate(d, s, n, u, lanes, 2, o);
    Real* kept = this->kept[d] + n * this->Hp + u;
    const V value = gru_blend(this->problem.flip_z, z, Io<Real>::load(kept), o);
    Io<Real>::store(kept, value);
    this->publish(d, s, n, u, lanes, value);
  }
  ZS_DEVICE void step_after(int d, i64 s, i64 n, i64 u, int lanes, const Real* tile) const {
    const V z = gate(d, s, n, u, lanes, tile, 0), r = gate(d, s, n, u, lanes, tile, 1);
    V recurrent = Io<Real>::load(tile + 2 * Base::L);
    if (this->b2[d]) recurrent += Io<S>::load_n(this->b2[d] + u, lanes);
    blend(d, s, n, u, lanes, z, gru_candidate_after(acts, this->input(d, s, n, u, lanes, 2), recurrent, r));
  }
  ZS_DEVICE void begin_before(int d, i64 s, i64 n, i64 u, int lanes, const Real* tile) const {
    const i64 at = n * this->Hp + u;
    const V r = gate(d, s, n, u, lanes, tile, 1);
    Io<Real>::store(update[d] + at, gate(d, s, n, u, lanes, tile, 0));
    const i64 row = n * this->Hp;
    this->write_operand(this->second_operand[d] + row, u,
                        this->read_operand(this->operand_at(d, s) + row, u) * r);
  }
  ZS_DEVICE void finish_before(int d, i64 s, i64 n, i64 u, int lanes, V recurrent) const {
    const V o = activate(acts.kind(2), recurrent + this->input(d, s, n, u, lanes, 2));
    blend(d, s, n, u, lanes, Io<Real>::load(update[d] + n * this->Hp + u), o);
  }
};

template <class S, class Acts, bool ResetAfter>
struct GruBackward final : Backward<S> {
  using Base = Backward<S>;
  using typename Base::Real;
  using typename Base::V;
  static constexpr int kStages = ResetAfter ? 1 : 2;
  static constexpr int kRecomputed = ResetAfter ? 2 : -1;
  static constexpr int kReset = 1;
  static constexpr GateBands kBands =
      ResetAfter
          ? GateBands{{{0, 2, true, Seen::kState}, {2, 3, true, Seen::kNothing}, {2, 3, false, Seen::kState}}}
          : GateBands{{{0, 2, true, Seen::kState}, {2, 3, true, Seen::kResetState}}};
  Acts acts;

  // Reset before: the products with Rz, Rr (of the next step) and with Ro (of this step) depend on each
  // other.
  GruBackward(const Problem& p, const Acts& a) : Base(p, ResetAfter), acts(a) {
    mark_gru<ResetAfter>();
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

// The cell as the engine's table has it (cell_list.h).
template <bool ResetAfter>
struct Gru {
  static constexpr bool kHasUsual = ResetAfter;
  using Usual = FixedActivations<kSigmoid, kSigmoid, kTanh>;
  template <class S, class Acts>
  using Forward = GruForward<S, Acts, ResetAfter>;
  template <class S, class Acts>
  using Backward = GruBackward<S, Acts, ResetAfter>;
};

}  // namespace ZS_NAMESPACE
