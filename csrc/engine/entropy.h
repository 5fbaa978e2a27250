// The cross entropy of a softmax, and its gradient: a row at a time, while it is in the first-level cache.
#pragma once

#include "engine/graph_ops.h"
#include "engine/operation.h"

namespace ZS_NAMESPACE {

template <class R>
ZS_DEVICE R sum_of_lanes(Vec<R> v) {
  R sum = v[0];
  for (int i = 1; i < Simd<R>::lanes; ++i) sum += v[i];
  return sum;
}
template <class R>
ZS_DEVICE R largest_of_lanes(Vec<R> v) {
  R most = v[0];
  for (int i = 1; i < Simd<R>::lanes; ++i) most = v[i] > most ? v[i] : most;
  return most;
}

// The largest value of a row. It may miss a NaN, which then reaches the row's sums anyway.
template <class R>
R largest_of(const R* x, i64 count) {
  constexpr int L = Simd<R>::lanes;
  Vec<R> most = broadcast(x[0]);
  i64 j = 0;
  for (; j + L <= count; j += L) {
    const Vec<R> v = Io<R>::load(x + j);
    most = v > most ? v : most;
  }
  R found = largest_of_lanes<R>(most);
  for (; j < count; ++j) found = x[j] > found ? x[j] : found;
  return found;
}
template <class R>
R sum_of(const R* x, i64 count) {
  constexpr int L = Simd<R>::lanes;
  Vec<R> sum{};
  for (i64 j = 0; j < count; j += L) sum += Io<R>::load_n(x + j, lanes_at<R>(j, count));
  return sum_of_lanes<R>(sum);
}

template <class R>
struct CrossEntropyOp : WithoutScratch<zstate::CrossEntropy> {
  using WithoutScratch::WithoutScratch;

  void run(const Team& team) {
    const Range mine = share(team, p.rows);
    for (i64 row = mine.begin; row < mine.end && !team.stopped(); ++row)
      static_cast<R*>(p.loss)[row] = loss_of(static_cast<const R*>(p.source) + row * p.classes,
                                             static_cast<const R*>(p.labels) + row * p.classes,
                                             static_cast<R*>(p.soft_max) + row * p.classes);
  }

  // log Σ exp · Σ labels - Σ labels·source, all of the source minus its largest, so that exp cannot overflow.
  R loss_of(const R* source, const R* labels, R* soft_max) const {
    using Math = VectorMath<R>;
    constexpr int L = Simd<R>::lanes;
    const R most = largest_of(source, p.classes);
    Vec<R> total{}, weight{}, inner{};
    for (i64 j = 0; j < p.classes; j += L) {
      const int lanes = lanes_at<R>(j, p.classes);
      Vec<R> moved = Io<R>::load_n(source + j, lanes) - most;
      if (lanes < L) moved = Math::first_lanes(moved, lanes, Math::C::lowest);
      const Vec<R> label = Io<R>::load_n(labels + j, lanes);
      const Vec<R> raised = Math::exp_negative(moved);
      Io<R>::store_n(soft_max + j, raised, lanes);
      total += raised;
      weight += label;
      inner += label * moved;
    }
    const R sum = sum_of_lanes<R>(total);
    for (i64 j = 0; j < p.classes; j += L) {
      const int lanes = lanes_at<R>(j, p.classes);
      Io<R>::store_n(soft_max + j, Io<R>::load_n(soft_max + j, lanes) / sum, lanes);
    }
    return static_cast<R>(__builtin_log(sum)) * sum_of_lanes<R>(weight) - sum_of_lanes<R>(inner);
  }
};

template <class R>
struct CrossEntropyGradientOp : WithoutScratch<zstate::CrossEntropyGradient> {
  using WithoutScratch::WithoutScratch;

  void run(const Team& team) {
    constexpr int L = Simd<R>::lanes;
    const Range mine = share(team, p.rows);
    for (i64 row = mine.begin; row < mine.end && !team.stopped(); ++row) {
      const R* labels = static_cast<const R*>(p.labels) + row * p.classes;
      const R* soft_max = static_cast<const R*>(p.soft_max) + row * p.classes;
      R* result = static_cast<R*>(p.result) + row * p.classes;
      const R weight = sum_of(labels, p.classes);
      const R factor = p.factors ? static_cast<const R*>(p.factors)[row] : static_cast<R>(p.factor);
      for (i64 j = 0; j < p.classes; j += L) {
        const int lanes = lanes_at<R>(j, p.classes);
        const Vec<R> found = Io<R>::load_n(soft_max + j, lanes) * weight - Io<R>::load_n(labels + j, lanes);
        Io<R>::store_n(result + j, found * factor, lanes);
      }
    }
  }
};

}  // namespace ZS_NAMESPACE
