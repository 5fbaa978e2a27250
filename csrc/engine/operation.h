// What the operations share: the size of the team, packing, conversion.
#pragma once

#include "engine/arena.h"
#include "engine/scan.h"
#include "runtime/team_choice.h"
#include "runtime/threads.h"

namespace ZS_NAMESPACE {

using zstate::Workspace;

// In multiplications: of every row with one matrix [D·G·H, width].
inline double product_work(const Problem& p, i64 width) {
  return static_cast<double>(p.rows()) * static_cast<double>(p.D * p.G * p.H) * static_cast<double>(width);
}
inline double operation_work(const Problem& p) {
  return product_work(p, p.H + (p.has_input_weight ? p.I : 1));
}

// Weights that may not fit in a shared L3.
template <class S>
bool weights_are_far(const Problem& p) {
  return p.D * p.G * p.H * (p.H + (p.has_input_weight ? p.I : 0)) * static_cast<i64>(sizeof(S)) >=
         (i64{12} << 20);
}

// An operation that needs no scratch memory, only its arguments.
template <class Arguments>
struct WithoutScratch {
  const Arguments& p;
  int threads = 1;
  explicit WithoutScratch(const Arguments& arguments) : p(arguments) {}
  void lay_out(Arena&) {}
};

template <class Op>
void run_member(void* context, const Team& team) {
  static_cast<Op*>(context)->run(team);
}
// Measures the operation's scratch memory, gets it, and runs the operation on a team. `shared`: the part of
// its work that members share.
template <class Op>
void run_operation(Op& op, double work, double shared) {
  const zstate::TeamChoice choice(work, shared);
  op.threads = choice.threads();
  Arena measure(nullptr);
  op.lay_out(measure);
  Workspace workspace(static_cast<std::size_t>(measure.used()));
  Arena arena(workspace.data());
  op.lay_out(arena);
  zstate::run_team(op.threads, run_member<Op>, &op, work);
}

// Calls run.template operator()<R>() for arguments of type float32 or float64.
template <class Run>
void with_real(zstate::Type type, const Run& run) {
  if (type == zstate::Type::kFloat64) return run.template operator()<double>();
  run.template operator()<float>();
}

template <class S, class R = RealOf<S>>
void convert_out(const R* in, S* out, i64 count) {
  constexpr int L = Simd<R>::lanes;
  for (i64 i = 0; i < count; i += L) {
    const int n = static_cast<int>(min_of(L, count - i));
    Io<S>::store_n(out + i, Io<R>::load_n(in + i, n), n);
  }
}
template <class S, class R = RealOf<S>>
void convert_in(const S* in, R* out, i64 count) {
  constexpr int L = Simd<R>::lanes;
  for (i64 i = 0; i < count; i += L) {
    const int n = static_cast<int>(min_of(L, count - i));
    Io<R>::store_n(out + i, Io<S>::load_n(in + i, n), n);
  }
}

template <class S>
const S* weights(const Array& a, int d, i64 offset) {
  return a ? static_cast<const S*>(a.data) + d * offset : nullptr;
}
// First row of a direction's matrix in a stacked weight [D·rows, K] or [D, rows, K]; the stride between rows
// goes to ld.
template <class S>
const S* weight_matrix(const Array& a, int d, i64 rows, i64& ld) {
  if (!a) return nullptr;
  ld = a.strides[a.rank - 2];
  return static_cast<const S*>(a.data) + d * (a.rank == 3 ? a.strides[0] : rows * ld);
}

// Packs the panels of all stages, and points the stages at them.
template <class Cell>
void pack_stages(const Team& team, Cell& cell, typename Cell::Element* const packed[2][2]) {
  for (int index = 0; index < cell.facts->stages; ++index)
    for (int d = 0; d < cell.problem.D; ++d) {
      const auto& stage = cell.stages[index];
      const Range mine = share(team, stage.parts());
      for (i64 part = mine.begin; part < mine.end && !team.stopped(); ++part)
        cell.pack_part(index, d, part, packed[index][d]);
    }
}
template <class Cell>
i64 packed_bytes(const Cell& cell) {
  i64 sum = 0;
  for (int index = 0; index < cell.facts->stages; ++index) sum += stage_size(cell.stages[index]);
  return sum * cell.problem.D * static_cast<i64>(sizeof(typename Cell::Element));
}
template <class Cell>
void lay_out_stages(Arena& arena, Cell& cell, typename Cell::Element* packed[2][2]) {
  using E = typename Cell::Element;
  for (int index = 0; index < cell.facts->stages; ++index)
    for (int d = 0; d < cell.problem.D; ++d) {
      const i64 size = stage_size(cell.stages[index]);
      packed[index][d] = arena.take<E>(size);
      cell.stages[index].packed[d] = packed[index][d];
    }
}

}  // namespace ZS_NAMESPACE
