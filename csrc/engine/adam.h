// One step of Adam: one pass over the values, their two moments and the gradient.
#pragma once

#include "engine/graph_ops.h"
#include "engine/operation.h"

namespace ZS_NAMESPACE {

template <class R>
struct AdamOp : WithoutScratch<zstate::Adam> {
  using WithoutScratch::WithoutScratch;

  void run(const Team& team) {
    constexpr int L = Simd<R>::lanes;
    const Range mine = share(team, ceil_div(p.count, L));
    for (i64 i = mine.begin; i < mine.end && ((i & 4095) || !team.stopped()); ++i)
      update(i * L, lanes_at<R>(i * L, p.count));
  }

  void update(i64 at, int lanes) const {
    const auto load = [&](const void* array) {
      return Io<R>::load_n(static_cast<const R*>(array) + at, lanes);
    };
    const auto store = [&](void* array, Vec<R> v) { Io<R>::store_n(static_cast<R*>(array) + at, v, lanes); };
    const auto number = [](double x) { return static_cast<R>(x); };
    const Vec<R> g = load(p.gradient);
    const Vec<R> m = load(p.momentum) * number(p.beta1) + g * number(p.rest1);
    const Vec<R> v = load(p.velocity) * number(p.beta2) + g * g * number(p.rest2);
    Vec<R> most = v;
    if (p.largest) {
      const Vec<R> before = load(p.largest);
      most = before < v ? v : before;
      most = v == v ? most : v;  // a NaN is the largest
      store(p.new_largest, most);
    }
    const Vec<R> step = m / (VectorMath<R>::sqrt(most) + number(p.epsilon));
    store(p.new_values, load(p.values) - step * number(p.rate));
    store(p.new_momentum, m);
    store(p.new_velocity, v);
  }
};

}  // namespace ZS_NAMESPACE
