// Where the values of a cell's programs are stored, and how a program runs over a block of rows and units.
#pragma once

#include <new>

#include "engine/arena.h"
#include "engine/interpreter.h"
#include "engine/sequence.h"

namespace ZS_NAMESPACE {

using zstate::PlaceKind;
using zstate::Program;

// What the steps of a place count by: nothing, the step's rows, those of the step in front, the step and the
// one behind it (a mask has no packed rows), the step within a chunk, which half of a buffer is next, or the
// member that computes.
enum Counter : unsigned char {
  kFixed,
  kNow,
  kBefore,
  kStep,
  kNextStep,
  kInChunk,
  kNextHalf,
  kMember,
  kCounters
};

enum class Storage : unsigned char { kReal, kStored, kElement, kTile };

// A place of a program, for one direction.
template <class R>
struct Source {
  void* data;
  i64 step, row;  // strides in elements
  i64 unit;       // all bits where each unit has a value of its own, none where there is one for all
  unsigned char counter;
  Storage storage;
  bool copies_whole, copies_part;      // not usable as it lies, for whole vectors or for part of one
  bool elsewhere;                      // its new value: not written here
  unsigned char start, width, vector;  // of a tile: where its values begin, in vectors of each row and unit
};

// The rows and units that a program runs over. The last vector may be partial if it is the only one.
template <class R>
struct Block {
  const i64* counters;
  i64 row, unit;
  int rows, vectors, lanes;
  // Of the products: the tile, its size in rows and vectors, and where the block begins in it.
  R* tile;
  int tile_rows, tile_vectors, tile_row, tile_vector;
  bool last;  // nothing follows
};

inline constexpr int kRunVectors = 32;  // the most of a block

template <class S, class E>
struct Places {
  using R = RealOf<S>;
  using V = Vec<R>;
  using Op = Operand<E>;
  using From = Source<R>;
  static constexpr int L = Simd<R>::lanes;
  static constexpr i64 kEach = -1;
  static constexpr bool kSame = sizeof(S) == sizeof(R);

  // `whole`: its rows have room for whole vectors.
  static From real(const void* data, Counter counter, i64 step, i64 row, bool whole) {
    return {
        const_cast<void*>(data), step, row, kEach, counter, Storage::kReal, false, !whole, false, 0, 0, 0};
  }
  static From stored(const void* data, Counter counter, i64 step, i64 row) {
    constexpr Storage storage = kSame ? Storage::kReal : Storage::kStored;
    return {const_cast<void*>(data), step, row, kEach, counter, storage, !kSame, true, false, 0, 0, 0};
  }
  static From zeros() {
    alignas(64) static const R none[L] = {};
    return {const_cast<R*>(none), 0, 0, 0, kFixed, Storage::kReal, false, false, false, 0, 0, 0};
  }
  // The rows of every step, or zeros.
  template <class T>
  static From rows(const Rows<T>& from, Counter counter, i64 column) {
    if (!from) return zeros();
    const i64 step = from.starts ? from.row : from.step;
    const auto* data = from.data + column;
    return sizeof(T) == sizeof(R) ? real(data, counter, step, from.row, false)
                                  : stored(data, counter, step, from.row);
  }
  static From mask(const MaskRows<S>& from, Counter counter) {
    From source = stored(from.data, counter, from.step, from.row);
    if (from.splat) source.unit = 0, source.copies_whole = source.copies_part = true;
    return source;
  }
  // One value per row, in every lane of a vector of its own.
  static From row_values(const R* data, Counter counter, i64 step) {
    From source = real(data, counter, step, L, true);
    source.unit = 0;
    return source;
  }
  static From product(int start, int width, int vector) {
    const auto small = [](int number) { return static_cast<unsigned char>(number); };
    return {nullptr, 0,     0,     kEach,        kFixed,       Storage::kTile,
            false,   false, false, small(start), small(width), small(vector)};
  }
  // `plain`: values, whatever the elements are.
  static From elements(HeldOf<E>* data, Counter counter, i64 step, i64 row, bool plain) {
    if (plain) return real(data, counter, step, row, true);
    return {data, step, row, kEach, counter, Storage::kElement, true, true, false, 0, 0, 0};
  }

  // Values that a member needs for its programs.
  static i64 scratch_size(const Program& program) {
    return i64{program.place_count + program.temporary} * kRunVectors * L;
  }

  static void run(const Program& program, const From* sources, const Block<R>& block, R* scratch) {
    View<R> views[zstate::kMostPlaces];
    const i64 rows = block.rows, vectors = block.vectors, count = rows * vectors * L;
    const bool part = block.lanes<L, by_row = rows> vectors;
    int i = 0;
    for (; i < program.place_count && sources[i].storage == Storage::kTile; ++i) {
      const From& from = sources[i];
      const i64 near = from.width * L, far = block.tile_vectors * near;
      R* data = block.tile + (i64{from.start} * block.tile_rows * block.tile_vectors + from.vector) * L +
                block.tile_row * far + block.tile_vector * near;
      views[i] = by_row ? View<R>{data, far, near} : View<R>{data, near, far};
    }
    for (; i < program.place_count; ++i) {
      const From& from = sources[i];
      R* data = static_cast<R*>(from.data) + offset(from, block);
      i64 near = from.unit & L, far = from.row;
      if (part ? from.copies_part : from.copies_whole) [[unlikely]] {
        data = scratch, near = from.unit & L, far = from.unit ? vectors * L : L;
        scratch += count;
        if (program.places[i].read) load(from, block, data);
      }
      views[i] = by_row ? View<R>{data, far, near} : View<R>{data, near, far};
    }
    const i64 inner = by_row ? rows : vectors, outer = by_row ? vectors : rows;
    int value = program.place_count;
    for (int i = 0; i < program.number_count; ++i) views[value++] = {number(program.numbers[i]), 0, 0};
    for (int i = 0; i < program.temporary; ++i, scratch += count) views[value++] = {scratch, L, inner * L};
    const Frame<R> frame{views, inner, outer};
    run_code(program.code, frame);
    if (!block.last) run_code(program.late, frame);
    const int outputs = block.last ? program.core_outputs : program.output_count;
    for (int i = 0; i < outputs; ++i) {
      const auto [place, from] = program.outputs[i];
      const From& to = sources[place];
      if (to.elsewhere) continue;
      if (part ? to.copies_part : to.copies_whole)
        store(views[from], by_row, to, block);
      else if (place != from)
        each_vector<R, 1, Instructions<R>::copy>(frame, {0, place, from, from, from, from});
    }
  }

 private:
  static R* number(const zstate::Number& number) {
    if constexpr (sizeof(R) == 4)
      return const_cast<R*>(number.single);
    else
      return const_cast<R*>(number.twice);
  }
  static ZS_DEVICE i64 offset(const From& from, const Block<R>& block) {
    return block.counters[from.counter] * from.step + block.row * from.row + (block.unit & from.unit);
  }

  static void load(const From& from, const Block<R>& block, R* to) {
    const i64 first = offset(from, block);
    if (!from.unit)
      return load_row_values(static_cast<const S*>(from.data) + first, from.row, block.rows, to);
    for (int r = 0; r < block.rows; ++r)
      for (int v = 0; v < block.vectors; ++v, to += L) {
        const i64 at = first + r * from.row + v * L;
        const int lanes = v + 1 < block.vectors ? L : block.lanes;
        Io<R>::store(to, from.storage == Storage::kReal
                             ? Io<R>::load_n(static_cast<const R*>(from.data) + at, lanes)
                             : Io<S>::load_n(static_cast<const S*>(from.data) + at, lanes));
      }
  }
  // One value for all units of a row: one vector. A block may have few units for each, so this is short.
  static void load_row_values(const S* from, i64 row, int rows, R* to) {
    for (int r = 0; r < rows; ++r, from += row, to += L)
      if constexpr (kSame)
        Io<R>::store(to, broadcast<R>(*from));
      else
        Io<R>::store(to, broadcast<R>(Io<S>::load_n(from, 1)[0]));
  }
  static void store(const View<R>& from, bool by_row, const From& to, const Block<R>& block) {
    const i64 first = offset(to, block);
    const i64 near = by_row ? from.outer : from.inner, far = by_row ? from.inner : from.outer;
    for (int r = 0; r < block.rows; ++r)
      for (int v = 0; v < block.vectors; ++v) {
        const V value = Io<R>::load(bytes_on(from.data, r * far + v * near));
        const int lanes = v + 1 < block.vectors ? L : block.lanes;
        const i64 at = first + r * to.row + v * L;
        if (to.storage == Storage::kReal)
          Io<R>::store_n(static_cast<R*>(to.data) + at, value, lanes);
        else if (to.storage == Storage::kStored)
          Io<S>::store_n(static_cast<S*>(to.data) + at, value, lanes);
        else if constexpr (Op::kTail == 0)
          Op::write(static_cast<LeftOf<E>*>(to.data) + (first - block.unit + r * to.row), to.row,
                    block.unit + v * L, value, L);
      }
  }
};

}  // namespace ZS_NAMESPACE
