// The forward operation: project a chunk of steps, scan it, go on to the next.
#pragma once

#include "engine/forward.h"
#include "engine/operation.h"

namespace ZS_NAMESPACE {

using zstate::ForwardArrays;

template <class S>
struct ForwardOp {
  using R = RealOf<S>;
  using E = typename Elements<S>::Product;
  using StateE = typename Elements<S>::State;
  static constexpr bool kSame = sizeof(S) == sizeof(R);
  static constexpr i64 kChunkBytes = i64{2} << 20;

  const Problem& p;
  const ForwardArrays& in;
  Forward<S>& cell;
  int threads = 1;
  i64 GH, gates_row, chunk;
  bool direct, in_place;
  Rows<const S> h0[2], c0[2];
  R* chunk_gates[2] = {};
  StateE* packed[2][2] = {};
  R* row_copy = nullptr;
  E* scratch = nullptr;

  ForwardOp(const Problem& problem, const ForwardArrays& arrays, Forward<S>& state)
      : p(problem), in(arrays), cell(state), GH(p.G * p.H), direct(reads_weights_directly(p)) {
    cell.fused = adds_input_by_tile();
    // Training in the type of the arithmetic: the projection goes straight into zState and is activated in
    // place.
    in_place = kSame && p.has_input_weight && in.training_state && !direct && !cell.fused;
    gates_row = direct ? round_up(GH, Simd<R>::lanes) : GH;
    const i64 step_bytes = max_of(1, zstate::size_product(p.D, p.N, gates_row, sizeof(R)));
    chunk = min_of(max_of(p.T, 1), max_of(ceil_div(kRowsBlock, max_of(p.N, 1)), kChunkBytes / step_bytes));
    // 0·NaN is NaN, also where the factor is a mask, or a reset gate between two stages.
    cell.starts_from_zero = !in.init_state && !in.mask && cell.facts->stages == 1;
    cell.direct = direct;
    cell.weight_bytes = direct ? 0 : packed_bytes(cell) + fused_bytes();
    cell.far = weights_are_far<S>(p);
    cell.input_is_far =
        kSame && !p.has_input_weight && p.rows() * p.D * GH * static_cast<i64>(sizeof(R)) > (i64{1} << 20);
    for (int d = 0; d < p.D; ++d) bind(d);
    mark_paths();
  }

  void mark_paths() const {
    mark(direct ? Path::forward_reads_weights_in_place : Path::forward_packs_weights);
    if (cell.far) mark(Path::weights_exceed_cache);
    if (cell.fused) mark(Path::input_added_per_tile);
    if (in_place) mark(Path::projects_into_training_state);
    if (!p.has_input_weight) mark(kSame ? Path::source_used_as_gates : Path::source_converted_to_gates);
    if (p.has_input_weight && buffers_gates()) mark(Path::projects_into_buffer);
    if (cell.input_is_far) mark(Path::gates_prefetched);
    if (chunk < p.T) mark(Path::several_chunks);
  }

  // Weights that stay in the second-level caches are best used where they are, step by step, rather than in a
  // product of its own whose result has to be written and read again. One row would use them too little.
  // Decided by shape alone, so results are reproducible.
  bool adds_input_by_tile() const {
    const i64 bytes = GH * (p.H + p.I) * static_cast<i64>(sizeof(R));
    return kSame && p.has_input_weight && !direct && cell.facts->adds_input && p.N >= 6 &&
           bytes <= (i64{3} << 19);
  }

  double work() const { return operation_work(p); }
  // A scan that one member runs is not shared, nor is what that scan projects.
  double shared_work() const {
    const bool solo = cell.split(zstate::get_num_threads()) == Split::kSolo;
    const i64 projected = p.has_input_weight && !(solo && cell.fused) ? p.I : 0;
    return product_work(p, projected + (solo ? 0 : p.H));
  }

  void bind(int d) {
    const i64 H = p.H;
    cell.x[d] = rows_of<const S>(p, in.source, d, p.has_input_weight ? 0 : GH, Order::kInput);
    h0[d] = state_rows<const S>(in.init_state, d, H);
    c0[d] = state_rows<const S>(in.init_cell, d, H);
    cell.h[d] = rows_of<S>(p, in.state, d, H, Order::kProcessing);
    cell.c[d] = rows_of<S>(p, in.cell, d, H, Order::kProcessing);
    cell.z[d] = rows_of<S>(p, in.training_state, d, GH, Order::kProcessing);
    cell.mask[d] = mask_rows<S>(p, in.mask, d);
    cell.bias[d] = weights<S>(in.bias, d, GH);
    cell.peephole[d] = weights<S>(in.peephole, d, in.peephole.rank == 2 ? in.peephole.strides[0] : GH);
    cell.b2[d] = weights<S>(in.secondary_bias, d, H);
    cell.R[d] = weight_matrix<S>(in.recurrent_weight, d, GH, cell.ldr);
  }

  bool buffers_gates() const { return direct || !(cell.fused || in_place || (kSame && !p.has_input_weight)); }

  void lay_out(Arena& arena) {
    for (int d = 0; d < p.D; ++d) {
      if (buffers_gates()) chunk_gates[d] = arena.take<R>(chunk, p.N, gates_row);
      cell.operand_buffer[d] = arena.take<StateE>(2, p.N, cell.Hp);
      if (cell.facts->keeps != Kept::kNothing) cell.kept[d] = arena.take<R>(p.N, cell.Hp);
      cell.lay_out_own(arena, d);
    }
    if (direct)
      lay_out_direct(arena);
    else
      lay_out_packed(arena);
  }
  void lay_out_direct(Arena& arena) {
    row_copy = arena.take<R>(threads, round_up(p.I, Simd<R>::lanes));
    for (int d = 0; d < p.D; ++d) cell.products[d] = arena.take<R>(p.N, p.G, cell.Hp);
  }
  void lay_out_packed(Arena& arena) {
    lay_out_stages(arena, cell, packed);
    for (int d = 0; d < p.D && p.has_input_weight; ++d) cell.packed_input[d] = arena.take<E>(input_size());
    scratch = arena.take<E>(threads, kRowsScratch<R>);
  }

  // Of W, where a step reads it too.
  i64 fused_bytes() const { return cell.fused ? p.D * input_size() * static_cast<i64>(sizeof(E)) : 0; }
  i64 input_size() const {
    if (!cell.fused) return panels_size<E>(GH, p.I);
    return zstate::size_product(cell.stages[0].columns(), Simd<R>::lanes, p.I);
  }

  // W for its own product, or in the panels of the scan.
  void pack_input(const Team& team, int d) {
    i64 ldw = 0;
    const S* w = weight_matrix<S>(in.input_weight, d, GH, ldw);
    if (!cell.fused) return pack_panels_transposed(team, cell.packed_input[d], w, ldw, GH, p.I);
    if constexpr (kSame) {
      const Range mine = share(team, cell.stages[0].parts());
      for (i64 part = mine.begin; part < mine.end && !team.stopped(); ++part)
        cell.pack_input_part(w, ldw, p.I, part, cell.packed_input[d]);
    }
  }

  void run(const Team& team) {
    if (!direct) {
      pack_stages(team, cell, packed);
      for (int d = 0; d < p.D && p.has_input_weight; ++d) pack_input(team, d);
    } else if (cell.starts_from_zero) {
      const Range mine = share(team, GH);
      for (int d = 0; d < p.D; ++d)
        cell.check_weights(cell.R[d] + mine.begin * cell.ldr, mine.end - mine.begin);
    }
    initialise(team);
    team.barrier();
    for (i64 s = 0; s < p.T && !team.stopped(); s += chunk) {
      const i64 steps = min_of(chunk, p.T - s);
      for (int d = 0; d < p.D && !cell.fused; ++d) project(team, d, s, steps);
      team.barrier();
      if (team.stopped()) return;  // gates_x may not be set
      scan(cell, team, s, steps, 1);
    }
  }

  void initialise(const Team& team) {
    constexpr int L = Simd<R>::lanes;
    const Range mine = share(team, p.N);
    for (int d = 0; d < p.D; ++d)
      for (i64 n = mine.begin; n < mine.end; ++n) {
        const i64 begin = first_step(p, d, n);
        for (i64 u = 0; u < p.H; u += L) {
          const int lanes = lanes_at<R>(u, p.H);
          const Vec<R> first = h0[d] ? Io<S>::load_n(h0[d].at(0, n) + u, lanes) : Vec<R>{};
          if (p.T > 0) cell.set_operand(d, begin, n, u, lanes, first);
          if (cell.facts->keeps == Kept::kNothing) continue;
          const Rows<const S>& kept = cell.facts->keeps == Kept::kCell ? c0[d] : h0[d];
          Io<R>::store(cell.kept[d] + n * cell.Hp + u,
                       kept ? Io<S>::load_n(kept.at(0, n) + u, lanes) : Vec<R>{});
        }
      }
  }

  // Points gates_x at x W^T for steps [s, s + steps), computing it unless x came projected.
  void project(const Team& team, int d, i64 s, i64 steps) {
    if (kSame && !p.has_input_weight) {
      if (team.rank == 0) cell.gates_x[d] = as_rows<const R>(cell.x[d]);
      return;
    }
    Rows<R> out{chunk_gates[d], p.N * gates_row, gates_row};
    if (in_place)
      out = as_rows<R>(cell.z[d]);
    else  // the buffer begins with step s; not as a pointer, which must not leave its array
      out.data = reinterpret_cast<R*>(reinterpret_cast<std::uintptr_t>(out.data) -
                                      static_cast<std::uintptr_t>(s * out.step) * sizeof(R));
    if (team.rank == 0) cell.gates_x[d] = as_rows<const R>(out);
    const Range span = rows_between(p, d, s, steps);
    const i64 rows = span.end - span.begin;
    const auto out_row = [&](i64 row) {
      const Place at = place_of(p, d, span.begin + row);
      return out.at(at.s, at.n);
    };
    const auto in_row = [&](i64 row) {
      const Place at = place_of(p, d, span.begin + row);
      return cell.x[d].at(at.s, at.n);
    };
    if (!p.has_input_weight) {
      const Range mine = share(team, rows);
      for (i64 row = mine.begin; row < mine.end; ++row) convert_in<S>(in_row(row), out_row(row), GH);
    } else if (direct) {
      project_directly(team, d, rows, in_row, out_row);
    } else {
      const auto load = [&](i64 row, i64 k, int lanes) { return Io<S>::load_n(in_row(row) + k, lanes); };
      multiply_rows(team, rows, p.I, GH, load, cell.packed_input[d], out_row, false,
                    scratch + team.rank * kRowsScratch<R>);
    }
  }

  template <class InRow, class OutRow>
  void project_directly(const Team& team, int d, i64 rows, const InRow& in_row, const OutRow& out_row) {
    constexpr int L = Simd<R>::lanes;
    i64 ldw = 0;
    const S* w = weight_matrix<S>(in.input_weight, d, GH, ldw);
    R* copy = row_copy + team.rank * round_up(p.I, L);
    const Range mine = share(team, ceil_div(GH, L));
    const i64 begin = mine.begin * L, end = min_of(mine.end * L, GH);
    for (i64 row = 0; row < rows; ++row) {
      convert_in<S>(in_row(row), copy, p.I);
      dot_rows<S>(w + begin * ldw, ldw, end - begin, copy, p.I, out_row(row) + begin, cell.far);
    }
  }
};

}  // namespace ZS_NAMESPACE
