// What the operations share: the size of the team, packing, conversion.
#pragma once

#include "engine/arena.h"
#include "engine/places.h"
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

// Packs the panels of all parts of all stages.
template <class Cell>
void pack_stages(const Team& team, Cell& cell) {
  for (int index = 0; index < cell.stage_count; ++index)
    for (int q = 0; q < cell.stages[index].count; ++q)
      for (int d = 0; d < cell.p.D; ++d) {
        const auto& part = cell.stages[index].parts[q];
        const Range mine = share(team, part.parts());
        for (i64 k = mine.begin; k < mine.end && !team.stopped(); ++k)
          cell.pack_part(part, d, k, const_cast<typename Cell::Element*>(part.packed[d]));
      }
}
template <class Cell>
i64 packed_bytes(const Cell& cell) {
  i64 sum = 0;
  for (int index = 0; index < cell.stage_count; ++index)
    for (int q = 0; q < cell.stages[index].count; ++q) sum += cell.stages[index].parts[q].size();
  return sum * cell.p.D * static_cast<i64>(sizeof(typename Cell::Element));
}
template <class Cell>
void lay_out_stages(Arena& arena, Cell& cell) {
  for (int index = 0; index < cell.stage_count; ++index)
    for (int q = 0; q < cell.stages[index].count; ++q)
      for (int d = 0; d < cell.p.D; ++d) {
        auto& part = cell.stages[index].parts[q];
        part.packed[d] = arena.take<typename Cell::Element>(part.size());
      }
}

// What both operations need for the scan: tiles, the members' scratch memory, and the sources of programs.
template <class S, class E>
struct ScanBase {
  using Real = RealOf<S>;
  using Element = E;
  using From = Source<Real>;
  static constexpr int L = Simd<Real>::lanes;
  static constexpr bool kSame = sizeof(S) == sizeof(Real);

  const Problem& p;
  const zstate::CellProgram& cell;
  int threads = 1;
  i64 H, Hp, GH;  // Hp: rounded up to whole vectors, the row length of most buffers
  i64 units;      // of all heads: how far gates, and directions of states, lie apart in arrays
  bool direct;    // no packed weights: operands are plain values, whatever the elements are
  int stage_count;
  Stage<E> stages[zstate::kMostStages];
  i64 weight_bytes = 0;  // packed, of all that a step reads
  i64 run_size = 0;      // of the scratch memory of a member's programs
  Real *tiles = nullptr, *runs = nullptr;
  MaskRows<S> mask[2], resets[2];
  const S* own[2][zstate::kMostOwn];  // as many as the cell has
  Real* vectors[2] =
      {};  // [bias of each gate, vectors of parameters][Hp], where they cannot be read in place
  Real* products[2] = {};  // [N][products][Hp]: of a stage, where the weights are not packed
  Real* carried[2] = {};   // [carried][N][Hp]
  Real* reduced[2] = {};   // [reduced][N][Hp]
  Real* means[2] = {};     // [members][means][N][L]

  explicit ScanBase(const Problem& problem)
      : p(problem),
        cell(*problem.cell),
        H(p.H),
        Hp(round_up(p.H, L)),
        GH(p.G * p.H),
        units(p.units()),
        direct(reads_weights_directly(p)),
        stage_count(cell.stage_count) {}

  static constexpr i64 kTileValues = 64;
  // How much of a stage is computed together: enough to make dispatching an instruction worthwhile.
  static constexpr i64 kTogether = 16;
  i64 blocks_at_once(int index) const { return at_once(index, stages[index].rows); }
  i64 panels_at_once(int index, int rows) const {
    return rows == 1 ? stages[index].single_rows : at_once(index, rows);
  }
  i64 at_once(int index, int rows) const {
    const Stage<E>& stage = stages[index];
    const i64 groups = stage.gated ? 1 : stage.parts[0].vectors + (stage.parts[0].wider > 0);
    const i64 each = groups * rows;
    return max_of(1, min_of(kTogether / each, kTileValues / max_of(1, each * stage.values)));
  }
  void finish_stage(int index, int values) {
    stages[index].finish(H, values);
    stages[index].single_rows = at_once(index, 1);
  }
  i64 tile_size() const {
    i64 most = kTileValues;
    for (int i = 0; i < stage_count; ++i) most = max_of(most, i64{24} * stages[i].values);
    return most * L;
  }
  Real* tile(int rank) const { return tiles + rank * tile_size(); }

  Split split(int members) const { return choose_split(members, p, weight_bytes, Operand<E>::kSpeed); }

  // Whether vectors for all rows are read where the caller has them.
  bool vectors_in_place() const { return kSame && H % L == 0; }
  From vector_source(int d, const S* given, i64 number) const {
    if (vectors_in_place()) return Places<S, E>::real(given, kFixed, 0, 0, true);
    return Places<S, E>::real(vectors[d] + number * Hp, kFixed, 0, 0, true);
  }
  const S* own_vector(int d, int k) const {
    const int gate = cell.own_gate[k];
    return own[d][cell.own_array[k]] + (gate < 0 ? 0 : cell.slots[gate] * units);
  }
  void bind_own(int d, const Array (&arrays)[zstate::kMostOwn]) {
    for (int k = 0; k < cell.own_arrays; ++k) {
      const Array& a = arrays[k];
      bool by_gate = false;
      for (int i = 0; i < cell.own; ++i) by_gate |= cell.own_array[i] == k && cell.own_gate[i] >= 0;
      own[d][k] = weights<S>(a, d, a.rank == 2 ? a.strides[0] : (by_gate ? p.G : 1) * units);
    }
  }
  void copy_vector(const Team& team, int d, const S* from, i64 number) {
    if (!from || team.rank != 0) return;
    Real* to = vectors[d] + number * Hp;
    for (i64 u = 0; u < H; u += L) Io<Real>::store(to + u, Io<S>::load_n(from + u, lanes_at<Real>(u, H)));
  }
  // A place that means the same in both operations.
  From common_source(int d, const zstate::Place& place) const {
    switch (static_cast<PlaceKind>(place.kind)) {
      case PlaceKind::own:
        return vector_source(d, own_vector(d, place.index), cell.gates + place.index);
      case PlaceKind::mask:
        return Places<S, E>::mask(mask[d], kStep);
      case PlaceKind::next_mask:
        return Places<S, E>::mask(mask[d], kNextStep);
      case PlaceKind::reset:
        return Places<S, E>::mask(resets[d], kStep);
      case PlaceKind::next_reset:
        return Places<S, E>::mask(resets[d], kNextStep);
      case PlaceKind::reduced:
        return Places<S, E>::real(reduced[d] + place.index * p.N * Hp, kFixed, 0, Hp, true);
      case PlaceKind::mean:
        return Places<S, E>::row_values(means[d] + place.index * p.N * L, kMember, cell.means * p.N * L);
      default:  // carried
        return Places<S, E>::real(carried[d] + place.index * p.N * Hp, kFixed, 0, Hp, true);
    }
  }
  void count_program(const Program* program) {
    if (program) run_size = max_of(run_size, Places<S, E>::scratch_size(*program));
  }
  void lay_out_scan(Arena& arena) {
    for (int d = 0; d < p.D; ++d) {
      if (!vectors_in_place()) vectors[d] = arena.take<Real>(cell.gates + cell.own, Hp);
      if (cell.carried) carried[d] = arena.take<Real>(cell.carried, p.N, Hp);
      if (cell.means) {
        reduced[d] = arena.take<Real>(cell.reduced, p.N, Hp);
        means[d] = arena.take<Real>(threads, cell.means, p.N, L);
      }
      int most = 0;
      for (int i = 0; i < stage_count; ++i) most = static_cast<int>(max_of(most, stages[i].values));
      if (direct) products[d] = arena.take<Real>(p.N, most, Hp);
    }
    if (!direct) tiles = arena.take<Real>(threads, tile_size());
    runs = arena.take<Real>(threads, run_size);
  }

  // The means and variances that a stage begins with. Every member computes those of its own rows, in an
  // order that depends only on H.
  void average(int index, int d, Range rows, int rank) const {
    const zstate::CellStage& stage = cell.stages[index];
    for (int k = stage.first_mean; k < stage.first_mean + stage.mean_count; ++k)
      for (i64 n = rows.begin; n < rows.end; ++n) {
        const zstate::Reduction& one = cell.reductions[k];
        const Real* from = reduced[d] + (one.first * p.N + n) * Hp;
        Real* to = means[d] + ((rank * cell.means + k) * p.N + n) * L;
        Real found = mean_of(from, one.count, [](Vec<Real> x, int) { return x; });
        if (one.is_variance) {
          const Vec<Real> middle = broadcast<Real>(found);
          found = mean_of(from, one.count, [&](Vec<Real> x, int lanes) {
            Vec<Real> away = x - middle;
            for (int i = lanes; i < L; ++i) away[i] = 0;
            return away * away;
          });
        }
        Io<Real>::store(to, broadcast<Real>(found));
      }
  }
  // Of values of a row, whose units come in vectors: value(them, how many there are), 0 in the other lanes.
  template <class Value>
  Real mean_of(const Real* rows, int count, const Value& value) const {
    Vec<Real> sums[4] = {};
    for (int k = 0; k < count; ++k) {
      const Real* from = rows + k * p.N * Hp;
      i64 u = 0;
      for (; u + 4 * L <= H; u += 4 * L)
        for (int i = 0; i < 4; ++i) sums[i] += value(Io<Real>::load(from + u + i * L), L);
      for (int i = 0; u < H; u += L, ++i) {
        const int lanes = static_cast<int>(lanes_at<Real>(u, H));
        sums[i] += value(Io<Real>::load_n(from + u, lanes), lanes);
      }
    }
    const Vec<Real> all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    Real lanes[L];
    for (int i = 0; i < L; ++i) lanes[i] = all[i];
    for (int half = L / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0] / static_cast<Real>(count * H);
  }

  // Runs a program over rows and groups of units, as many as a block may have at a time. Changes the block.
  void run_blocks(const Program& program, const From* sources, Block<Real>& block, i64 groups,
                  Real* scratch) const {
    const i64 rows = block.rows, row = block.row;
    const i64 at_once = rows * groups <= kRunVectors ? groups : max_of(1, kRunVectors / rows);
    const i64 first = block.unit / L, whole = min_of(groups, H / L - first), tile_row = block.tile_row;
    for (i64 r = 0; r < rows; r += kRunVectors) {
      block.rows = static_cast<int>(min_of(kRunVectors, rows - r));
      block.row = row + r, block.tile_row = static_cast<int>(tile_row + r);
      for (i64 v = 0; v < groups; v += block.vectors) {
        block.unit = (first + v) * L, block.tile_vector = static_cast<int>(v);
        const bool part = v >= whole;
        block.vectors = static_cast<int>(part ? 1 : min_of(at_once, whole - v));
        block.lanes = part ? lanes_at<Real>(block.unit, H) : L;
        Places<S, E>::run(program, sources, block, scratch);
      }
    }
  }
};

}  // namespace ZS_NAMESPACE
