// The forward operation: project a chunk of steps, scan it, continue with the next.
#pragma once

#include "engine/operation.h"

namespace ZS_NAMESPACE {

using zstate::ForwardArrays;
using zstate::GateProduct;

// On arrays of S. W says what weights are packed as: S, or fewer bits (small_operands.h).
template <class S, class W = S>
struct Forward : ScanBase<S, typename Elements<W>::State> {
  using Base = ScanBase<S, typename Elements<W>::State>;
  using R = RealOf<S>;
  using E = typename Elements<W>::Product;
  using StateE = typename Elements<W>::State;
  using Weight = typename Elements<W>::Stored;
  using P = Places<S, StateE>;
  using Base::cell, Base::direct, Base::GH, Base::H, Base::Hp, Base::kSame, Base::L, Base::mask, Base::p,
      Base::products, Base::stages, Base::stage_count, Base::threads, Base::units;
  using typename Base::From;
  static constexpr bool kTakesInput = true;
  static constexpr bool kQuantises = Operand<StateE>::kTail > 0;
  static constexpr bool kPlainOperands = Operand<StateE>::kPlain || kQuantises;  // values as they are
  static constexpr i64 kChunkBytes = i64{2} << 20;
  static constexpr i64 kOwnChunkBytes = i64{1} << 19;  // where a member projects what it reads

  const ForwardArrays& in;
  i64 gates_row, chunk, chunk_begin = 0;
  bool in_place, fused;
  bool reads_results;          // what R multiplies is in the results already
  bool starts_from_zero;       // nothing to multiply at the first step, as long as R is finite
  int weights_not_finite = 0;  // set by the members that find so, read after a barrier
  bool far, input_is_far;      // weights that no cache holds; projected by the caller, and as far

  Rows<const S> x[2], initial[2][zstate::kMostStates];
  Rows<S> result[2][zstate::kMostStates], z[2];
  const S* bias[2] = {};
  const Weight* weight[2] = {};
  i64 ldr = 0;
  R* chunk_gates[2] = {};
  E* packed_input[2] = {};      // for a product of its own
  StateE* tiled_input[2] = {};  // in the panels of the scan
  R* row_copy = nullptr;
  LeftOf<E>* scratch = nullptr;
  HeldOf<StateE>* operands[2][zstate::kMostOperands] = {};  // [2][N][Hp], or [N][Hp]
  LeftOf<StateE>* quantised = nullptr;                      // [members][D][operands][N][quantised_row()]
  R* kept[2][zstate::kMostStates] = {};                     // [N][Hp]
  // Set for existing stages.
  From* sources[2][zstate::kMostStages][2];  // [1]: at the first step
  From* first_sources[2];

  Forward(const Problem& problem, const ForwardArrays& arrays) : Base(problem), in(arrays) {
    for (int i = 0; i < stage_count; ++i) make_stage(i);
    fused = adds_input_by_tile();
    // Training in the type of the arithmetic: the projection goes straight into zState and is activated in
    // place.
    in_place = kSame && p.has_input_weight && in.training_state && !direct && !fused && cell.saves_last;
    gates_row = direct ? round_up(GH, L) : GH;
    const i64 step_bytes = max_of(1, zstate::size_product(p.D, p.N, gates_row, sizeof(R)));
    chunk = min_of(max_of(p.T, 1), max_of(ceil_div(kRowsBlock, max_of(p.N, 1)),
                                          (p.packed ? kOwnChunkBytes : kChunkBytes) / step_bytes));
    starts_from_zero = multiplies_zeros_first();
    this->weight_bytes = direct ? 0 : packed_bytes(*this) + fused_bytes();
    far = weights_are_far<S>(p);
    input_is_far =
        kSame && !p.has_input_weight && p.rows() * p.D * GH * static_cast<i64>(sizeof(R)) > (i64{1} << 20);
    reads_results = results_are_operands();
    this->count_program(cell.first);
    for (int i = 0; i < stage_count; ++i) this->count_program(program(i));
    for (int d = 0; d < p.D; ++d) bind(d);
    mark_paths();
  }

  const Program* program(int index) const { return cell.stages[index].programs[fused]; }

  // At most four gates of one operand to a part; a single gate's panels are several groups of units wide.
  void make_stage(int index) {
    const zstate::CellStage& from = cell.stages[index];
    Stage<StateE>& stage = stages[index];
    stage.count = 0;
    int values = 0;
    for (int k = 0; k < from.product_count; ++k) {
      const GateProduct& product = from.products[k];
      const int parts = static_cast<int>(ceil_div(product.gate_count, 4));
      for (int q = 0; q < parts; ++q) {
        const int begin = product.gate_count * q / parts, end = product.gate_count * (q + 1) / parts;
        Part<StateE>& part = stage.add();
        part.start = values, part.operand = product.operand, part.adds = false;
        if (from.product_count == 1 && product.gate_count == 1)
          make_plain(part, H, H);
        else
          make_gated(part, end - begin, p);
        for (int v = 0; v < end - begin; ++v) part.slots[v] = cell.slots[product.gates[begin + v]];
        values += end - begin;
      }
    }
    this->finish_stage(index, values);
  }
  // 0·NaN is NaN, even if the factor is a mask or a value of the first stage.
  bool multiplies_zeros_first() const {
    if (stage_count > 1 || stages[0].count == 0) return false;
    for (int k = 0; k < cell.operand_count; ++k)
      if (cell.operands[k].state < 0 || in.initial[cell.operands[k].state]) return false;
    return true;
  }

  bool results_are_operands() const {
    if (!kSame || !kPlainOperands || p.starts) return false;
    for (int k = 0; k < cell.operand_count; ++k) {
      const zstate::CellOperand& operand = cell.operands[k];
      if (operand.two_steps && (operand.state < 0 || !in.result[operand.state])) return false;
    }
    return true;
  }

  void mark_paths() const {
    if (reads_results) mark(Path::results_are_operands);
    mark(direct ? Path::forward_reads_weights_in_place : Path::forward_packs_weights);
    if (far) mark(Path::weights_exceed_cache);
    if (fused) mark(Path::input_added_per_tile);
    if (in_place) mark(Path::projects_into_training_state);
    if (!p.has_input_weight) mark(kSame ? Path::source_used_as_gates : Path::source_converted_to_gates);
    if (p.has_input_weight && buffers_gates()) mark(Path::projects_into_buffer);
    if (input_is_far) mark(Path::gates_prefetched);
    if (chunk < p.T) mark(Path::several_chunks);
    if (stage_count > 1) mark(Path::several_stages);
    if (cell.means) mark(Path::means_of_rows);
    for (int i = 0; i < stage_count; ++i)
      if (cell.stages[i].product_count > 1 || stages[i].values > 4) mark(Path::products_in_several_parts);
  }

  // Weights that stay in the second-level caches are best used there, step by step, rather than in a separate
  // product whose result must be written and read again. With one row they would be used too little. In a
  // single step of packed weights nothing is reused, and one pass over both is shorter. Decided by shape
  // alone, so results are reproducible.
  bool adds_input_by_tile() const { return may_add_by_tile() && (p.N >= 6 || (p.packed && p.T == 1)); }
  bool may_add_by_tile() const {
    if constexpr (!kSameType<StateE, R> || !kSame) return false;
    const i64 bytes = GH * (p.H + p.I) * static_cast<i64>(sizeof(R));
    const i64 most = in.training_state ? i64{3} << 19 : i64{2} << 20;  // training writes more around them
    return p.has_input_weight && !direct && cell.stages[0].programs[1] && bytes <= most;
  }

  double work() const { return operation_work(p) / Operand<E>::kSpeed; }
  // A scan that one member runs alone is not shared, and neither is its projection.
  double shared_work() const {
    const bool solo = this->split(zstate::get_num_threads()) == Split::kSolo;
    const i64 projected = p.has_input_weight && !(solo && fused) ? p.I : 0;
    return product_work(p, projected + (solo ? 0 : p.H)) / Operand<E>::kSpeed;
  }

  void bind(int d) {
    x[d] = rows_of<const S>(p, in.source, d, p.has_input_weight ? 0 : p.G * units, Order::kInput);
    for (int s = 0; s < cell.states; ++s) {
      initial[d][s] = state_rows<const S>(in.initial[s], d, units);
      result[d][s] = rows_of<S>(p, in.result[s], d, units, Order::kProcessing);
    }
    z[d] = rows_of<S>(p, in.training_state, d, p.G * units, Order::kProcessing);
    mask[d] = mask_rows<S>(p, in.mask, d);
    this->resets[d] = reset_rows<S>(p, in.resets, d);
    bias[d] = weights<S>(in.bias, d, p.G * units);
    this->bind_own(d, in.own);
    weight[d] = weight_matrix<Weight>(in.recurrent_weight, d, GH, ldr);
  }

  bool buffers_gates() const { return !(fused || in_place || (kSame && !p.has_input_weight)); }

  void lay_out(Arena& arena) {
    for (int d = 0; d < p.D; ++d) {
      if (buffers_gates()) chunk_gates[d] = arena.take<R>(chunk, p.N, gates_row);
      for (int k = 0; k < cell.operand_count; ++k)
        operands[d][k] = arena.take<HeldOf<StateE>>(1 + cell.operands[k].two_steps, p.N, Hp);
      for (int s = 0; s < cell.states; ++s)
        if (cell.keeps[s]) kept[d][s] = arena.take<R>(p.N, Hp);
      for (int i = 0; i < stage_count; ++i)
        for (From*& each : sources[d][i]) each = arena.take<From>(program(i)->place_count);
      first_sources[d] = arena.take<From>(cell.first->place_count);
    }
    this->lay_out_scan(arena);
    if (direct) {
      row_copy = arena.take<R>(threads, round_up(p.I, L));
    } else {
      if (!p.packed) lay_out_weights(arena);
      scratch = arena.take<LeftOf<E>>(threads, rows_scratch<E>(p.I));
      if (kQuantises)
        quantised =
            arena.take<LeftOf<StateE>>(threads, p.D, cell.operand_count, max_of(p.N, 1), quantised_row());
    }
    if (this->runs) set_sources();
  }
  // Packed weights. Those that are packed before any call have W in both forms.
  void lay_out_weights(Arena& arena) {
    lay_out_stages(arena, *this);
    for (int d = 0; d < p.D && p.has_input_weight; ++d) {
      if (!fused || p.packed) packed_input[d] = arena.take<E>(panels_size<E>(GH, p.I));
      if (p.packed ? may_add_by_tile() : fused) tiled_input[d] = arena.take<StateE>(tiled_size());
    }
  }
  void set_sources() {
    for (int d = 0; d < p.D; ++d) {
      for (int i = 0; i < stage_count; ++i)
        for (int first = p.T > 1 ? 0 : 1; first < 2; ++first)
          for (int k = 0; k < program(i)->place_count; ++k)
            new (sources[d][i][first] + k)
                From(source(d, i, program(i)->places[k], first ? When::kFirst : When::kLater));
      for (int k = 0; k < cell.first->place_count; ++k)
        new (first_sources[d] + k) From(source(d, 0, cell.first->places[k], When::kBefore));
    }
  }
  // A state that is kept from step to step is read from the results where it can be.
  bool state_in_results(int state) const { return kSame && !p.starts && in.result[state]; }

  enum class When { kBefore, kFirst, kLater };  // of steps
  From source(int d, int stage, const zstate::Place& place, When when) const {
    const int k = place.index;
    const i64 column = k < p.G ? cell.slots[k] * units : 0;
    switch (static_cast<PlaceKind>(place.kind)) {
      case PlaceKind::x:
        if (buffers_gates())  // then there is one head
          return P::real(chunk_gates[d] + column, kInChunk, p.N * gates_row, gates_row, false);
        return in_place ? P::rows(as_rows<const R>(z[d]), kNow, column)
                        : P::rows(as_rows<const R>(x[d]), kNow, column);
      case PlaceKind::bias:
        return this->vector_source(d, bias[d] + column, k);
      case PlaceKind::product:
        if (direct) return P::real(products[d] + k * Hp, kFixed, 0, stages[stage].values * Hp, true);
        return product_source(stages[stage], k);
      case PlaceKind::saved:
        return P::rows(z[d], kNow, column);
      case PlaceKind::initial:
        return P::rows(initial[d][k], kFixed, 0);
      case PlaceKind::state: {
        From from = P::real(kept[d][k], kFixed, 0, Hp, true);
        if (when != When::kBefore && state_in_results(k)) {
          if (when == When::kLater) from = P::rows(result[d][k], kBefore, 0);
          from.elsewhere = true;
        }
        return from;
      }
      case PlaceKind::result:
        return P::rows(result[d][k], kNow, 0);
      case PlaceKind::operand: {
        const bool two = cell.operands[k].two_steps;
        return P::elements(operands[d][k], two ? kNextHalf : kFixed, p.N * Hp, Hp, kPlainOperands || direct);
      }
      default:
        return this->common_source(d, place);
    }
  }
  static From product_source(const Stage<StateE>& stage, int value) {
    for (int q = stage.count - 1; q > 0; --q)
      if (value >= stage.parts[q].start) return part_source(stage.parts[q], value);
    return part_source(stage.parts[0], value);
  }
  static From part_source(const Part<StateE>& part, int value) {
    return P::product(part.start, part.gated ? part.vectors : 1, value - part.start);
  }

  // Of W, where a step reads it too.
  i64 fused_bytes() const { return fused ? p.D * tiled_size() * static_cast<i64>(sizeof(E)) : 0; }
  i64 tiled_size() const {
    i64 columns = 0;
    for (int q = 0; q < stages[0].count; ++q) columns += stages[0].parts[q].columns();
    return zstate::size_product(columns, L, p.I);
  }
  // Where a part of W begins among the panels of the scan.
  StateE* input_of(const Part<StateE>& part, int d) const {
    i64 columns = 0;
    for (const Part<StateE>* each = stages[0].parts; each != &part; ++each) columns += each->columns();
    return tiled_input[d] + columns * L * p.I;
  }

  // All weights of a direction: R, and W for its own product or in the panels of the scan.
  void pack_weights(const Team& team) {
    pack_stages(team, *this);
    for (int d = 0; d < p.D && p.has_input_weight; ++d) pack_input(team, d);
  }
  void pack_input(const Team& team, int d) {
    i64 ldw = 0;
    const Weight* w = weight_matrix<Weight>(in.input_weight, d, GH, ldw);
    if (packed_input[d]) {
      pack_panels_transposed<E, Weight, R>(team, packed_input[d], w, ldw, GH, p.I);
      if constexpr (kQuantises) write_input_tails(team, d, w, ldw);
    }
    if constexpr (kSameType<StateE, Weight>)
      for (int q = 0; q < stages[0].count && tiled_input[d]; ++q) {
        const Part<StateE>& part = stages[0].parts[q];
        const Range mine = share(team, part.parts());
        for (i64 k = mine.begin; k < mine.end && !team.stopped(); ++k)
          pack_rows_of(part, w, ldw, p.I, k, input_of(part, d), nullptr);
      }
  }
  void write_input_tails(const Team& team, int d, const Weight* w, i64 ldw) {
    const float* scale = scales(in.input_scale, d);
    const i64 depth = depth_of<E>(p.I);
    const Range mine = share(team, ceil_div(GH, kPanel<R>));
    for (i64 c = mine.begin; c < mine.end; ++c) {
      const i64 first = c * kPanel<R>;
      const int rows = static_cast<int>(min_of(kPanel<R>, GH - first));
      Operand<E>::write_tail(packed_input[d] + (first * packed_depth<E>(p.I) + depth * kPanel<R>), kPanel<R>,
                             0, w + first * ldw, ldw, rows, kPanel<R>, p.I, scale + first);
    }
  }
  const float* scales(const Array& a, int d) const { return static_cast<const float*>(a.data) + d * GH; }

  // One piece of a part's panels of R.
  void pack_part(const Part<StateE>& part, int d, i64 piece, StateE* packed) {
    const float* scale = kQuantises ? scales(in.recurrent_scale, d) : nullptr;
    const Piece rows = pack_rows_of(part, weight[d], ldr, part.length, piece, packed, scale);
    if constexpr (!kQuantises)
      if (starts_from_zero || p.packed) check_weights(rows.first, rows.count);
  }
  struct Piece {  // the rows of a weight that make one
    const Weight* first;
    int count;
  };
  Piece pack_rows_of(const Part<StateE>& part, const Weight* from, i64 ld, i64 length, i64 piece,
                     StateE* packed, const float* scale) const {
    const i64 panel = part.panel_of(piece), begin = part.begin(panel), width = part.width(panel) * L;
    const int v = static_cast<int>(piece - begin);
    const i64 u = part.gated ? panel * L : piece * L;
    const i64 row = part.slots[part.gated ? v : 0] * H + u;
    const Piece rows{from + row * ld, lanes_at<R>(u, H)};
    StateE* to = packed + begin * packed_depth<StateE>(length) * L;
    int at = v * L, lanes = L;
    if (!part.narrow(panel)) {
      pack_transposed(to + at, width, rows.first, ld, rows.count, length);
    } else {  // gate after gate, and zeros behind the last one
      at = v * rows.count;
      lanes = static_cast<int>(v + 1 < part.vectors ? rows.count : min_of(L, width - at));
      pack_lanes_transposed(to + at, width, rows.first, ld, rows.count, lanes, length);
    }
    if constexpr (kQuantises)
      Operand<StateE>::write_tail(to + depth_of<StateE>(length) * width, width, at, rows.first, ld,
                                  rows.count, lanes, length, scale + row);
    return rows;
  }
  // 0·NaN is NaN: looks at rows of R that the first step would leave out.
  void check_weights(const Weight* rows, i64 count) {
    if (!all_finite(rows, ldr, count, H)) __atomic_store_n(&weights_not_finite, 1, __ATOMIC_RELAXED);
  }

  void run(const Team& team) {
    if (!direct) {
      if (!p.packed) pack_weights(team);
    } else if constexpr (!kQuantises) {
      const Range mine = share(team, GH);
      for (int d = 0; d < p.D && starts_from_zero; ++d)
        check_weights(weight[d] + mine.begin * ldr, mine.end - mine.begin);
    }
    initialise(team);
    team.barrier();
    for (i64 s = 0; s < p.T && !team.stopped(); s += chunk) {
      const i64 steps = min_of(chunk, p.T - s);
      if (team.rank == 0) chunk_begin = s;
      for (int d = 0; d < p.D && !fused; ++d) project(team, d, s, steps);
      team.barrier();
      if (team.stopped()) return;  // the projection may not be there
      scan(*this, team, s, steps, 1);
    }
    if (p.packed && !team.stopped()) keep_last(team);
  }

  // The states after the last step of every row.
  void keep_last(const Team& team) const {
    const Range mine = share(team, p.N);
    for (int d = 0; d < p.D; ++d)
      for (int k = 0; k < cell.states; ++k) {
        const Rows<S> to = state_rows<S>(in.last[k], d, H);
        const bool from_kept = cell.keeps[k] && !state_in_results(k);
        for (i64 n = mine.begin; n < mine.end && to; ++n)
          if (from_kept)
            convert_out<S>(kept[d][k] + n * Hp, to.at(0, n), H);
          else
            std::memcpy(to.at(0, n), result[d][k].at(last_step(n, d), n),
                        sizeof(S) * static_cast<std::size_t>(H));
      }
  }
  i64 last_step(i64 n, int d) const {
    i64 s = p.T - 1;
    while (s > 0 && absent(p, d, s, n)) --s;
    return s;
  }

  void initialise(const Team& team) {
    const bool copies = !this->vectors_in_place();
    const Range mine = share(team, p.N);
    R* own_scratch = this->runs + team.rank * this->run_size;
    for (int d = 0; d < p.D; ++d) {
      for (int g = 0; g < p.G && copies && bias[d]; ++g)
        this->copy_vector(team, d, bias[d] + cell.slots[g] * units, g);
      for (int k = 0; k < cell.own && copies; ++k)
        this->copy_vector(team, d, this->own_vector(d, k), cell.gates + k);
      // All rows whose first step is the same; the step before it makes its operands.
      if (copies && cell.own) team.barrier();
      for (i64 n = mine.begin, next; n < mine.end; n = next) {
        const i64 begin = first_step(p, d, n);
        for (next = n + 1; next < mine.end && (!p.starts || first_step(p, d, next) == begin);) ++next;
        i64 counters[kCounters] = {};
        counters[kNextStep] = begin, counters[kNextHalf] = begin & 1;
        Block<R> block{counters, n, 0, static_cast<int>(next - n), 0, 0, nullptr, 0, 0, 0, 0, false};
        this->run_blocks(*cell.first, first_sources[d], block, ceil_div(H, L), own_scratch);
      }
    }
  }

  // x W^T for steps [s, s + steps), unless x came projected.
  void project(const Team& team, int d, i64 s, i64 steps) {
    if (kSame && !p.has_input_weight) return;
    Rows<R> out{chunk_gates[d], p.N * gates_row, gates_row, nullptr};
    if (in_place) out = as_rows<R>(z[d]);
    const i64 first = in_place ? 0 : s;
    const Range span = rows_between(p, d, s, steps);
    const i64 rows = span.end - span.begin;
    const auto out_row = [&](i64 row) {
      const Place at = place_of(p, d, span.begin + row);
      return out.at(at.s - first, at.n);
    };
    const auto in_row = [&](i64 row) {
      const Place at = place_of(p, d, span.begin + row);
      return x[d].at(at.s, at.n);
    };
    if (!p.has_input_weight) {
      const Range mine = share(team, rows);
      for (i64 row = mine.begin; row < mine.end; ++row) convert_in<S>(in_row(row), out_row(row), GH);
    } else if (direct) {
      if constexpr (kSameType<Weight, S>) project_directly(team, d, rows, in_row, out_row);
    } else {
      const auto load = [&](i64 row) { return reader<S>(in_row(row)); };
      LeftOf<E>* own = scratch + team.rank * rows_scratch<E>(p.I);
      if (p.packed && !p.starts && this->split(team.size) == Split::kBatch)
        project_own_rows(team, d, s, steps, own);
      else if (p.packed && this->split(team.size) == Split::kUnits)
        project_own_units(team, d, rows, load, out_row, own);
      else
        multiply_rows(team, rows, p.I, GH, load, packed_input[d], out_row, false, own);
    }
  }
  // A member reads in the scan what it projected itself: fetching a cache line that another core wrote takes
  // longer than the whole integer computation on it.
  void project_own_rows(const Team& team, int d, i64 s, i64 steps, LeftOf<E>* own) {
    const Range mine = share(team, p.N);
    const i64 count = mine.end - mine.begin;
    if (count == 0) return;
    const Rows<R> out{chunk_gates[d], p.N * gates_row, gates_row, nullptr};
    const auto out_row = [&](i64 row) { return out.at(row / count, mine.begin + row % count); };
    const auto load = [&](i64 row) { return reader<S>(x[d].at(s + row / count, mine.begin + row % count)); };
    const Range all{0, ceil_div(GH, kPanel<R>)};
    multiply_part(team, Range{0, steps * count}, &all, 1, p.I, GH, load, packed_input[d], out_row, false,
                  own);
  }
  // Of each gate, the panels whose middle is among a member's units.
  template <class Load, class OutRow>
  void project_own_units(const Team& team, int d, i64 rows, const Load& load, const OutRow& out_row,
                         LeftOf<E>* own) {
    const i64 panels = ceil_div(GH, kPanel<R>);
    Range ranges[zstate::kMostGates];
    const auto first_panel = [&](i64 column) {
      return min_of(panels, ceil_div(max_of(column - kPanel<R> / 2, 0), kPanel<R>));
    };
    const Range mine = share(team, H);
    for (int g = 0; g < p.G; ++g)
      ranges[g] = {first_panel(g * H + mine.begin), first_panel(g * H + mine.end)};
    if (team.rank == team.size - 1) ranges[p.G - 1].end = panels;
    multiply_part(team, Range{0, rows}, ranges, static_cast<int>(p.G), p.I, GH, load, packed_input[d],
                  out_row, false, own);
  }

  template <class InRow, class OutRow>
  void project_directly(const Team& team, int d, i64 rows, const InRow& in_row, const OutRow& out_row) {
    i64 ldw = 0;
    const S* w = weight_matrix<S>(in.input_weight, d, GH, ldw);
    R* copy = row_copy + team.rank * round_up(p.I, L);
    const Range mine = share(team, ceil_div(GH, L));
    const i64 begin = mine.begin * L, end = min_of(mine.end * L, GH);
    for (i64 row = 0; row < rows; ++row) {
      convert_in<S>(in_row(row), copy, p.I);
      dot_rows<S>(w + begin * ldw, ldw, end - begin, copy, p.I, out_row(row) + begin, far);
    }
  }

  // ---- for the scan ----

  i64 rows_at(int d, i64 s) const { return batch_at(p, d, s); }
  i64 product_rows(int, int, i64 s) const {
    return s > 0 || !starts_from_zero || __atomic_load_n(&weights_not_finite, __ATOMIC_RELAXED) ? p.N : 0;
  }
  const LeftOf<StateE>* operand(int, const Part<StateE>& part, int d, i64 s, int rank, i64& lda) const {
    if constexpr (kQuantises) {
      lda = quantised_row();
      return quantised_rows(part.operand, d, rank);
    } else {
      return held(part.operand, d, s, lda);
    }
  }
  const HeldOf<StateE>* held(int number, int d, i64 s, i64& lda) const {
    const zstate::CellOperand& from = cell.operands[number];
    if (reads_results && from.two_steps && s > 0) {
      const Rows<S>& rows = result[d][from.state];
      lda = rows.row;
      return reinterpret_cast<const HeldOf<StateE>*>(rows.at(s - 1, 0));
    }
    lda = Hp;
    return operands[d][number] + (from.two_steps ? (s & 1) * p.N * Hp : 0);
  }
  i64 quantised_row() const { return round_up(depth_of<StateE>(H) + 1, 16); }
  LeftOf<StateE>* quantised_rows(int number, int d, int rank) const {
    return quantised + ((rank * p.D + d) * cell.operand_count + number) * p.N * quantised_row();
  }
  // What a stage multiplies, of the rows that a member works on, as integers of its own.
  void quantise(int index, int d, i64 s, Range rows, int rank) const {
    const i64 end = min_of(rows.end, product_rows(index, d, s));
    const Stage<StateE>& stage = stages[index];
    for (int q = 0; q < stage.count; ++q) {
      const int number = stage.parts[q].operand;
      if (q > 0 && number == stage.parts[q - 1].operand) continue;
      i64 lda;
      const R* from = held(number, d, s, lda);
      LeftOf<StateE>* to = quantised_rows(number, d, rank);
      for (i64 n = rows.begin; n < end; ++n)
        Operand<StateE>::quantise(to + n * quantised_row(), depth_of<StateE>(H), H,
                                  reader<R>(from + n * lda));
    }
  }
  // The products of one stage without packed weights, for hidden units [begin, end).
  void direct_product(int index, int d, i64 s, i64 begin, i64 end) const {
    if constexpr (kSameType<Weight, S>) multiply_directly(index, d, s, begin, end);
  }
  void multiply_directly(int index, int d, i64 s, i64 begin, i64 end) const {
    const Stage<StateE>& stage = stages[index];
    const bool zero = product_rows(index, d, s) == 0;
    for (i64 n = 0; n < p.N; ++n)
      for (int q = 0; q < stage.count; ++q) {
        const Part<StateE>& part = stage.parts[q];
        i64 lda;
        const R* a = reinterpret_cast<const R*>(held(part.operand, d, s, lda) + n * lda);
        for (int v = 0; v < (part.gated ? part.vectors : 1); ++v) {
          R* to = products[d] + (n * stage.values + part.start + v) * Hp + begin;
          if (zero)
            std::memset(to, 0, sizeof(R) * static_cast<std::size_t>(end - begin));
          else
            dot_rows<S>(weight[d] + (part.slots[v] * H + begin) * ldr, ldr, end - begin, a, H, to, far);
        }
      }
  }

  // Adds x W^T of a tile's rows to the tile.
  void add_input(const Part<StateE>& part, int d, i64 s, i64 panel, i64 row, int rows, R* tile,
                 i64 ld) const {
    if constexpr (kSameType<StateE, S>) {  // other types are projected beforehand
      const int vectors = part.width(panel);
      const auto product = step_kernel<StateE>(vectors, rows, false);
      product(p.I, reinterpret_cast<const StateE*>(x[d].at(s, row)), x[d].row,
              input_of(part, d) + part.begin(panel) * p.I * L, vectors * L, tile, ld, true, {});
    }
  }
  // Prefetches x's part of some tiles: one or a few lines of each of many rows, where the hardware sees no
  // pattern.
  void prefetch_input(int index, int d, i64 s, i64 group, i64 groups, i64 row, i64 rows) const {
    const Stage<StateE>& stage = stages[index];
    for (i64 r = 0; r < rows; ++r) {
      const S* from = x[d].at(s, row + r);
      for (int q = 0; q < stage.count; ++q)
        for (int v = 0; v < (stage.parts[q].gated ? stage.parts[q].vectors : 1); ++v)
          for (i64 u = group; u < group + groups; ++u)
            __builtin_prefetch(from + stage.parts[q].slots[v] * units + u * L);
    }
  }

  void apply(int index, int d, i64 s, i64 row, int rows, i64 group, int groups, R* tile, int rank) const {
    i64 counters[kCounters] = {};
    counters[kNow] = p.starts ? dense_row(p, d, s) : s;
    counters[kBefore] = s - 1;
    counters[kStep] = s, counters[kNextStep] = min_of(s + 1, p.T - 1);
    counters[kInChunk] = s - chunk_begin, counters[kNextHalf] = (s + 1) & 1, counters[kMember] = rank;
    Block<R> block{counters, row,  group * L, rows, 0, 0,
                   tile,     rows, groups,    0,    0, reads_results || s + 1 == p.T};
    this->run_blocks(*program(index), sources[d][index][s == 0], block, groups,
                     this->runs + rank * this->run_size);
  }
};

}  // namespace ZS_NAMESPACE
