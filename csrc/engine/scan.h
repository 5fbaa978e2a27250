// The scan: the one loop over time that every cell shares, forward and backward.
//
// A step has some stages. A stage is matrix products (rows of the batch × panels of packed weights) and,
// while tiles of them are still in the first-level cache, the cell's equations on these tiles.
#pragma once

#include "engine/few_rows.h"
#include "engine/gemm.h"
#include "engine/sequence.h"

namespace ZS_NAMESPACE {

// So few rows that weights are read in place instead of being packed. Decided by shape alone, so results are
// reproducible.
inline bool reads_weights_directly(const Problem& p) {
  return p.T * p.N <= kMostDirectRows && !p.starts && !p.packed;
}

// The product of one part of a stage, whose columns are registers. A gated panel holds `vectors` gates of one
// group of units; a plain one as many groups of units, the first `wider` ones one more.
// The gates of the last group's units may fit in fewer registers than there are gates: then they lie in a
// narrow panel, gate after gate without gaps.
template <class E>
struct Part {
  static constexpr int L = Operand<E>::L;
  int vectors;
  bool gated;
  i64 panels, wider;
  int rows;            // of a tile, at most
  int missing;         // registers of the last panel that are not there
  i64 length;          // values of k in the product
  i64 K;               // elements
  const E* packed[2];  // panel after panel, [K][width·lanes], for each direction; null: not packed

  int start;       // where its values begin in a tile, in vectors of each row and unit
  bool adds;       // to what another part has left there
  int operand;     // what is multiplied; backward: place k of `extra`, or -1 for the gates' gradient
  int slots[4];    // forward: the gate of each vector, by its place along the G axis
  int first;       // backward: the first gate, likewise
  E* elements[2];  // backward: the gradients as elements, [2][N][row] of this step and the next
  i64 row;

  int width(i64 panel) const { return vectors + (panel < wider) - missing * (panel + 1 == panels); }
  bool narrow(i64 panel) const { return missing > 0 && panel + 1 == panels; }
  i64 begin(i64 panel) const { return panel * vectors + min_of(panel, wider); }
  i64 columns() const { return parts() - missing; }
  // What is packed at a time: a gate of a panel, or a group of units.
  i64 parts() const { return panels * vectors + wider; }
  i64 panel_of(i64 part) const {
    return part < wider * (vectors + 1) ? part / (vectors + 1) : (part - wider) / vectors;
  }
  i64 size() const { return zstate::size_product(columns(), K + Operand<E>::kTail, L); }
  const E* panel(int d, i64 number) const { return packed[d] + begin(number) * (K + Operand<E>::kTail) * L; }
};

// A panel's greatest width in a plain product. Narrow panels give few units to more threads; with one row,
// the width also fixes the order of the sum, so it must follow from the shape alone.
inline i64 most_plain_vectors(i64 groups) { return groups >= 8 ? 4 : groups >= 4 ? 2 : 1; }
template <class E>
void make_plain(Part<E>& part, i64 H, i64 length) {
  const i64 groups = ceil_div(H, part.L);
  part.gated = false;
  part.panels = ceil_div(groups, most_plain_vectors(groups));
  if (groups >= 8) part.panels = round_up(part.panels, 2);  // as many for each of two members
  part.vectors = static_cast<int>(groups / part.panels);
  part.wider = groups % part.panels;
  part.rows = tile_rows(part.vectors + (part.wider > 0));
  part.missing = 0;
  part.length = length;
  part.K = depth_of<E>(length);
}
template <class E>
void make_gated(Part<E>& part, int gates, const Problem& p) {
  part.gated = true;
  part.vectors = gates;
  part.rows = tile_rows(gates);
  part.panels = ceil_div(p.H, part.L);
  part.wider = 0;
  const i64 last_units = p.H - (part.panels - 1) * part.L;
  part.missing =
      reads_weights_directly(p) ? 0 : gates - static_cast<int>(ceil_div(gates * last_units, part.L));
  part.length = p.H;
  part.K = depth_of<E>(p.H);
}

// The products of one stage. All parts have the same panels of units.
template <class E>
struct Stage {
  static constexpr int L = Operand<E>::L;
  Part<E> parts[zstate::kMostProducts];
  int count;   // of parts
  bool gated;  // a panel is one group of units
  i64 panels;
  int rows;         // of a tile, at most
  i64 single_rows;  // panels that are computed together with one row
  int values;       // vectors of a tile for each row and unit
  bool narrow;      // whether the last panel of some part is

  // The units of a panel, by groups.
  i64 begin(i64 panel) const { return gated || !count ? panel : parts[0].begin(panel); }
  i64 first_unit(i64 panel) const { return begin(panel) * L; }

  Part<E>& add() { return parts[count++]; }
  // Called when all parts are complete.
  void finish(i64 H, int tile_values) {
    gated = !count || parts[0].gated;
    panels = count ? parts[0].panels : ceil_div(H, L);
    rows = count ? 8 : 16;
    narrow = false;
    values = tile_values;
    for (int i = 0; i < count; ++i) {
      rows = static_cast<int>(min_of(rows, parts[i].rows));
      narrow |= parts[i].missing > 0;
      parts[i].packed[0] = parts[i].packed[1] = nullptr;
    }
  }
};

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

// How a team shares the steps. This decides which member computes an element, never how.
enum class Split { kSolo, kUnits, kBatch, kDirections };

// Weights that the cache that all members share may hold.
constexpr i64 kSharedCacheBytes = i64{16} << 20;

// If that cache holds the packed weights of one direction but not both.
inline bool one_direction_at_a_time(const Problem& p, i64 weight_bytes) {
  return p.D == 2 && weight_bytes >= kSharedCacheBytes;
}

// `speed` of products, against those of float.
inline Split choose_split(int members, const Problem& p, i64 weight_bytes, double speed = 1) {
  if (members == 1) return Split::kSolo;
  // Each member's cache then holds the weights of one direction, and no member waits for another.
  if (p.D == 2 && members == 2 && weight_bytes > 0 && !one_direction_at_a_time(p, weight_bytes))
    return Split::kDirections;
  // A barrier costs about as much as this many multiplications.
  const i64 barrier = static_cast<i64>(10000 * speed);
  // A member that owns the longest sequences would be the last one to end.
  if (p.starts) return p.rows() * p.D * p.G * p.H * p.H < barrier * p.T ? Split::kSolo : Split::kUnits;
  const i64 rows = p.N / members;
  // Every thread then reads all weights at every step, which pays off from its own cache or for many rows.
  if (rows >= 32 || (rows >= 4 && weight_bytes <= (i64{768} << 10))) return Split::kBatch;
  if (p.D * p.N * p.G * p.H * p.H < barrier) return Split::kSolo;
  return Split::kUnits;
}

// Gives each gate of a narrow panel's tile a register of its own, with zeros behind its units: from the end,
// since a gate's new place begins behind all that come before its old one.
template <class E, class R>
[[gnu::noinline]] void spread_gates(const Part<E>& part, i64 panel, int units, int rows, R* tile) {
  mark(Path::gates_in_fewer_registers);
  for (int r = rows - 1; r >= 0; --r)
    for (int v = part.vectors - 1; v >= 0; --v) {
      const R* from = tile + r * part.width(panel) * part.L + v * units;
      Io<R>::store(tile + (r * part.vectors + v) * part.L, Io<R>::load_n(from, units));
    }
}

// The product of one part in one tile: rows [row, row + rows) of a panel, with x's part where that is not
// projected; `to` are its rows, `ld` apart. The tile is one of several that read the panel.
template <class Cell, class R>
void multiply_tile(const Cell& cell, int index, const Part<typename Cell::Element>& part, int d, i64 s,
                   i64 panel, i64 row, int rows, R* to, i64 ld, int rank, i64 block, i64 blocks) {
  using E = typename Cell::Element;
  const int vectors = part.width(panel);
  const i64 width = vectors * part.L;
  // Rows beyond these have nothing to multiply: sequences that begin or end here.
  const int with = static_cast<int>(max_of(0, min_of(rows, cell.product_rows(index, d, s) - row)));
  for (int r = with; r < rows && !part.adds; ++r)
    std::memset(to + r * ld, 0, sizeof(R) * static_cast<std::size_t>(width));
  if (with > 0) {
    i64 lda;
    const LeftOf<E>* a = cell.operand(index, part, d, s, rank, lda) + row * lda;
    const auto product = step_kernel<E>(vectors, with, cell.p.N == 1);
    Ahead ahead;
    const i64 next = s & 1 ? panel - 1 : panel + 1;
    if (cell.weight_bytes > kSlowBytes && next >= 0 && next < part.panels)
      ahead = part_ahead(part.panel(d, next), part.K * part.width(next) * part.L, block, blocks, part.K);
    product(part.K, a, lda, part.panel(d, panel), width, to, ld, part.adds, ahead);
  }
  if constexpr (Cell::kTakesInput)
    if (cell.fused) cell.add_input(part, d, s, panel, row, rows, to, ld);
}

// Some panels × some blocks of rows of one stage, which are multiplied one by one and computed together.
struct TileGroup {
  int d;
  i64 panel, panels;  // either these
  i64 block, blocks;  // or these are several
};

template <class Cell>
void compute_tiles(Cell& cell, int index, i64 s, const TileGroup& group, Range all, i64 blocks, int rank) {
  using R = typename Cell::Real;
  const auto& stage = cell.stages[index];
  R* tile = cell.tile(rank);
  constexpr int L = Simd<R>::lanes;
  const i64 count = all.end - all.begin, panels_end = group.panel + group.panels;
  const auto row_at = [&](i64 block) { return all.begin + count * block / blocks; };
  const i64 first = blocks == 1 ? all.begin : row_at(group.block);
  const i64 rows = blocks == 1 ? count : row_at(group.block + group.blocks) - first;
  const i64 first_group = stage.begin(group.panel);
  const i64 vectors = stage.begin(panels_end) - first_group;
  if constexpr (Cell::kTakesInput)
    if (cell.input_is_far) cell.prefetch_input(index, group.d, s, first_group, vectors, first, rows);
  for (int q = 0; q < stage.count; ++q) {
    const auto& part = stage.parts[q];
    const int values = part.gated ? part.vectors : 1;
    R* base = tile + part.start * rows * vectors * L;
    for (i64 i = 0; i < group.panels; ++i) {
      const i64 panel = s & 1 ? panels_end - 1 - i : group.panel + i;
      const i64 at = (stage.begin(panel) - first_group) * values * L;
      if (group.blocks == 1) {
        const i64 ld = part.narrow(panel) ? part.width(panel) * L : vectors * values * L;
        multiply_tile(cell, index, part, group.d, s, panel, first, static_cast<int>(rows), base + at, ld,
                      rank, 0, 1);
        continue;
      }
      for (i64 block = group.block; block < group.block + group.blocks; ++block) {
        const i64 row = row_at(block);
        const int n = static_cast<int>(row_at(block + 1) - row);
        const i64 ld = vectors * values * L;  // a narrow panel has one block at a time
        multiply_tile(cell, index, part, group.d, s, panel, row, n, base + (row - first) * ld + at, ld, rank,
                      s & 1 ? blocks - 1 - block : block, blocks);
      }
    }
    if (part.narrow(group.panel))
      spread_gates(part, group.panel, lanes_at<R>(stage.first_unit(group.panel), cell.p.H),
                   static_cast<int>(rows), base);
  }
  cell.apply(index, group.d, s, first, static_cast<int>(rows), first_group, static_cast<int>(vectors), tile,
             rank);
}

// One member's share of a stage where weights are read in place: all units of a direction at once, since long
// stretches of memory are read faster than many short ones.
template <class Cell>
void compute_directly(Cell& cell, int index, i64 s, Range tiles, int rank) {
  const auto& stage = cell.stages[index];
  for (int d = 0; d < cell.p.D; ++d) {
    const i64 begin = stage.begin(max_of(tiles.begin - d * stage.panels, 0));
    const i64 end = stage.begin(min_of(tiles.end - d * stage.panels, stage.panels));
    if (begin >= end) continue;
    const i64 last = min_of(end * stage.L, cell.p.H);
    if (stage.count > 0) cell.direct_product(index, d, s, begin * stage.L, last);
    cell.apply(index, d, s, 0, static_cast<int>(cell.p.N), begin, static_cast<int>(end - begin), nullptr,
               rank);
  }
}

// One member's tiles of one stage, for the directions [first, last). Odd steps go through them backwards:
// what the last step used last is still in the cache.
template <class Cell>
void scan_stage(Cell& cell, const Team& team, Split split, int index, i64 s, int first_d, int last_d) {
  const auto& stage = cell.stages[index];
  if (cell.cell.stages[index].mean_count)
    for (int d = first_d; d < last_d; ++d) {
      const i64 all = cell.rows_at(d, s);
      cell.average(index, d, split == Split::kBatch ? share(team, all) : Range{0, all}, team.rank);
    }
  if (cell.direct) {
    const i64 tiles = stage.panels * cell.p.D;
    return compute_directly(cell, index, s, split == Split::kUnits ? share(team, tiles) : Range{0, tiles},
                            team.rank);
  }
  Range rows[2] = {};
  i64 blocks[2] = {};
  for (int d = first_d; d < last_d; ++d) {
    const i64 all = cell.rows_at(d, s);
    rows[d] = split == Split::kBatch ? share(team, all) : Range{0, all};
    const i64 count = rows[d].end - rows[d].begin;
    blocks[d] = count <= stage.rows ? count > 0 : ceil_div(count, stage.rows);
  }
  const i64 forwards = stage.panels * blocks[0], tiles = forwards + stage.panels * blocks[1];
  Range mine = split == Split::kUnits ? share(team, tiles) : Range{0, tiles};
  if constexpr (Operand<typename Cell::Element>::kTail > 0)
    for (int d = first_d; d < last_d; ++d)
      if (mine.begin < mine.end) cell.quantise(index, d, s, rows[d], team.rank);
  // A narrow panel takes its turn in the middle, where two members share it.
  const i64 turn = stage.narrow ? (stage.panels - 1) / 2 : 0;
  const bool down = s & 1;
  for (i64 turns = 0; mine.begin < mine.end; ++turns) {
    if ((turns & 63) == 63 && team.stopped()) return;
    const i64 tile_at = down ? mine.end - 1 : mine.begin;
    TileGroup group{tile_at < forwards ? 0 : 1, 0, 1, 0, 1};
    const i64 at = tile_at - (group.d ? forwards : 0), all = mine.end - mine.begin;
    const i64 count = rows[group.d].end - rows[group.d].begin;
    i64 taken = 1;
    if (blocks[group.d] > 1) {
      group.panel = at / blocks[group.d], group.block = at % blocks[group.d];
      taken = min_of(min_of(down ? group.block + 1 : blocks[group.d] - group.block, all),
                     cell.blocks_at_once(index));
      if (down) group.block -= taken - 1;
      group.blocks = taken;
    } else {
      group.panel = at;
    }
    group.panel += turn;
    if (group.panel >= stage.panels) group.panel -= stage.panels;
    const i64 last = stage.panels - 1;
    if (stage.narrow && group.panel == last) {
      if (blocks[group.d] > 1) {  // one by one
        if (down) group.block += taken - 1;
        group.blocks = taken = 1;
      }
    } else if (blocks[group.d] == 1) {
      // Neighbours that come next, up to a narrow one.
      const i64 room =
          down ? group.panel + 1 - (group.panel < turn ? 0 : turn)
               : (group.panel < turn ? turn : stage.panels - (stage.narrow ? 1 : 0)) - group.panel;
      taken = min_of(min_of(room, all), cell.panels_at_once(index, static_cast<int>(count)));
      if (down) group.panel -= taken - 1;
      group.panels = taken;
    }
    compute_tiles(cell, index, s, group, rows[group.d], blocks[group.d], team.rank);
    if (down)
      mine.end -= taken;
    else
      mine.begin += taken;
  }
}

// The stages from this one on that a member can compute one after another for its own rows: those that begin
// with means and multiply nothing. The rows' values then stay in the first-level cache, and no member waits.
template <class Cell>
int end_of_rows(const Cell& cell, int index) {
  const auto& stages = cell.cell.stages;
  if (!stages[index].mean_count) return index;
  while (index < cell.stage_count && !stages[index].product_count) ++index;
  return index;
}

template <class Cell>
void scan_rows(Cell& cell, const Team& team, Split split, int index, int end, i64 s, int first_d,
               int last_d) {
  const i64 groups = ceil_div(cell.p.H, Cell::L), together = max_of(1, Cell::kTogether / groups);
  for (int d = first_d; d < last_d; ++d) {
    const i64 all = cell.rows_at(d, s);
    const bool shares = split == Split::kUnits || split == Split::kBatch;
    const Range mine = shares ? share(team, all) : Range{0, all};
    for (i64 row = mine.begin, next; row < mine.end && !team.stopped(); row = next) {
      next = min_of(row + together, mine.end);
      for (int each = index; each < end; ++each) {
        cell.average(each, d, {row, next}, team.rank);
        cell.apply(each, d, s, row, static_cast<int>(next - row), 0, static_cast<int>(groups), nullptr,
                   team.rank);
      }
    }
  }
}

template <class Cell>
void mark_scan(const Cell& cell, Split split) {
  const Problem& p = cell.p;
  constexpr Path splits[] = {Path::split_solo, Path::split_units, Path::split_batch, Path::split_directions};
  mark(splits[static_cast<int>(split)]);
  mark(p.starts ? Path::different_lengths : Path::equal_lengths);
  if (p.N == 1) mark(Path::single_row);
  if (p.N > 1 && cell.weight_bytes > kSlowBytes) mark(Path::panels_prefetched);
  if (one_direction_at_a_time(p, cell.weight_bytes)) mark(Path::directions_in_turn);
}

// `count` steps from `first`, in the given direction (1 or -1). All members leave together. The two
// directions of a layer run side by side, or one after the other.
template <class Cell>
void scan(Cell& cell, const Team& team, i64 first, i64 count, i64 direction) {
  const Split split = cell.split(team.size);
  mark_scan(cell, split);
  const int D = static_cast<int>(cell.p.D);
  const bool split_up = split == Split::kDirections;
  const int together = split_up || one_direction_at_a_time(cell.p, cell.weight_bytes) ? 1 : D;
  const int begin = split_up ? team.rank : 0, end = split_up ? begin + 1 : D;
  if (split != Split::kSolo || team.rank == 0)
    for (int d = begin; d < end; d += together)
      for (i64 i = 0; i < count && !team.stopped(); ++i)
        for (int index = 0, next; index < cell.stage_count; index = next) {
          const i64 s = first + i * direction;
          next = end_of_rows(cell, index);
          if (next > index)
            scan_rows(cell, team, split, index, next, s, d, d + together);
          else
            scan_stage(cell, team, split, next++, s, d, d + together);
          if (split == Split::kUnits) team.barrier();
        }
  if (split != Split::kUnits) team.barrier();
}

}  // namespace ZS_NAMESPACE
