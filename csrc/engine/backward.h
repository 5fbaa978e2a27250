// The gradient operation: scan backwards for the gates' gradient, then contract it with what the weights
// multiplied.
#pragma once

#include "engine/operation.h"

namespace ZS_NAMESPACE {

using zstate::BackwardArrays;
using zstate::GateOperand;

// A call without rows: the gradients of the weights are zero, and those of the states are the incoming ones.
template <class S>
void backward_without_rows(const Problem& p, const BackwardArrays& in) {
  const i64 units = p.units(), all = p.G * units;
  const zstate::CellProgram& cell = *p.cell;
  const auto clear = [](const Array& to, i64 count) {
    if (to) std::memset(to.data, 0, sizeof(S) * static_cast<std::size_t>(count));
  };
  clear(in.d_recurrent, p.D * all * p.H);
  clear(in.d_input, p.D * all * p.I);
  clear(in.d_bias, p.D * all);
  for (int k = 0; k < cell.own; ++k)
    clear(in.d_own[cell.own_array[k]], p.D * (cell.own_gate[k] < 0 ? units : all));
  for (int s = 0; s < cell.states; ++s) {
    const Rows<const S> source = state_rows<const S>(in.last[s], 0, 0);
    const Rows<S> target = state_rows<S>(in.d_initial[s], 0, 0);
    const std::size_t bytes = sizeof(S) * static_cast<std::size_t>(p.D * units);
    for (i64 n = 0; n < p.N && target; ++n)
      source ? std::memcpy(target.at(0, n), source.at(0, n), bytes) : std::memset(target.at(0, n), 0, bytes);
  }
}

// Steps run from T-1 down to 0; step -1 stands for the initial state, which gets the last gradients.
template <class S>
struct Backward : ScanBase<S, typename Elements<S>::Product> {
  using Base = ScanBase<S, typename Elements<S>::Product>;
  using R = RealOf<S>;
  using E = typename Elements<S>::Product;
  using P = Places<S, E>;
  using Base::cell, Base::direct, Base::GH, Base::H, Base::Hp, Base::kSame, Base::L, Base::mask, Base::p,
      Base::products, Base::stages, Base::stage_count, Base::threads, Base::units;
  using typename Base::From;
  static constexpr bool kTakesInput = false;
  static constexpr int kMostFactors = zstate::kMostProducts;
  static constexpr i64 kRowsAtOnce = 16;  // of an operand, computed together

  const BackwardArrays& in;
  Rows<const S> x[2], z[2], after[2][zstate::kMostStates], outer[2][zstate::kMostStates],
      initial[2][zstate::kMostStates], last[2][zstate::kMostStates];
  Rows<S> dx_rows[2], d_initial[2][zstate::kMostStates];
  const S* weight[2] = {};
  i64 ldr = 0;
  Rows<R> dgates[2];                         // [T][N][G·H] in the descriptor's gate order
  Rows<R> extra[2];                          // [T][N][extra·H]
  Rows<R> values[2][zstate::kMostOperands];  // [T][N][H]: what R multiplied, where that is not simply a state
  R* sums[2] = {};                           // [vectors of parameters][N][Hp]
  // Set for the programs that each_program() visits.
  From *stage_sources[2][zstate::kMostStages][4], *end_sources[2];
  From* operand_sources[2][zstate::kMostOperands][2];
  E *packed_input[2] = {}, *packed_again[2] = {};
  E *row_scratch = nullptr, *outer_scratch = nullptr, *outer_b = nullptr;
  R* operand_rows = nullptr;  // [members][operands][2][kRowsAtOnce][Hp]: some rows of what R multiplied
  R *dx_chunk = nullptr, *direct_scratch = nullptr;
  // The gradients of the weights in the type of the arithmetic: the outputs themselves, or scratch.
  R *dR = nullptr, *dW = nullptr, *db = nullptr, *d_own[zstate::kMostOwn] = {};

  Backward(const Problem& problem, const BackwardArrays& arrays) : Base(problem), in(arrays) {
    for (int i = 0; i < stage_count; ++i) make_stage(i);
    this->weight_bytes = direct ? 0 : packed_bytes(*this);
    for (int d = 0; d < p.D; ++d) bind(d);
    each_program([&](const Program* program, From**, int) { this->count_program(program); });
    mark_paths();
  }

  // One part for each run of neighbouring gates whose gradients lie side by side.
  void make_stage(int index) {
    const zstate::CellStage& from = cell.stages[index];
    Stage<E>& stage = stages[index];
    stage.count = 0;
    for (int k = 0; k < from.product_count; ++k) {
      const zstate::GateProduct& product = from.products[k];
      int places[zstate::kMostGates];  // by slot: the gate's gradient -1, another one's place, or none
      for (int& each : places) each = -2;
      for (int i = 0; i < product.gate_count; ++i) places[cell.slots[product.gates[i]]] = product.extra[i];
      bool adds = false;
      for (int slot = 0; slot < p.G;) {
        int next = slot + 1;
        if (places[slot] == -2) {
          slot = next;
          continue;
        }
        while (next < p.G && places[slot] == -1 && places[next] == -1) ++next;
        Part<E>& part = stage.add();
        make_plain(part, H, (next - slot) * H);
        part.start = k, part.adds = adds, part.operand = places[slot], part.first = slot;
        part.elements[0] = part.elements[1] = nullptr;
        part.row = depth_of<E>(part.length);
        adds = true;
        slot = next;
      }
    }
    this->finish_stage(index, from.product_count);
  }

  void mark_paths() const {
    mark(direct ? Path::backward_reads_weights_in_place : Path::backward_packs_weights);
    if (weights_are_far<S>(p)) mark(Path::weights_exceed_cache);
    if (p.has_input_weight)
      mark(kSame ? Path::gradient_of_source_in_one : Path::gradient_of_source_in_chunks);
    else
      mark(gates_are_dx() ? Path::gradient_of_gates_is_of_source : Path::gradient_of_gates_copied_to_source);
    if (no_history()) mark(Path::no_history);
    if (!kSame) mark(Path::gradients_converted);
    if (cell.recomputed_count) mark(Path::products_again);
    if (cell.extra) mark(Path::gradient_of_products_apart);
    if (cell.own) mark(Path::gradient_of_own_parameters);
  }

  double work() const { return 2 * operation_work(p); }
  // All but a scan that one member runs.
  double shared_work() const {
    const bool solo = this->split(zstate::get_num_threads()) == Split::kSolo;
    return work() - (solo ? product_work(p, p.H) : 0);
  }

  void bind(int d) {
    const i64 x_width = p.has_input_weight ? 0 : p.G * units;
    x[d] = rows_of<const S>(p, in.source, d, x_width, Order::kInput);
    dx_rows[d] = rows_of<S>(p, in.d_source, d, x_width, Order::kInput);
    z[d] = rows_of<const S>(p, in.training_state, d, p.G * units, Order::kProcessing);
    for (int s = 0; s < cell.states; ++s) {
      after[d][s] = rows_of<const S>(p, in.after[s], d, units, Order::kProcessing);
      outer[d][s] = rows_of<const S>(p, in.outer[s], d, units, Order::kProcessing);
      initial[d][s] = state_rows<const S>(in.initial[s], d, units);
      last[d][s] = state_rows<const S>(in.last[s], d, units);
      d_initial[d][s] = state_rows<S>(in.d_initial[s], d, units);
    }
    mask[d] = mask_rows<S>(p, in.mask, d);
    this->resets[d] = reset_rows<S>(p, in.resets, d);
    this->bind_own(d, in.own);
    weight[d] = weight_matrix<S>(in.recurrent_weight, d, GH, ldr);
  }

  // The kernel multiplies other elements than values.
  bool needs_elements() const { return !Operand<E>::kPlain && !direct; }
  bool gates_are_dx() const { return kSame && !p.has_input_weight && p.heads == 1; }
  // Whether dx is a product with W, and wanted.
  bool multiplies_dx() const { return p.has_input_weight && in.d_source; }
  // Of a direction and a slot, in the array of all heads.
  R* dR_at(int d, i64 slot) const { return dR + (d * p.heads * p.G + slot) * H * H; }
  i64 dx_chunk_rows() const { return min_of(max_of(p.rows(), 1), 4 * kRowsBlock); }
  bool wants_initial() const {
    bool any = false;
    for (int s = 0; s < cell.states; ++s) any |= static_cast<bool>(in.d_initial[s]);
    return any;
  }
  // Whether what R multiplied has to be computed.
  bool evaluates(int k) const { return cell.operands[k].state < 0 && !no_history(); }
  // And kept for every step: for a product that is needed again, or because the scan overwrites its inputs.
  bool keeps_operand(int k) const {
    if (!evaluates(k)) return false;
    for (int i = 0; i < cell.recomputed_count; ++i)
      if (cell.recomputed[i].operand == k) return true;
    const Program& program = *cell.operands[k].programs[0];
    for (int i = 0; i < program.place_count; ++i)
      if (program.places[i].kind == static_cast<int>(PlaceKind::extra)) return true;
    return false;
  }

  // Calls visit(program, its sources' places by direction, the stage) for all programs of this call.
  template <class Visit>
  void each_program(const Visit& visit) {
    const bool one_step = p.T == 1 && !p.starts;
    for (int d = 0; d < p.D; ++d) {
      for (int i = 0; i < stage_count; ++i)
        for (int k = 0; k < (i ? 2 : 4); ++k)
          if (!one_step || k == (i ? 1 : 3))
            visit(cell.stages[i].programs[k], &stage_sources[d][i][k], d * zstate::kMostStages + i);
      if (wants_initial()) visit(cell.end, &end_sources[d], d * zstate::kMostStages);
      for (int k = 0; k < cell.operand_count; ++k)
        for (int first = 0; first < 2 && evaluates(k); ++first)
          if (!one_step || first)
            visit(cell.operands[k].programs[first], &operand_sources[d][k][first], d * zstate::kMostStages);
    }
  }

  void lay_out(Arena& arena) {
    for (int d = 0; d < p.D; ++d) {
      if (gates_are_dx())
        dgates[d] = as_rows<R>(dx_rows[d]);
      else
        dgates[d] = dense_rows(p, arena.take<R>(p.rows(), GH), d, GH);
      if (cell.extra) extra[d] = dense_rows(p, arena.take<R>(p.rows(), cell.extra, H), d, cell.extra * H);
      for (int k = 0; k < cell.operand_count; ++k)
        if (keeps_operand(k)) values[d][k] = dense_rows(p, arena.take<R>(p.rows(), H), d, H);
      if (cell.own) sums[d] = arena.take<R>(cell.own, p.N, Hp);
      for (int i = 0; i < stage_count && needs_elements(); ++i)
        for (int q = 0; q < stages[i].count; ++q)
          stages[i].parts[q].elements[d] = arena.take<E>(2, p.N, stages[i].parts[q].row);
      if (cell.recomputed_count && !direct) packed_again[d] = arena.take<E>(panels_size<E>(H, H));
      if (multiplies_dx() && !direct) packed_input[d] = arena.take<E>(panels_size<E>(p.I, GH));
    }
    this->lay_out_scan(arena);
    operand_rows = arena.take<R>(threads, cell.operand_count, 2 * kRowsAtOnce, Hp);
    if (direct) {
      direct_scratch = arena.take<R>(threads, direct_size());
    } else {
      lay_out_stages(arena, *this);
      row_scratch = arena.take<E>(threads, rows_scratch<E>(0));
      outer_scratch = arena.take<E>(threads, kOuterScratch<R>);
      const i64 panels = cell.operand_count * ceil_div(H, kPanel<R>) + ceil_div(p.I, kPanel<R>);
      outer_b = arena.take<E>(2 * min_of(kOuterDepth, p.rows()), panels, kPanel<R>);
    }
    if (!kSame && multiplies_dx()) dx_chunk = arena.take<R>(dx_chunk_rows(), p.I);
    dR = gradient(arena, in.d_recurrent, zstate::size_product(p.D, GH, H));
    dW = gradient(arena, in.d_input, zstate::size_product(p.D, GH, p.I));
    db = p.heads > 1 && in.d_bias ? arena.take<R>(p.D * GH) : gradient(arena, in.d_bias, p.D * GH);
    for (int k = 0; k < cell.own_arrays; ++k) d_own[k] = gradient(arena, in.d_own[k], p.D * GH);
    each_program([&](const Program* program, From** sources, int stage) {
      *sources = arena.take<From>(program->place_count);
      for (int i = 0; i < program->place_count && this->runs; ++i)
        new (*sources + i)
            From(source(stage / zstate::kMostStages, stage % zstate::kMostStages, program->places[i]));
    });
  }
  // A member's operands of direct products: rows of x or of what R multiplied, and of the gates' gradient.
  i64 direct_size() const { return p.T * p.N * (round_up(max_of(p.I, H), L) + round_up(GH, L)); }
  R* gradient(Arena& arena, const Array& out, i64 count) {
    if (!out) return nullptr;
    return kSame ? static_cast<R*>(out.data) : arena.take<R>(count);
  }

  From source(int d, int stage, const zstate::Place& place) const {
    const int k = place.index;
    const i64 column = k < p.G ? cell.slots[k] * units : 0;
    switch (static_cast<PlaceKind>(place.kind)) {
      case PlaceKind::product:
        if (direct) return P::real(products[d] + k * Hp, kFixed, 0, stages[stage].values * Hp, true);
        return P::product(k, 1, 0);
      case PlaceKind::saved:
        return P::rows(z[d], kNow, column);
      case PlaceKind::saved_before:
        return P::rows(z[d], kBefore, column);
      case PlaceKind::after:
        return P::rows(after[d][k], kNow, 0);
      case PlaceKind::before:
        return P::rows(after[d][k], kBefore, 0);
      case PlaceKind::initial:
        return P::rows(initial[d][k], kFixed, 0);
      case PlaceKind::outer:
        return P::rows(outer[d][k], kNow, 0);
      case PlaceKind::last:
        return P::rows(last[d][k], kFixed, 0);
      case PlaceKind::gate_gradient:
        return P::rows(dgates[d], kNow, cell.slots[k] * H);
      case PlaceKind::extra:
        return P::rows(extra[d], kNow, k * H);
      case PlaceKind::operand_value:
        return keeps_operand(k) ? P::rows(values[d][k], kNow, 0)
                                : P::real(operand_rows, kNextHalf, Hp, Hp, true);
      case PlaceKind::own_sum:
        return P::real(sums[d] + k * p.N * Hp, kFixed, 0, Hp, true);
      case PlaceKind::initial_gradient:
        return P::rows(d_initial[d][k], kFixed, 0);
      default:
        return this->common_source(d, place);
    }
  }

  void run(const Team& team) {
    pack(team);
    initialise(team);
    team.barrier();
    // Before the scan, which may put gradients in the places of products.
    unsigned known = 0;
    const auto know = [&](int operand) {
      if (!(known >> operand & 1)) evaluate(team, operand);
      known |= 1u << operand;
    };
    for (int k = 0; k < cell.recomputed_count && !team.stopped(); ++k) {
      know(cell.recomputed[k].operand);
      team.barrier();
      for (int d = 0; d < p.D; ++d) multiply_again(team, d, cell.recomputed[k]);
      team.barrier();
    }
    for (int k = 0; k < cell.operand_count; ++k) know(k);
    if (cell.recomputed_count) team.barrier();
    scan(*this, team, p.T - 1, p.T + wants_initial(), -1);
    for (int d = 0; d < p.D && !team.stopped(); ++d) contract_weights(team, d);
    contract_source(team);
    team.barrier();
    if (p.heads > 1 && team.rank == 0) spread_bias();
    if (!kSame) convert_gradients(team);
  }

  // One head's gradients of the bias, which lie side by side, to where its units are in each gate.
  void spread_bias() const {
    S* to = static_cast<S*>(in.d_bias.data);
    for (i64 gate = 0; gate < p.D * p.G && db; ++gate) convert_out<S>(db + gate * H, to + gate * units, H);
  }

  void pack(const Team& team) {
    if (direct) return;
    pack_stages(team, *this);
    for (int d = 0; d < p.D && multiplies_dx(); ++d) {
      i64 ld = 0;
      const S* w = weight_matrix<S>(in.input_weight, d, GH, ld);
      pack_panels_straight(team, packed_input[d], w, ld, p.I, GH);
    }
  }
  void pack_part(const Part<E>& part, int d, i64 piece, E* packed) const {
    const i64 panel = part.panel_of(piece), begin = part.begin(panel), u = piece * L;
    pack_straight(packed + begin * part.K * L + (piece - begin) * L, part.width(panel) * L,
                  weight[d] + part.first * H * ldr + u, ldr, lanes_at<R>(u, H), part.length);
  }

  void initialise(const Team& team) {
    const Range mine = share(team, p.N);
    for (int d = 0; d < p.D; ++d) {
      for (int k = 0; k < cell.own; ++k) {
        if (!this->vectors_in_place()) this->copy_vector(team, d, this->own_vector(d, k), cell.gates + k);
        std::memset(sums[d] + (k * p.N + mine.begin) * Hp, 0,
                    sizeof(R) * static_cast<std::size_t>((mine.end - mine.begin) * Hp));
      }
      for (int i = 0; i < stage_count && needs_elements(); ++i)
        for (int q = 0; q < stages[i].count; ++q) {
          const Part<E>& part = stages[i].parts[q];
          for (i64 n = 2 * mine.begin; n < 2 * mine.end; ++n)
            Operand<E>::end(part.elements[d] + n * part.row, 0, part.length);
        }
      for (int g = 0; g < p.G; ++g)
        if (!cell.has_x[g]) clear_gate(team, d, cell.slots[g]);
    }
  }
  void clear_gate(const Team& team, int d, int slot) {
    const Range mine = share(team, p.rows());
    for (i64 row = mine.begin; row < mine.end; ++row) {
      const auto [s, n] = place_of(p, d, row);
      std::memset(dgates[d].at(s, n) + slot * H, 0, sizeof(R) * static_cast<std::size_t>(H));
    }
  }

  // ---- what R multiplied ----

  // Of every step, where that is not simply a state.
  void evaluate(const Team& team, int k) {
    if (!keeps_operand(k)) return;
    const Range mine = share(team, p.rows());
    for (int d = 0; d < p.D; ++d)
      for (i64 row = mine.begin; row < mine.end && !team.stopped(); ++row) {
        const auto [s, n] = place_of(p, d, row);
        evaluate_rows(k, d, s, n, 1, team.rank, 0);
      }
  }
  // For one step, up to `most` sequences from n on: into their places among all, or into the member's rows.
  // Returns how many: sequences that begin with this step have their own program.
  i64 evaluate_rows(int k, int d, i64 s, i64 n, i64 most, int rank, int half) const {
    const bool first = absent(p, d, s - 1, n);
    const i64 rows =
        min_of(most, (first ? batch_at(p, d, s) : min_of(batch_at(p, d, s), batch_at(p, d, s - 1))) - n);
    i64 counters[kCounters];
    count(d, s, counters);
    counters[kNextHalf] = first_operand_row(k, rank, half) - n;
    Block<R> block{counters, n, 0, static_cast<int>(rows), 0, 0, nullptr, 0, 0, 0, 0, false};
    this->run_blocks(*cell.operands[k].programs[first], operand_sources[d][k][first], block, ceil_div(H, L),
                     scratch(rank));
    return rows;
  }
  i64 first_operand_row(int k, int rank, int half) const {
    return (2 * (rank * cell.operand_count + k) + half) * kRowsAtOnce;
  }
  // A row of it.
  ZS_DEVICE RowReader<S> operand_row(int k, int d, i64 s, i64 n) const {
    const int state = cell.operands[k].state;
    if (state < 0) return {nullptr, values[d][k].at(s, n)};
    if (!absent(p, d, s - 1, n)) return {after[d][state].at(s - 1, n)};
    return {initial[d][state] ? initial[d][state].at(0, n) : nullptr};
  }

  // A product of every step once more.
  void multiply_again(const Team& team, int d, const GateOperand& again) {
    const S* rows = weight[d] + cell.slots[again.gate] * H * ldr;
    const auto load = [&](i64 row) {
      const Place at = place_of(p, d, row);
      return no_history() ? RowReader<S>{} : operand_row(again.operand, d, at.s, at.n);
    };
    const auto out = [&](i64 row) {
      const Place at = place_of(p, d, row);
      return extra[d].at(at.s, at.n) + again.extra * H;
    };
    if (direct) return multiply_again_directly(team, rows, load, out);
    pack_panels_transposed(team, packed_again[d], rows, ldr, H, H);
    team.barrier();
    multiply_rows(team, p.rows(), H, H, load, packed_again[d], out, false,
                  row_scratch + team.rank * rows_scratch<E>(0));
  }
  template <class Load, class Out>
  void multiply_again_directly(const Team& team, const S* rows, const Load& load, const Out& out) {
    const Range mine = share(team, ceil_div(H, L));
    const i64 begin = mine.begin * L, end = min_of(mine.end * L, H);
    R *before = direct_scratch + team.rank * direct_size(), *term = before + round_up(H, L);
    for (i64 row = 0; row < p.T * p.N && begin < end; ++row) {
      const auto values = load(row);
      for (i64 k = 0; k < H; k += L) Io<R>::store(before + k, values(k, lanes_at<R>(k, H)));
      dot_rows<S>(rows + begin * ldr, ldr, end - begin, before, H, term, weights_are_far<S>(p));
      std::memcpy(out(row) + begin, term, sizeof(R) * static_cast<std::size_t>(end - begin));
    }
  }

  // ---- for the scan ----

  // The sequences of this step and, to be finished, those of the step before it.
  i64 rows_at(int d, i64 s) const {
    if (!p.starts) return p.N;
    return max_of(batch_at(p, d, s), batch_at(p, d, s + 1));
  }
  i64 product_rows(int index, int d, i64 s) const { return batch_at(p, d, index == 0 ? s + 1 : s); }
  const E* operand(int index, const Part<E>& part, int d, i64 s, int, i64& lda) const {
    const i64 step = index == 0 ? s + 1 : s;
    if (part.elements[d]) {
      lda = part.row;
      return part.elements[d] + (step & 1) * p.N * part.row;
    }
    const Rows<R>& from = part.operand < 0 ? dgates[d] : extra[d];
    lda = from.row;
    return reinterpret_cast<const E*>(from.at(step, 0) + (part.operand < 0 ? part.first : part.operand) * H);
  }
  // The products of one stage without packed weights, for hidden units [begin, end).
  void direct_product(int index, int d, i64 s, i64 begin, i64 end) const {
    const Stage<E>& stage = stages[index];
    if (product_rows(index, d, s) == 0) return;  // then nobody reads them
    for (i64 n = 0; n < p.N; ++n)
      for (int q = 0; q < stage.count; ++q) {
        const Part<E>& part = stage.parts[q];
        i64 lda;
        const R* a = reinterpret_cast<const R*>(operand(index, part, d, s, 0, lda) + n * lda);
        weighted_rows<S>(weight[d] + part.first * H * ldr, ldr, begin, end, a, part.length,
                         products[d] + (n * stage.values + part.start) * Hp + begin, part.adds);
      }
  }
  R* scratch(int rank) const { return this->runs + rank * this->run_size; }
  void count(int d, i64 s, i64* counters) const {
    counters[kFixed] = 0;
    counters[kNow] = p.starts && s >= 0 ? dense_row(p, d, s) : s;
    counters[kBefore] = p.starts && s >= 1 ? dense_row(p, d, s - 1) : s - 1;
    counters[kStep] = s, counters[kNextStep] = min_of(s + 1, p.T - 1);
  }

  // By ranges of rows that are alike: those whose last step this is, those whose first step it is, and those
  // whose first step was the one behind.
  void apply(int index, int d, i64 s, i64 row, int rows, i64 group, int groups, R* tile, int rank) const {
    i64 counters[kCounters];
    count(d, s, counters);
    counters[kMember] = rank;
    const i64 now = batch_at(p, d, s), behind = batch_at(p, d, s + 1), front = batch_at(p, d, s - 1);
    const i64 edges[] = {now, behind, front};
    const i64 end = row + rows;
    Block<R> block{counters, row, group * L, 0, 0, 0, tile, rows, groups, 0, 0, false};
    for (i64 n = row, next; n < end; n = next) {
      next = end;
      for (const i64 edge : edges)
        if (edge > n) next = min_of(next, edge);
      block.row = n, block.rows = static_cast<int>(next - n), block.tile_row = static_cast<int>(n - row);
      block.unit = group * L;
      if (n >= now) {
        if (index == 0 && wants_initial())
          this->run_blocks(*cell.end, end_sources[d], block, groups, scratch(rank));
        continue;
      }
      const int which = (index == 0 && n >= behind ? 2 : 0) + (n >= front);
      const Program& program = *cell.stages[index].programs[which];
      this->run_blocks(program, stage_sources[d][index][which], block, groups, scratch(rank));
      if constexpr (!Operand<E>::kPlain)
        if (!direct) set_elements(program, d, s, n, next, group * L, min_of((group + groups) * L, H));
    }
  }
  // What the program has written, as the kernel multiplies it.
  void set_elements(const Program& program, int d, i64 s, i64 row, i64 end, i64 begin_unit,
                    i64 end_unit) const {
    for (int i = 0; i < program.output_count; ++i) {
      const zstate::Place& place = program.places[program.outputs[i].place];
      const bool gate = place.kind == static_cast<int>(PlaceKind::gate_gradient);
      if (!gate && place.kind != static_cast<int>(PlaceKind::extra)) continue;
      const int slot = gate ? cell.slots[place.index] : -1;
      for (int index = 0; index < stage_count; ++index)
        for (int q = 0; q < stages[index].count; ++q) {
          const Part<E>& part = stages[index].parts[q];
          const i64 at = gate ? slot - part.first : 0;
          if (gate ? part.operand >= 0 || at < 0 || at * H >= part.length : part.operand != place.index)
            continue;
          const Rows<R>& from = gate ? dgates[d] : extra[d];
          const i64 column = (gate ? slot : place.index) * H;
          for (i64 n = row; n < end; ++n)
            for (i64 u = begin_unit; u < end_unit; u += L) {
              const int lanes = lanes_at<R>(u, end_unit);
              Operand<E>::write(part.elements[d] + ((s & 1) * p.N + n) * part.row, 0, at * H + u,
                                Io<R>::load_n(from.at(s, n) + column + u, lanes), lanes);
            }
        }
    }
  }

  // ---- contractions ----

  // dR, dW, db and the gradients of the cell's own parameters, of one direction.
  void contract_weights(const Team& team, int d) {
    const Contraction c = contraction(team, d);
    if (c.band_count > 0) multiply(team, d, c);
    if (no_history()) contract_nothing(team, d);
    for (int k = 0; k < cell.own; ++k) add_up(team, d, k);
  }
  // Then R multiplied zeros alone.
  bool no_history() const {
    if (p.T != 1 || in.mask) return false;
    for (int k = 0; k < cell.operand_count; ++k)
      if (!cell.operands[k].vanishes) return false;
    for (int s = 0; s < cell.states; ++s)
      if (in.initial[s]) return false;
    return true;
  }
  // dR = dgates·0: zero, or NaN where the gates' gradient is not finite.
  void contract_nothing(const Team& team, int d) {
    const Range mine = share(team, ceil_div(GH, L));
    for (i64 g = mine.begin * L; g < min_of(mine.end * L, GH); g += L) {
      const int lanes = lanes_at<R>(g, GH);
      Vec<R> sum{};
      for (i64 n = 0; n < p.N; ++n) sum += Io<R>::load_n(dgates[d].at(0, n) + g, lanes) * R{0};
      for (int i = 0; i < lanes; ++i) {
        R* row = dR_at(d, 0) + (g + i) * H;
        for (i64 u = 0; u < H; u += L) Io<R>::store_n(row + u, broadcast<R>(sum[i]), lanes_at<R>(u, H));
      }
    }
  }
  // The rows' shares of a parameter's gradient; every member owns some units.
  void add_up(const Team& team, int d, int k) {
    const int gate = cell.own_gate[k], array = cell.own_array[k];
    R* to = d_own[array] + (gate < 0 ? d : d * p.G + cell.slots[gate]) * units;
    const Range mine = share(team, ceil_div(H, L));
    for (i64 u = mine.begin * L; u < min_of(mine.end * L, H); u += L) {
      Vec<R> sum{};
      for (i64 n = 0; n < p.N; ++n) sum += Io<R>::load(sums[d] + (k * p.N + n) * Hp + u);
      Io<R>::store_n(to + u, sum, lanes_at<R>(u, H));
    }
  }

  // What the gradients of one direction's weights are products of: the gradients of gates and of products by
  // bands of gates, and as parts what W and R multiplied.
  struct Contraction {
    OuterPart<R> part[1 + zstate::kMostOperands];
    OuterBand<R> bands[zstate::kMostGates + kMostFactors];
    int extra[zstate::kMostGates + kMostFactors];  // of a band: whose gradient it is; -1: the gates'
    int operand[1 + zstate::kMostOperands];        // of a part: what R multiplied; -1: x
    int parts = 0, band_count = 0;
  };
  Contraction contraction(const Team& team, int d) {
    Contraction c;
    int part_of[zstate::kMostOperands];
    const auto part = [&](i64 columns, R* to, int operand) {
      c.part[c.parts] = {columns, to, columns};
      c.operand[c.parts] = operand;
      return c.parts++;
    };
    const auto band = [&](i64 begin, i64 end, unsigned parts, R* own_sums, int place, bool adds) {
      if (!parts && !own_sums) return;
      c.bands[c.band_count] = {begin, end, parts, own_sums, adds};
      c.extra[c.band_count++] = place;
    };
    unsigned input = 0;
    if (dW) input = 1u << part(p.I, dW + d * GH * p.I, -1);
    const bool history = !no_history();
    for (int k = 0; k < cell.operand_count && history; ++k) part_of[k] = part(H, dR_at(d, 0), k);
    // By slot: the parts that the gates' own gradients multiply, and how often each gate occurs.
    unsigned with[zstate::kMostGates] = {};
    int times[zstate::kMostGates] = {};
    bool again = false;
    for (int i = 0; i < cell.factor_count; ++i) {
      const int slot = cell.slots[cell.factors[i].gate];
      again |= times[slot]++ > 0;
      if (cell.factors[i].extra < 0 && !with[slot] && history)
        with[slot] = 1u << part_of[cell.factors[i].operand];
    }
    for (int slot = 0; slot < p.G;) {
      int next = slot + 1;
      while (next < p.G && with[next] == with[slot] && !again) ++next;
      band(slot * H, next * H, input | with[slot], db ? db + d * GH + slot * H : nullptr, -1, false);
      slot = next;
    }
    // What is left: further operands of a gate, and products whose gradient is not the gate's.
    bool done[zstate::kMostGates] = {};
    for (int slot = 0; slot < p.G; ++slot) done[slot] = with[slot] != 0;
    for (int i = 0; i < cell.factor_count && history; ++i) {
      const auto [gate, operand, place] = cell.factors[i];
      const int slot = cell.slots[gate];
      const unsigned bit = 1u << part_of[operand];
      if (place < 0 && with[slot] == bit) {
        with[slot] = 0;  // that one
        continue;
      }
      band(slot * H, (slot + 1) * H, bit, nullptr, place, done[slot]);
      done[slot] = true;
    }
    for (int slot = 0; slot < p.G && history && team.rank == 0; ++slot)
      if (!done[slot]) std::memset(dR_at(d, slot), 0, sizeof(R) * static_cast<std::size_t>(H * H));
    return c;
  }

  void multiply(const Team& team, int d, const Contraction& c) {
    // Rows of a part that the member has at hand: of two neighbouring rows, one may end such a batch.
    struct Computed {
      bool is = false;
      i64 begin[2] = {0, 0}, end[2] = {0, 0};
      int last = 0;
    };
    Computed computed[1 + zstate::kMostOperands];
    for (int i = 0; i < c.parts; ++i)
      computed[i].is = c.operand[i] >= 0 && evaluates(c.operand[i]) && !keeps_operand(c.operand[i]);
    const auto computed_row = [&](int part, i64 k) -> const R* {
      Computed& has = computed[part];
      const int operand = c.operand[part];
      const auto lies_in = [&](int half) { return k >= has.begin[half] && k < has.end[half]; };
      int half = has.last;
      if (!lies_in(half)) {
        half = 1 - half;
        if (!lies_in(half)) {
          const auto [s, n] = place_of(p, d, k);
          has.begin[half] = k;
          has.end[half] = k + evaluate_rows(operand, d, s, n, kRowsAtOnce, team.rank, half);
        }
        has.last = half;
      }
      return operand_rows + (first_operand_row(operand, team.rank, half) + k - has.begin[half]) * Hp;
    };
    const auto row_a = [&](int band, i64 k, i64 m) -> const R* {
      const auto [s, n] = place_of(p, d, k);
      const int place = c.extra[band];
      if (place < 0) return dgates[d].at(s, n) + m;
      return extra[d].at(s, n) + place * H + m - c.bands[band].begin;
    };
    const auto row_b = [&](int part, i64 k) -> RowReader<S> {
      const int operand = c.operand[part];
      if (computed[part].is) return {nullptr, computed_row(part, k)};
      const auto [s, n] = place_of(p, d, k);
      return operand < 0 ? RowReader<S>{x[d].at(s, n)} : operand_row(operand, d, s, n);
    };
    if (direct) {
      for (int band = 0; band < c.band_count; ++band)
        outer_directly(team, c, band, row_a, row_b, direct_scratch + team.rank * direct_size());
      return;
    }
    multiply_outer(team, p.rows(), c.bands, c.band_count, c.part, c.parts, row_a, row_b, outer_b,
                   outer_scratch + team.rank * kOuterScratch<R>);
    team.barrier();  // the next call packs into the same shared scratch
  }

  // One band, for so few steps that nothing is worth packing.
  template <class RowA, class RowB>
  void outer_directly(const Team& team, const Contraction& c, int band, const RowA& row_a, const RowB& row_b,
                      R* own_scratch) {
    const auto [first, last_row, has, band_sums, adds] = c.bands[band];
    const Range mine = share(team, last_row - first);
    const i64 begin = first + mine.begin, rows = mine.end - mine.begin;
    R* own_sums = band_sums ? band_sums + mine.begin : nullptr;
    const i64 K = p.T * p.N, lda = round_up(GH, L), ldb = round_up(max_of(p.I, H), L);
    R *a = own_scratch, *b = own_scratch + K * lda;
    for (i64 k = 0; k < K; ++k)
      std::memcpy(a + k * lda, row_a(band, k, begin), sizeof(R) * static_cast<std::size_t>(rows));
    for (i64 m = 0; m < rows && own_sums; ++m) {
      own_sums[m] = 0;
      for (i64 k = 0; k < K; ++k) own_sums[m] += a[k * lda + m];
    }
    for (int i = 0; i < c.parts; ++i) {
      if (!(has >> i & 1)) continue;
      const OuterPart<R>& part = c.part[i];
      for (i64 k = 0; k < K; ++k) {
        const auto row = row_b(i, k);
        for (i64 j = 0; j < part.columns; j += L)
          Io<R>::store(b + k * ldb + j, row(j, lanes_at<R>(j, part.columns)));
      }
      const auto multiply = adds ? outer_rows<true, R> : outer_rows<false, R>;
      multiply(K, a, lda, rows, b, ldb, part.columns, part.c + begin * part.ldc, part.ldc);
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
        return dgates[d].at(at.s, at.n);
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
      const auto load = [&](i64 row) { return reader<R>(gates_row(row)); };
      // The members' rows are the same for both directions, so the second may add to the first without a
      // barrier.
      multiply_rows(team, count, GH, p.I, load, packed_input[d], out_row, d > 0,
                    row_scratch + team.rank * rows_scratch<E>(0));
    }
  }

  void copy_gates_to_dx(const Team& team) {
    const Range mine = share(team, p.rows());
    for (int d = 0; d < p.D; ++d)
      for (i64 row = mine.begin; row < mine.end; ++row) {
        const auto [s, n] = place_of(p, d, row);
        if (p.heads == 1) {
          convert_out<S>(dgates[d].at(s, n), dx_rows[d].at(s, n), GH);
          continue;
        }
        for (i64 g = 0; g < p.G; ++g)
          convert_out<S>(dgates[d].at(s, n) + g * H, dx_rows[d].at(s, n) + g * units, H);
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
    for (int k = 0; k < cell.own; ++k)
      if (k == 0 || cell.own_array[k] != cell.own_array[k - 1])
        convert(d_own[cell.own_array[k]], in.d_own[cell.own_array[k]], p.D * (cell.own_gate[k] < 0 ? H : GH));
  }
};

}  // namespace ZS_NAMESPACE
