// The gradient operation: scan backwards for the gates' gradient, then contract it with what the weights
// multiplied.
#pragma once

#include "engine/backward.h"
#include "engine/operation.h"

namespace ZS_NAMESPACE {

using zstate::BackwardArrays;

// A call without rows: the gradients of the weights are zero, those of the states are what comes from
// outside.
template <class S>
void backward_without_rows(const Problem& p, const BackwardArrays& in) {
  const i64 GH = p.G * p.H;
  const auto clear = [](const Array& to, i64 count) {
    if (to) std::memset(to.data, 0, sizeof(S) * static_cast<std::size_t>(count));
  };
  clear(in.d_recurrent, p.D * GH * p.H);
  clear(in.d_input, p.D * GH * p.I);
  clear(in.d_bias, p.D * GH);
  clear(in.d_peephole, p.D * GH);
  clear(in.d_secondary, p.D * p.H);
  const auto pass_on = [&](const Array& from, const Array& to) {
    const Rows<const S> source = state_rows<const S>(from.rank == 2 ? from : Array{}, 0, 0);
    const Rows<S> target = state_rows<S>(to, 0, 0);
    const std::size_t bytes = sizeof(S) * static_cast<std::size_t>(p.D * p.H);
    for (i64 n = 0; n < p.N && target; ++n)
      source ? std::memcpy(target.at(0, n), source.at(0, n), bytes) : std::memset(target.at(0, n), 0, bytes);
  };
  pass_on(in.state_gradient, in.d_state);
  pass_on(in.cell_gradient, in.d_cell);
}

template <class S>
struct BackwardOp {
  using R = RealOf<S>;
  using E = typename Elements<S>::Product;
  static constexpr bool kSame = sizeof(S) == sizeof(R);
  static constexpr int L = Simd<R>::lanes;

  const Problem& p;
  const BackwardArrays& in;
  Backward<S>& cell;
  int threads = 1;
  i64 GH, H;
  bool direct, recomputes;
  i64 term_at;  // the recomputed gate, along the G axis
  Rows<const S> x[2];
  Rows<S> dx_rows[2];
  E* packed[2][2] = {};
  E *packed_input[2] = {}, *packed_recomputed[2] = {};
  E *row_scratch = nullptr, *outer_scratch = nullptr, *outer_b = nullptr;
  R *dx_chunk = nullptr, *direct_scratch = nullptr;
  // The gradients of the weights in the type of the arithmetic: the outputs themselves, or scratch.
  R *dR = nullptr, *dW = nullptr, *db = nullptr, *db2 = nullptr, *dp = nullptr;

  BackwardOp(const Problem& problem, const BackwardArrays& arrays, Backward<S>& state)
      : p(problem),
        in(arrays),
        cell(state),
        GH(p.G * p.H),
        H(p.H),
        direct(reads_weights_directly(p)),
        recomputes(cell.facts->recomputed >= 0),
        term_at(recomputes ? cell.facts->recomputed : 0) {
    cell.direct = direct;
    cell.weight_bytes = direct ? 0 : packed_bytes(cell);
    for (int d = 0; d < p.D; ++d) bind(d);
    mark_paths();
  }

  void mark_paths() const {
    mark(direct ? Path::backward_reads_weights_in_place : Path::backward_packs_weights);
    if (weights_are_far<S>(p)) mark(Path::weights_exceed_cache);
    if (p.has_input_weight)
      mark(kSame ? Path::gradient_of_source_in_one : Path::gradient_of_source_in_chunks);
    else
      mark(kSame ? Path::gradient_of_gates_is_of_source : Path::gradient_of_gates_copied_to_source);
    if (needs_recurrent_buffer()) mark(Path::gradient_through_buffer);
    if (no_history()) mark(Path::no_history);
    if (!kSame) mark(Path::gradients_converted);
  }

  double work() const { return 2 * operation_work(p); }
  // All but a scan that one member runs.
  double shared_work() const {
    const bool solo = cell.split(zstate::get_num_threads()) == Split::kSolo;
    return work() - (solo ? product_work(p, p.H) : 0);
  }

  void bind(int d) {
    const i64 x_width = p.has_input_weight ? 0 : GH;
    x[d] = rows_of<const S>(p, in.source, d, x_width, Order::kInput);
    dx_rows[d] = rows_of<S>(p, in.d_source, d, x_width, Order::kInput);
    cell.dy[d] = rows_of<const S>(p, in.source_gradient, d, H, Order::kProcessing);
    cell.z[d] = rows_of<const S>(p, in.training_state, d, GH, Order::kProcessing);
    cell.c[d] = rows_of<const S>(p, in.cell_fwd, d, H, Order::kProcessing);
    cell.h[d] = rows_of<const S>(p, in.state_fwd, d, H, Order::kProcessing);
    cell.ds[d] = state_rows<const S>(in.state_gradient, d, H);
    if (in.cell_gradient.rank == 3 || p.starts)
      cell.dc_steps[d] = rows_of<const S>(p, in.cell_gradient, d, H, Order::kProcessing);
    else
      cell.dc_last[d] = state_rows<const S>(in.cell_gradient, d, H);
    cell.h0[d] = state_rows<const S>(in.init_state, d, H);
    cell.c0[d] = state_rows<const S>(in.init_cell, d, H);
    cell.mask[d] = mask_rows<S>(p, in.mask, d);
    cell.peephole[d] = weights<S>(in.peephole, d, in.peephole.rank == 2 ? in.peephole.strides[0] : GH);
    cell.b2[d] = weights<S>(in.secondary_bias, d, H);
    cell.R[d] = weight_matrix<S>(in.recurrent_weight, d, GH, cell.ldr);
    cell.dh0[d] = state_rows<S>(in.d_state, d, H);
    cell.dc0[d] = state_rows<S>(in.d_cell, d, H);
  }

  // What R sees differs from the gates' gradient, or has other elements.
  bool needs_recurrent_buffer() const { return cell.recurrent_differs || (!Operand<E>::kPlain && !direct); }
  bool gates_are_dx() const { return kSame && !p.has_input_weight; }
  // Whether dx is a product with W, and wanted.
  bool multiplies_dx() const { return p.has_input_weight && in.d_source; }
  i64 dx_chunk_rows() const { return min_of(max_of(p.rows(), 1), 4 * kRowsBlock); }

  void lay_out(Arena& arena) {
    for (int d = 0; d < p.D; ++d) {
      if (gates_are_dx())
        cell.dgates[d] = as_rows<R>(dx_rows[d]);
      else
        cell.dgates[d] = dense_rows(p, arena.take<R>(p.rows(), GH), d, GH);
      cell.carry[d] = arena.take<R>(p.N, cell.Hp);
      if (needs_recurrent_buffer()) cell.recurrent[d] = arena.take<E>(2, p.N, GH);
      if (recomputes && !direct) packed_recomputed[d] = arena.take<E>(panels_size<E>(H, H));
      if (direct) cell.products[d] = arena.take<R>(p.N, cell.Hp);
      if (multiplies_dx() && !direct) packed_input[d] = arena.take<E>(panels_size<E>(p.I, GH));
    }
    if (!direct) lay_out_stages(arena, cell, packed);
    if (direct) {
      direct_scratch = arena.take<R>(threads, direct_size());
    } else {
      row_scratch = arena.take<E>(threads, kRowsScratch<R>);
      outer_scratch = arena.take<E>(threads, kOuterScratch<R>);
      const i64 panels = recurrent_parts() * ceil_div(H, kPanel<R>) + ceil_div(p.I, kPanel<R>);
      outer_b = arena.take<E>(2 * min_of(kOuterDepth, p.rows()), panels, kPanel<R>);
    }
    if (!kSame && multiplies_dx()) dx_chunk = arena.take<R>(dx_chunk_rows(), p.I);
    dR = gradient(arena, in.d_recurrent, zstate::size_product(p.D, GH, H));
    dW = gradient(arena, in.d_input, zstate::size_product(p.D, GH, p.I));
    db = gradient(arena, in.d_bias, p.D * GH);
    db2 = gradient(arena, in.d_secondary, p.D * H);
    dp = gradient(arena, in.d_peephole, p.D * GH);
  }
  // How many of the products' operands come from the state.
  i64 recurrent_parts() const {
    i64 parts = 1;
    for (const GateBand& band : cell.facts->bands.list) parts += band.recurrent == Seen::kResetState;
    return parts;
  }
  // A member's operands of direct products: rows of x or h, and of the gates' gradient.
  i64 direct_size() const { return p.T * p.N * (round_up(max_of(p.I, H), L) + round_up(GH, L)); }
  R* gradient(Arena& arena, const Array& out, i64 count) {
    if (!out) return nullptr;
    return kSame ? static_cast<R*>(out.data) : arena.take<R>(count);
  }

  void run(const Team& team) {
    pack(team);
    initialise(team);
    team.barrier();
    if (recomputes) {
      for (int d = 0; d < p.D; ++d) recompute_term(team, d);
      team.barrier();
    }
    const bool states = in.d_state || in.d_cell;
    scan(cell, team, p.T - 1, p.T + (states ? 1 : 0), -1);
    for (int d = 0; d < p.D && !team.stopped(); ++d) contract_weights(team, d);
    contract_source(team);
    team.barrier();
    if (!kSame) convert_gradients(team);
  }

  void pack(const Team& team) {
    if (!direct) pack_stages(team, cell, packed);
    for (int d = 0; d < p.D; ++d) {
      i64 ld = 0;
      if (recomputes && !direct)
        pack_panels_transposed(team, packed_recomputed[d], cell.R[d] + term_at * H * cell.ldr, cell.ldr, H,
                               H);
      if (multiplies_dx() && !direct) {
        const S* w = weight_matrix<S>(in.input_weight, d, GH, ld);
        pack_panels_straight(team, packed_input[d], w, ld, p.I, GH);
      }
    }
  }

  void initialise(const Team& team) {
    const Range mine = share(team, p.N);
    for (int d = 0; d < p.D; ++d)
      for (i64 n = mine.begin; n < mine.end; ++n) {
        for (i64 s = 0; s < 2 && cell.recurrent[d] && !direct; ++s)
          Operand<E>::end(cell.recurrent_at(d, s) + n * GH, GH);
        for (i64 u = 0; u < H; u += L) {
          const int lanes = lanes_at<R>(u, H);
          const Vec<R> first =
              cell.dc_last[d] ? Io<S>::load_n(cell.dc_last[d].at(0, n) + u, lanes) : Vec<R>{};
          Io<R>::store(cell.carry[d] + n * cell.Hp + u, first);
        }
      }
  }

  // (h[t-1]·m)R^T of one gate and every step in one product, into the gate's place in dgates, where the scan
  // reads it and then overwrites it.
  void recompute_term(const Team& team, int d) {
    const auto load = [&](i64 row, i64 k, int lanes) {
      const Place at = place_of(p, d, row);
      return cell.masked_before(d, at.s, at.n, k, lanes);
    };
    const auto out = [&](i64 row) {
      const Place at = place_of(p, d, row);
      return cell.dgates[d].at(at.s, at.n) + term_at * H;
    };
    if (direct) return recompute_directly(team, d, load, out);
    multiply_rows(team, p.rows(), H, H, load, packed_recomputed[d], out, false,
                  row_scratch + team.rank * kRowsScratch<R>);
  }

  template <class Load, class Out>
  void recompute_directly(const Team& team, int d, const Load& load, const Out& out) {
    const Range mine = share(team, ceil_div(H, L));
    const i64 begin = mine.begin * L, end = min_of(mine.end * L, H);
    R *before = direct_scratch + team.rank * direct_size(), *term = before + round_up(H, L);
    for (i64 row = 0; row < p.T * p.N && begin < end; ++row) {
      for (i64 k = 0; k < H; k += L) Io<R>::store(before + k, load(row, k, lanes_at<R>(k, H)));
      dot_rows<S>(cell.R[d] + (term_at * H + begin) * cell.ldr, cell.ldr, end - begin, before, H, term,
                  weights_are_far<S>(p));
      std::memcpy(out(row) + begin, term, sizeof(R) * static_cast<std::size_t>(end - begin));
    }
  }

  // dR, dW, db, db2 and dp of one direction.
  void contract_weights(const Team& team, int d) {
    const Contraction c = contraction(d);
    if (c.band_count > 0) multiply(team, d, c);
    if (no_history()) contract_nothing(team, d);
    if (dp) contract_peephole(team, d);
  }
  // Then R multiplied zeros alone.
  bool no_history() const { return p.T == 1 && !in.init_state && !in.mask; }
  // dR = dgates·0: zero, or NaN where the gates' gradient is not finite.
  void contract_nothing(const Team& team, int d) {
    const Range mine = share(team, ceil_div(GH, L));
    for (i64 g = mine.begin * L; g < min_of(mine.end * L, GH); g += L) {
      const int lanes = lanes_at<R>(g, GH);
      Vec<R> sum{};
      for (i64 n = 0; n < p.N; ++n) sum += Io<R>::load_n(cell.dgates[d].at(0, n) + g, lanes) * R{0};
      for (int i = 0; i < lanes; ++i) {
        R* row = dR + (d * GH + g + i) * H;
        for (i64 u = 0; u < H; u += L) Io<R>::store_n(row + u, broadcast<R>(sum[i]), lanes_at<R>(u, H));
      }
    }
  }

  // What the gradients of one direction's weights are products of: the gates' gradient by bands of gates, and
  // as parts what W and R multiplied.
  struct Contraction {
    OuterPart<R> part[3];
    OuterBand<R> bands[3];
    int parts = 0, band_count = 0;
    int input = -1, reset = -1;  // which part is x, and which is h[t-1] with the reset gate
    int scaled = -1;             // the band of a gates' gradient with the reset gate
  };
  Contraction contraction(int d) {
    Contraction c;
    const auto part = [&](i64 columns, R* to) {
      c.part[c.parts] = {columns, to, columns};
      return c.parts++;
    };
    const auto band = [&](i64 begin, i64 end, unsigned parts, R* sums) {
      if (parts || sums) c.bands[c.band_count++] = {begin, end, parts, sums};
    };
    unsigned x = 0, h = 0;
    if (dW) x = 1u << (c.input = part(p.I, dW + d * GH * p.I));
    if (!no_history()) h = 1u << part(H, dR + d * GH * H);
    for (const GateBand& gates : cell.facts->bands.list) {
      if (gates.begin == gates.end) continue;
      unsigned seen = gates.recurrent == Seen::kState ? h : 0;
      if (gates.recurrent == Seen::kResetState && h) seen = 1u << (c.reset = part(H, dR + d * GH * H));
      if (!gates.input) c.scaled = c.band_count;
      if (gates.input)
        band(gates.begin * H, gates.end * H, x | seen, db ? db + d * GH + gates.begin * H : nullptr);
      else
        band(gates.begin * H, gates.end * H, seen, db2 ? db2 + d * H : nullptr);
    }
    return c;
  }

  // For the bands and the parts that carry it.
  ZS_DEVICE Vec<R> reset_gate(int d, i64 s, i64 n, i64 u, int lanes) const {
    return cell.gate(d, s, n, u, lanes, cell.facts->reset);
  }

  void multiply(const Team& team, int d, const Contraction& c) {
    const auto load_a = [&](int band, i64 k, i64 m0, i64 m, R* dst) {
      const auto [s, n] = place_of(p, d, k);
      const R* row = cell.dgates[d].at(s, n) + m0;
      if (band != c.scaled) return copy_row_part(row, dst, m, 6 * cell.dgates[d].row);
      for (i64 i = 0; i < m; i += L) {
        const int lanes = lanes_at<R>(i, m);
        const Vec<R> reset = reset_gate(d, s, n, m0 - c.bands[band].begin + i, lanes);
        Io<R>::store_n(dst + i, Io<R>::load_n(row + i, lanes) * reset, lanes);
      }
    };
    const auto load_b = [&](int part, i64 k, i64 j, int lanes) -> Vec<R> {
      if (lanes == 0) return Vec<R>{};
      const auto [s, n] = place_of(p, d, k);
      if (part == c.input) return Io<S>::load_n(x[d].at(s, n) + j, lanes);
      const Vec<R> before = cell.masked_before(d, s, n, j, lanes);
      return part == c.reset ? before * reset_gate(d, s, n, j, lanes) : before;
    };
    if (direct) {
      for (int band = 0; band < c.band_count; ++band)
        outer_directly(team, c, band, load_a, load_b, direct_scratch + team.rank * direct_size());
      return;
    }
    multiply_outer(team, p.rows(), c.bands, c.band_count, c.part, c.parts, load_a, load_b, outer_b,
                   outer_scratch + team.rank * kOuterScratch<R>);
    team.barrier();  // the next call packs into the same shared scratch
  }

  // One band, for so few steps that nothing is worth packing.
  template <class LoadA, class LoadB>
  void outer_directly(const Team& team, const Contraction& c, int band, const LoadA& load_a,
                      const LoadB& load_b, R* scratch) {
    const auto [first, last, has, band_sums] = c.bands[band];
    const Range mine = share(team, last - first);
    const i64 begin = first + mine.begin, rows = mine.end - mine.begin;
    R* sums = band_sums ? band_sums + mine.begin : nullptr;
    const i64 K = p.T * p.N, lda = round_up(GH, L), ldb = round_up(max_of(p.I, H), L);
    R *a = scratch, *b = scratch + K * lda;
    for (i64 k = 0; k < K; ++k) load_a(band, k, begin, rows, a + k * lda);
    for (i64 m = 0; m < rows && sums; ++m) {
      sums[m] = 0;
      for (i64 k = 0; k < K; ++k) sums[m] += a[k * lda + m];
    }
    for (int i = 0; i < c.parts; ++i) {
      if (!(has >> i & 1)) continue;
      const OuterPart<R>& part = c.part[i];
      for (i64 k = 0; k < K; ++k)
        for (i64 j = 0; j < part.columns; j += L)
          Io<R>::store(b + k * ldb + j, load_b(i, k, j, lanes_at<R>(j, part.columns)));
      outer_rows(K, a, lda, rows, b, ldb, part.columns, part.c + begin * part.ldc, part.ldc);
    }
  }

  // dp = sum of dgates·c[t-1], or of dgates·c[t] where a gate sees the new cell; every member owns some
  // units.
  void contract_peephole(const Team& team, int d) {
    const int sees_new_cell = cell.facts->sees_new_cell;
    const Range mine = share(team, ceil_div(H, L));
    for (i64 i = mine.begin; i < mine.end; ++i) {
      const i64 u = i * L;
      const int lanes = lanes_at<R>(u, H);
      Vec<R> sum[4] = {};
      for (i64 s = 0; s < p.T; ++s)
        for (i64 n = 0; n < batch_at(p, d, s); ++n) {
          const Vec<R> before = cell.c_before(d, s, n, u, lanes);
          Vec<R> seen[4] = {before, before, before, before};
          if (sees_new_cell >= 0) seen[p.slots[sees_new_cell]] = Io<S>::load_n(cell.c[d].at(s, n) + u, lanes);
          for (int k = 0; k < 4; ++k)
            sum[k] += seen[k] * Io<R>::load_n(cell.dgates[d].at(s, n) + k * H + u, lanes);
        }
      for (int k = 0; k < 4; ++k) Io<R>::store_n(dp + d * GH + k * H + u, sum[k], lanes);
    }
  }

  // dx = dgates W, or dgates itself where there is no W.
  void contract_source(const Team& team) {
    if (gates_are_dx() || p.rows() == 0) return;
    if (!p.has_input_weight) return copy_gates_to_dx(team);
    if (!multiplies_dx()) return;
    if constexpr (kSame) {
      multiply_source(team, {0, p.rows()}, static_cast<R*>(in.d_source.data));
    } else {
      const i64 chunk = dx_chunk_rows();
      for (i64 row = 0; row < p.rows() && !team.stopped(); row += chunk) {
        const i64 end = min_of(row + chunk, p.rows());
        multiply_source(team, {row, end}, dx_chunk);
        team.barrier();
        const Range mine = share(team, (end - row) * p.I);
        convert_out<S>(dx_chunk + mine.begin, static_cast<S*>(in.d_source.data) + row * p.I + mine.begin,
                       mine.end - mine.begin);
        team.barrier();
      }
    }
  }

  // Rows of the input, of which out[0] is the first; both directions meet at one, whatever their processing
  // order.
  void multiply_source(const Team& team, Range rows, R* out) {
    const i64 count = rows.end - rows.begin;
    for (int d = 0; d < p.D; ++d) {
      const bool backwards = runs_backwards(p, d, Order::kInput);
      const auto gates_row = [&](i64 row) {
        Place at = place_of(p, d, rows.begin + row);
        if (!p.starts && backwards) at.s = p.T - 1 - at.s;
        return cell.dgates[d].at(at.s, at.n);
      };
      const auto out_row = [&](i64 row) { return out + row * p.I; };
      if (direct) {
        i64 ldw = 0;
        const S* w = weight_matrix<S>(in.input_weight, d, GH, ldw);
        const Range mine = share(team, ceil_div(p.I, L));
        const i64 begin = mine.begin * L, end = min_of(mine.end * L, p.I);
        for (i64 row = 0; row < count; ++row)
          weighted_rows<S>(w, ldw, begin, end, gates_row(row), GH, out_row(row) + begin, d > 0);
        continue;
      }
      const auto load = [&](i64 row, i64 k, int lanes) { return Io<R>::load_n(gates_row(row) + k, lanes); };
      // The members' rows are the same for both directions, so the second may add to the first without a
      // barrier.
      multiply_rows(team, count, GH, p.I, load, packed_input[d], out_row, d > 0,
                    row_scratch + team.rank * kRowsScratch<R>);
    }
  }

  void copy_gates_to_dx(const Team& team) {
    const Range mine = share(team, p.rows());
    for (int d = 0; d < p.D; ++d)
      for (i64 row = mine.begin; row < mine.end; ++row) {
        const auto [s, n] = place_of(p, d, row);
        convert_out<S>(cell.dgates[d].at(s, n), dx_rows[d].at(s, n), GH);
      }
  }

  void convert_gradients(const Team& team) {
    const auto convert = [&](const R* from, const Array& to, i64 count) {
      if (!to) return;
      const Range mine = share(team, count);
      convert_out<S>(from + mine.begin, static_cast<S*>(to.data) + mine.begin, mine.end - mine.begin);
    };
    convert(dR, in.d_recurrent, p.D * GH * H);
    convert(dW, in.d_input, p.D * GH * p.I);
    convert(db, in.d_bias, p.D * GH);
    convert(db2, in.d_secondary, p.D * H);
    convert(dp, in.d_peephole, p.D * GH);
  }
};

}  // namespace ZS_NAMESPACE
