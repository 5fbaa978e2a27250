// The LSTM in the scans, with the output gate's peephole on c[t-1] as the others are, or on c[t].
#pragma once

#include "engine/backward.h"
#include "engine/forward.h"
#include "equations/cells.h"

namespace ZS_NAMESPACE {

// The peepholes of gate k from unit u on.
template <class S>
ZS_DEVICE Vec<RealOf<S>> peephole_at(const Problem& p, const S* peephole, int k, i64 u, int lanes) {
  return Io<S>::load_n(peephole + p.slots[k] * p.H + u, lanes);
}

template <class S, class Acts, bool OnNewCell>
struct LstmForward final : Forward<S> {
  using Base = Forward<S>;
  using typename Base::Real;
  using typename Base::V;
  static constexpr int kStages = 1;
  static constexpr Kept kKeeps = Kept::kCell;
  Acts acts;

  LstmForward(const Problem& p, const Acts& a) : Base(p), acts(a) {
    if (OnNewCell) mark(Path::peephole_on_new_cell);
    this->stages[0] = gated_stage<typename Base::Element>(4, p);
  }
  int gate_of(int, int v) const override { return v; }

  ZS_DEVICE void apply(int, int d, i64 s, i64 n, i64 u, int lanes, const Real* tile) const {
    Real* kept = this->kept[d] + n * this->Hp + u;
    const V c_prev = Io<Real>::load(kept);
    V a[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      a[k] = Io<Real>::load(tile + k * Base::L) + this->input(d, s, n, u, lanes, k);
      if (this->peephole[d] && !(OnNewCell && k == 3))
        a[k] += peephole_at(this->problem, this->peephole[d], k, u, lanes) * c_prev;
    }
    LstmState<V> next;
    if constexpr (OnNewCell) {
      const V p_o = peephole_at(this->problem, this->peephole[d], 3, u, lanes);
      next = lstm_forward(acts, a, c_prev, &p_o);
    } else {
      next = lstm_forward(acts, a, c_prev);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) this->keep_gate(d, s, n, u, lanes, k, next.gate[k]);
    Io<Real>::store(kept, next.c);
    if (this->c[d]) Io<S>::store_n(this->c[d].at(s, n) + u, next.c, lanes);
    this->publish(d, s, n, u, lanes, next.h);
  }
};

template <class S, class Acts, bool OnNewCell>
struct LstmBackward final : Backward<S> {
  using Base = Backward<S>;
  using typename Base::Real;
  using typename Base::V;
  static constexpr int kStages = 1;
  static constexpr GateBands kBands{{{0, 4, true, Seen::kState}}};
  static constexpr int kSeesNewCell = OnNewCell ? 3 : -1;
  Acts acts;

  LstmBackward(const Problem& p, const Acts& a) : Base(p), acts(a) {
    if (OnNewCell) mark(Path::peephole_on_new_cell);
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
    const V c_prev = this->c_before(d, s, n, u, lanes);
    LstmGradient<V> g;
    if constexpr (OnNewCell) {
      const V p_o = peephole_at(this->problem, this->peephole[d], 3, u, lanes);
      g = lstm_backward(acts, gate, c, c_prev, dh, dc, &p_o);
    } else {
      g = lstm_backward(acts, gate, c, c_prev, dh, dc);
    }
    for (int k = 0; k < 4; ++k) {
      this->set_dgate(d, s, n, u, lanes, k, g.da[k]);
      if (this->peephole[d] && !(OnNewCell && k == 3))
        g.dc_prev += peephole_at(this->problem, this->peephole[d], k, u, lanes) * g.da[k];
    }
    Io<Real>::store(carry, g.dc_prev);
  }
};

// The cell as the engine's table has it (cell_list.h).
template <bool OnNewCell>
struct Lstm {
  static constexpr bool kHasUsual = !OnNewCell;  // rare: not worth another copy of the engine
  using Usual = FixedActivations<kSigmoid, kSigmoid, kTanh, kSigmoid, kTanh>;
  template <class S, class Acts>
  using Forward = LstmForward<S, Acts, OnNewCell>;
  template <class S, class Acts>
  using Backward = LstmBackward<S, Acts, OnNewCell>;
};

}  // namespace ZS_NAMESPACE
