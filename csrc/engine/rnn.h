// The single-gate cell in the scans.
#pragma once

#include "engine/backward.h"
#include "engine/forward.h"
#include "equations/cells.h"

namespace ZS_NAMESPACE {

template <class S, class Acts>
struct RnnForward final : Forward<S> {
  using Base = Forward<S>;
  using typename Base::Real;
  using typename Base::V;
  static constexpr int kStages = 1;
  Acts acts;

  RnnForward(const Problem& p, const Acts& a) : Base(p), acts(a) {
    this->stages[0] = plain_stage<typename Base::Element>(p.H, p.H);
  }
  int gate_of(int, int) const override { return 0; }

  ZS_DEVICE void apply(int, int d, i64 s, i64 n, i64 u, int lanes, const Real* tile) const {
    const V a = Io<Real>::load(tile) + this->input(d, s, n, u, lanes, 0);
    this->keep_gate(d, s, n, u, lanes, 0, a);
    this->publish(d, s, n, u, lanes, rnn_forward(acts, a));
  }
};

template <class S, class Acts>
struct RnnBackward final : Backward<S> {
  using Base = Backward<S>;
  using typename Base::Real;
  using typename Base::V;
  static constexpr int kStages = 1;
  static constexpr GateBands kBands{{{0, 1, true, Seen::kState}}};
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

// The cell as the engine's table has it (cell_list.h).
struct Rnn {
  static constexpr bool kHasUsual = false;
  template <class S, class Acts>
  using Forward = RnnForward<S, Acts>;
  template <class S, class Acts>
  using Backward = RnnBackward<S, Acts>;
};

}  // namespace ZS_NAMESPACE
