// The scan: the one loop over time that every cell shares, forward and backward.
//
// A step has one or two stages. A stage is a matrix product (rows of the batch × panels of packed weights)
// and, while a tile of it is still in the first-level cache, the cell's pointwise equations on that tile.
// These are compiled for each cell; all else calls them through a pointer and is compiled once for all cells,
// which halves the time of a build.
#pragma once

#include "engine/few_rows.h"
#include "engine/gemm.h"
#include "engine/sequence.h"

namespace ZS_NAMESPACE {

// So few rows that weights are read where they are instead of being packed. Decided by shape alone, so
// results are reproducible.
inline bool reads_weights_directly(const Problem& p) { return p.T * p.N <= 3 && !p.starts; }

// The product of one stage, whose columns are registers. A gated panel holds `vectors` gates of one group of
// units; a plain one as many groups of units, the first `wider` ones one more.
// The gates of the last group's units may fit in fewer registers than there are gates: then they lie in a
// narrow panel, gate after gate without gaps.
template <class E>
struct Stage {
  static constexpr int L = Operand<E>::L;
  int vectors = 1;
  bool gated = false;
  i64 panels = 0, wider = 0;
  int rows = 1;                             // of a tile, at most
  int missing = 0;                          // registers of the last panel that are not there
  i64 length = 0;                           // values of k in the product
  i64 K = 0;                                // elements
  const E* packed[2] = {nullptr, nullptr};  // panel after panel, [K][width·lanes], for each direction

  int width(i64 panel) const { return vectors + (panel < wider) - missing * (panel + 1 == panels); }
  bool narrow(i64 panel) const { return missing > 0 && panel + 1 == panels; }
  i64 begin(i64 panel) const { return panel * vectors + min_of(panel, wider); }
  i64 columns() const { return parts() - missing; }
  // A part is what is packed at a time: a gate of a panel, or a group of units.
  i64 parts() const { return panels * vectors + wider; }
  i64 panel_of(i64 part) const {
    return part < wider * (vectors + 1) ? part / (vectors + 1) : (part - wider) / vectors;
  }
  i64 first_unit(i64 panel) const { return (gated ? panel : begin(panel)) * L; }
};

// A panel's greatest width in a plain product. Narrow panels give few units to more threads; with one row,
// the width also fixes the order of the sum, so it must follow from the shape alone.
inline i64 most_plain_vectors(i64 groups) { return groups >= 8 ? 4 : groups >= 4 ? 2 : 1; }
template <class E>
Stage<E> plain_stage(i64 H, i64 length) {
  Stage<E> stage;
  const i64 groups = ceil_div(H, stage.L);
  stage.panels = ceil_div(groups, most_plain_vectors(groups));
  if (groups >= 8) stage.panels = round_up(stage.panels, 2);  // as many for each of two members
  stage.vectors = static_cast<int>(groups / stage.panels);
  stage.wider = groups % stage.panels;
  stage.rows = tile_rows(stage.vectors + (stage.wider > 0));
  stage.length = length;
  stage.K = depth_of<E>(length);
  return stage;
}
template <class E>
Stage<E> gated_stage(int gates, const Problem& p) {
  Stage<E> stage;
  stage.vectors = gates;
  stage.gated = true;
  stage.rows = tile_rows(gates);
  stage.panels = ceil_div(p.H, stage.L);
  const i64 last_units = p.H - (stage.panels - 1) * stage.L;
  if (!reads_weights_directly(p))
    stage.missing = gates - static_cast<int>(ceil_div(gates * last_units, stage.L));
  stage.length = p.H;
  stage.K = depth_of<E>(p.H);
  return stage;
}
template <class E>
i64 stage_size(const Stage<E>& stage) {
  return zstate::size_product(stage.columns(), stage.K, stage.L);
}

template <class E>
TileProduct<E> step_kernel(int vectors, int rows, bool single_row) {
  if (single_row) {
    static constexpr TileProduct<E> kernels[] = {
        nullptr, tile_product<E, 1, 1, 8, false>, tile_product<E, 1, 2, 4, false>,
        tile_product<E, 1, 3, 2, false>, tile_product<E, 1, 4, 2, false>};
    return kernels[vectors];
  }
  return tile_product_for<E, false>(vectors, rows);
}

// How a team shares the steps. It decides who computes an element, never how.
enum class Split { kSolo, kUnits, kBatch, kDirections };

// Where the cache that all members share holds the packed weights of one direction but not of both.
inline bool one_direction_at_a_time(const Problem& p, i64 weight_bytes) {
  return p.D == 2 && weight_bytes >= (i64{16} << 20);
}

inline Split choose_split(int members, const Problem& p, i64 weight_bytes) {
  if (members == 1) return Split::kSolo;
  // Each member's cache then holds the weights of one direction, and no member waits for another.
  if (p.D == 2 && members == 2 && weight_bytes > 0 && !one_direction_at_a_time(p, weight_bytes))
    return Split::kDirections;
  // A member that owns the longest sequences would be the last one to end.
  if (p.starts) return p.rows() * p.D * p.G * p.H * p.H < 10000 * p.T ? Split::kSolo : Split::kUnits;
  const i64 rows = p.N / members;
  // Every thread then reads all weights at every step: worth it from its own cache, or for many rows.
  if (rows >= 32 || (rows >= 4 && weight_bytes <= (i64{768} << 10))) return Split::kBatch;
  // A barrier costs about as much as this many multiplications.
  if (p.D * p.N * p.G * p.H * p.H < 10000) return Split::kSolo;
  return Split::kUnits;
}

// A tile of a product that direct_product() has computed.
template <class E, class R>
void take_product(const Stage<E>& stage, const R* products, i64 Hp, i64 panel, i64 row, int rows, R* tile) {
  constexpr int L = Simd<R>::lanes;
  const int width = stage.width(panel);
  const i64 gates = stage.gated ? width : 1, next = stage.gated ? Hp : L;
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < width; ++v) {
      const R* from = products + (row + r) * gates * Hp + stage.first_unit(panel) + v * next;
      Io<R>::store(tile + (r * width + v) * L, Io<R>::load(from));
    }
}

// Gives each gate of a narrow panel's tile a register of its own, with zeros behind its units: from the end,
// since a gate's new place begins behind all that come before its old one.
template <class E, class R>
[[gnu::noinline]] void spread_gates(const Stage<E>& stage, i64 panel, int units, int rows, R* tile) {
  mark(Path::gates_in_fewer_registers);
  for (int r = rows - 1; r >= 0; --r)
    for (int v = stage.vectors - 1; v >= 0; --v) {
      const R* from = tile + r * stage.width(panel) * stage.L + v * units;
      Io<R>::store(tile + (r * stage.vectors + v) * stage.L, Io<R>::load_n(from, units));
    }
}

// The product of one tile: rows [row, row + rows) of a panel, with x's part where that is not projected.
template <class Cell, class R>
ZS_DEVICE void multiply_tile(const Cell& cell, int index, int d, i64 s, i64 panel, i64 row, int rows,
                             R* tile) {
  using E = typename Cell::Element;
  const Stage<E>& stage = cell.stages[index];
  const int vectors = stage.width(panel);
  const i64 width = vectors * stage.L;
  if constexpr (Cell::kTakesInput)
    if (cell.input_is_far) cell.prefetch_input(index, d, s, panel, row, rows);
  // Rows beyond these have nothing to multiply: sequences that begin or end here.
  const int with = static_cast<int>(max_of(0, min_of(rows, cell.product_rows(index, d, s) - row)));
  if (with < rows)
    std::memset(tile + with * width, 0, sizeof(R) * static_cast<std::size_t>((rows - with) * width));
  if (with > 0 && !stage.packed[d]) {
    take_product(stage, cell.products[d], cell.Hp, panel, row, with, tile);
  } else if (with > 0) {
    i64 lda;
    const E* a = cell.operand(index, d, s, lda) + row * lda;
    const auto product = step_kernel<E>(vectors, with, cell.problem.N == 1);
    product(stage.K, a, lda, stage.packed[d] + stage.begin(panel) * stage.K * stage.L, width, tile, width,
            false);
  }
  if constexpr (Cell::kTakesInput)
    if (cell.fused) cell.add_input(d, s, panel, row, rows, tile);
  if (stage.narrow(panel))
    spread_gates(stage, panel, lanes_at<R>(stage.first_unit(panel), cell.problem.H), rows, tile);
}

// The cell's equations on that tile: inlined, with the constants of the activations in registers; and once
// more for whole vectors, without their tests.
template <class Cell, class R>
void apply_to_tile(Cell& cell, int index, int d, i64 s, i64 panel, i64 row, int rows, const R* tile) {
  constexpr int L = Simd<R>::lanes;
  const auto& stage = cell.stages[index];
  const int groups = stage.gated ? 1 : stage.width(panel);
  const i64 width = (stage.gated ? stage.vectors : groups) * L, H = cell.problem.H;
  i64 u = stage.first_unit(panel);
  for (int v = 0; v < groups; ++v, u += L, tile += L) {
    const int lanes = lanes_at<R>(u, H);
    if (lanes == L)
      for (int r = 0; r < rows; ++r) cell.apply(index, d, s, row + r, u, L, tile + r * width);
    else
      for (int r = 0; r < rows; ++r) cell.apply(index, d, s, row + r, u, lanes, tile + r * width);
  }
}

// The same, of a cell that is known by its base.
template <class Cell, class Base>
void apply_of(Base& cell, int index, int d, i64 s, i64 panel, i64 row, int rows,
              const typename Base::Real* tile) {
  apply_to_tile(static_cast<Cell&>(cell), index, d, s, panel, row, rows, tile);
}
template <class Base>
using Apply = void (*)(Base&, int, int, i64, i64, i64, int, const typename Base::Real*);

// The product of a member's tiles where weights are read in place: all units of a direction at once, since
// long stretches of memory are read faster than many short ones.
template <class Cell>
void scan_direct_product(const Cell& cell, int index, i64 s, Range tiles) {
  const auto& stage = cell.stages[index];
  for (int d = 0; d < cell.problem.D; ++d) {
    const i64 begin = stage.first_unit(max_of(tiles.begin - d * stage.panels, 0));
    const i64 end =
        min_of(stage.first_unit(min_of(tiles.end - d * stage.panels, stage.panels)), cell.problem.H);
    if (begin < end) cell.direct_product(index, d, s, begin, end);
  }
}

// One member's tiles of one stage, for the directions [first, last). Odd steps go through them backwards:
// what the last step used last is still in the cache.
template <class Cell>
void scan_stage(Cell& cell, const Team& team, Split split, int index, i64 s, int first_d, int last_d) {
  using R = typename Cell::Real;
  const auto& stage = cell.stages[index];
  alignas(64) R values[24 * Simd<R>::lanes];  // of a tile
  Range rows[2] = {};
  i64 blocks[2] = {};
  for (int d = first_d; d < last_d; ++d) {
    const i64 all = cell.rows_at(d, s);
    rows[d] = split == Split::kBatch ? share(team, all) : Range{0, all};
    const i64 count = rows[d].end - rows[d].begin;
    blocks[d] = count <= stage.rows ? count > 0 : ceil_div(count, stage.rows);
  }
  const i64 forwards = stage.panels * blocks[0], tiles = forwards + stage.panels * blocks[1];
  const Range mine = split == Split::kUnits ? share(team, tiles) : Range{0, tiles};
  // A narrow panel takes its turn in the middle, where two members share it.
  const i64 turn = stage.missing ? (stage.panels - 1) / 2 : 0;
  if (cell.direct && cell.product_rows(index, first_d, s) > 0) scan_direct_product(cell, index, s, mine);
  for (i64 i = mine.begin; i < mine.end; ++i) {
    if ((i & 63) == 63 && team.stopped()) return;
    i64 tile = s & 1 ? mine.end - 1 - (i - mine.begin) : i;
    const int d = tile < forwards ? 0 : 1;
    if (d == 1) tile -= forwards;
    i64 panel = tile, first = rows[d].begin, last = rows[d].end;
    if (blocks[d] > 1) {  // a small call has one block, and no time for divisions
      const i64 block = tile % blocks[d], count = last - first;
      panel = tile / blocks[d];
      last = first + count * (block + 1) / blocks[d];
      first += count * block / blocks[d];
    }
    panel += turn;
    if (panel >= stage.panels) panel -= stage.panels;
    const int count = static_cast<int>(last - first);
    multiply_tile(cell, index, d, s, panel, first, count, values);
    cell.facts->apply(cell, index, d, s, panel, first, count, values);
  }
}

template <class Cell>
void mark_scan(const Cell& cell, Split split) {
  const Problem& p = cell.problem;
  constexpr Path splits[] = {Path::split_solo, Path::split_units, Path::split_batch, Path::split_directions};
  mark(splits[static_cast<int>(split)]);
  mark(p.starts ? Path::different_lengths : Path::equal_lengths);
  if (p.N == 1) mark(Path::single_row);
  if (one_direction_at_a_time(p, cell.weight_bytes)) mark(Path::directions_in_turn);
}

// `count` steps from `first`, in the given direction (1 or -1). All members leave together. The two
// directions of a layer go side by side, or one after the other.
template <class Cell>
void scan(Cell& cell, const Team& team, i64 first, i64 count, i64 direction) {
  const Split split = cell.split(team.size);
  mark_scan(cell, split);
  const int D = static_cast<int>(cell.problem.D);
  const bool split_up = split == Split::kDirections;
  const int together = split_up || one_direction_at_a_time(cell.problem, cell.weight_bytes) ? 1 : D;
  const int begin = split_up ? team.rank : 0, end = split_up ? begin + 1 : D;
  if (split != Split::kSolo || team.rank == 0)
    for (int d = begin; d < end; d += together)
      for (i64 i = 0; i < count && !team.stopped(); ++i)
        for (int index = 0; index < cell.facts->stages; ++index) {
          scan_stage(cell, team, split, index, first + i * direction, d, d + together);
          if (split == Split::kUnits) team.barrier();
        }
  if (split != Split::kUnits) team.barrier();
}

}  // namespace ZS_NAMESPACE
