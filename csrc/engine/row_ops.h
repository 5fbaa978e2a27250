// Rows by number: taking them from a table, and adding them up into one.
#pragma once

#include "engine/graph_ops.h"
#include "engine/operation.h"

namespace ZS_NAMESPACE {

template <class R>
struct TakeRowsOp : WithoutScratch<zstate::TakeRows> {
  using WithoutScratch::WithoutScratch;

  void run(const Team& team) {
    const Range mine = share(team, p.count);
    for (i64 k = mine.begin; k < mine.end && ((k & 255) || !team.stopped()); ++k)
      std::memcpy(static_cast<R*>(p.result) + k * p.width,
                  static_cast<const R*>(p.table) + p.places[k] * p.width,
                  sizeof(R) * static_cast<std::size_t>(p.width));
  }
};

// Every member has some columns of all rows, so that each sum is taken by one of them, in the order of k.
template <class R>
struct AddRowsOp : WithoutScratch<zstate::AddRows> {
  static constexpr int L = Simd<R>::lanes;
  using WithoutScratch::WithoutScratch;

  void run(const Team& team) {
    const Range vectors = share(team, ceil_div(p.width, L));
    const i64 begin = vectors.begin * L, end = min_of(vectors.end * L, p.width);
    if (begin >= end) return;
    R* result = static_cast<R*>(p.result);
    for (i64 row = 0; row < p.rows && ((row & 255) || !team.stopped()); ++row)
      std::memset(result + row * p.width + begin, 0, sizeof(R) * static_cast<std::size_t>(end - begin));
    for (i64 k = 0; k < p.count && ((k & 255) || !team.stopped()); ++k)
      add(static_cast<const R*>(p.updates) + k * p.width, result + p.places[k] * p.width, begin, end);
  }

  static void add(const R* update, R* sum, i64 begin, i64 end) {
    i64 j = begin;
    for (; j + L <= end; j += L) Io<R>::store(sum + j, Io<R>::load(sum + j) + Io<R>::load(update + j));
    if (j == end) return;
    const int lanes = static_cast<int>(end - j);
    Io<R>::store_n(sum + j, Io<R>::load_n(sum + j, lanes) + Io<R>::load_n(update + j, lanes), lanes);
  }
};

}  // namespace ZS_NAMESPACE
