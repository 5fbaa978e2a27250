// Means and variances over the units of a row, which every block needs of all blocks.
//
// A row lies in parts of kPartUnits units, each in some lanes of a warp. These add up a part, and blocks exchange the
// sums in float32; then each warp takes some rows, adds up their parts and leaves the results in shared memory. A
// variance takes two words per part: the sum, and the squares of the distances from the part's own mean, so that
// nothing cancels.
#pragma once

constexpr int min_of(int a, int b) { return a < b ? a : b; }

template <int P>
struct Reduction {
  using Here = Phase<P>;
  static constexpr int parts = Here::parts, vectors = Here::vectors, outs = Here::outs;
  static constexpr int whole = kHidden / kPartUnits, rest = kHidden % kPartUnits;  // parts, and units of the last one
  static constexpr int turns = (parts + 31) / 32;                                  // of a warp over them
  static constexpr int warps = kThreads / 32, together = min_of((kRows + warps - 1) / warps, 4);  // rows of a warp

  union Words {  // what a lane has of a row's parts: every 32nd
    uint4 pieces[turns][vectors];
    float words[turns][4 * vectors];
  };

  static constexpr ZS_DEVICE bool is_variance(int out) { return kVariances[P] >> out & 1; }
  static constexpr ZS_DEVICE int values(int out) { return values_of<P>(out); }

  // Hands an item's part of a row to every block of the group.
  static ZS_DEVICE void publish(const Block& block, const Item& w, int tile, i64 index,
                                const float2 (&operand)[kWidest]) {
    const int part = w.unit / kPartUnits;
    float sum[outs] = {}, away[outs] = {};
    add_up<false>(w, operand, sum, [](int, float x) { return x; });
    over_part<false>(sum);
    add_up<true>(w, operand, away, [&](int out, float x) {
      const float far = x - sum[out] * per(out, part);
      return far * far;
    });
    over_part<true>(away);
    u32 word[4 * vectors] = {};
#pragma unroll
    for (int out = 0; out < outs; ++out) {
      if (!is_summed<false>(out)) continue;
      word[word_of<P>(out)] = present(sum[out]);
      if (is_variance(out)) word[word_of<P>(out) + 1] = present(away[out]);
    }
#pragma unroll
    for (int v = 0; v < vectors; ++v)
      hand_out(block, w, tile, index, place(w.row, part, v),
               make_uint4(word[4 * v], word[4 * v + 1], word[4 * v + 2], word[4 * v + 3]));
  }

  // Leaves the results of all rows of a tile in shared memory. A warp takes a few rows at a time, as loads and shuffles
  // of one row would wait for each other.
  static ZS_DEVICE void reduce(const Block& block, int tile, i64 index, float* results) {
    const char* const from =
        kMode == kGrid ? Exchange<P>::in_l2(block, tile, index) : block.shared + Exchange<P>::in_shared(tile, index);
#pragma unroll 1
    for (int first = 0; first < kRows; first += together * warps) {
      Words own[together] = {};
      load(own, from, first + block.warp, block.lane);
      float sum[together][outs] = {}, away[together][outs] = {};
#pragma unroll
      for (int r = 0; r < together; ++r)
#pragma unroll
        for (int out = 0; out < outs; ++out)
#pragma unroll
          for (int turn = 0; turn < turns && is_summed<false>(out); ++turn)
            sum[r][out] += own[r].words[turn][word_of<P>(out)];
      over_parts<false>(sum);
#pragma unroll
      for (int r = 0; r < together; ++r)
#pragma unroll
        for (int out = 0; out < outs; ++out)
#pragma unroll
          for (int turn = 0; turn < turns && is_summed<true>(out); ++turn) {
            const int part = turn * 32 + block.lane, at = word_of<P>(out);
            const float far = own[r].words[turn][at] - size(out, part) * (sum[r][out] * per_row(out));
            away[r][out] += own[r].words[turn][at + 1] + far * far * per(out, part);
          }
      over_parts<true>(away);
#pragma unroll
      for (int r = 0; r < together; ++r) {
        const int row = first + r * warps + block.warp;
#pragma unroll
        for (int out = 0; out < outs; ++out) {
          float found = sum[r][source_of<P>(out)];  // no choice between arrays, which would put them into memory
          if (is_variance(out)) found = away[r][out];
          if (block.lane == 0 && row < kRows) results[row * outs + out] = found * per_row(out);
        }
      }
    }
  }
  static ZS_DEVICE void total(const Item& w, const float* results, float2 (&total)[kWidest]) {
#pragma unroll
    for (int out = 0; out < outs; ++out) total[out] = {results[w.row * outs + out], results[w.row * outs + out]};
  }

 private:
  // Whether a result has sums of its own; of squares, or of the values.
  template <bool Squares>
  static constexpr ZS_DEVICE bool is_summed(int out) {
    return Squares ? is_variance(out) : source_of<P>(out) == out;
  }
  static constexpr ZS_DEVICE float per_row(int out) { return 1.0f / (values(out) * kHidden); }
  // How many of the values that a result takes lie in a part, and one divided by that; 0 if none.
  static ZS_DEVICE float size(int out, int part) {
    return part < whole ? values(out) * kPartUnits : part == whole ? values(out) * rest : 0.0f;
  }
  static ZS_DEVICE float per(int out, int part) {
    const float last = rest ? 1.0f / (values(out) * (rest ? rest : 1)) : 0.0f;
    return part < whole ? 1.0f / (values(out) * kPartUnits) : part == whole ? last : 0.0f;
  }
  static ZS_DEVICE int place(int row, int part, int vector) { return ((row * parts + part) * vectors + vector) * 16; }

  template <bool Squares, class Value>
  static ZS_DEVICE void add_up(const Item& w, const float2 (&operand)[kWidest], float (&sum)[outs],
                               const Value& value) {
#pragma unroll
    for (int out = 0; out < outs; ++out)
#pragma unroll
      for (int in = 0; in < Here::ins; ++in)
        if (slot_of<P>(out, in) >= 0 && is_summed<Squares>(out))
          sum[out] +=
              (w.count > 0 ? value(out, operand[in].x) : 0.0f) + (w.count > 1 ? value(out, operand[in].y) : 0.0f);
  }
  // Block::item says which lanes have neighbouring units of a row. All sums at once: a shuffle waits for the one
  // before.
  template <bool Squares>
  static ZS_DEVICE void over_part(float (&sum)[outs]) {
#pragma unroll
    for (int pair = 1; pair < 4; pair *= 2) add_other<Squares>(sum, kDirect ? 8 * pair : pair);
#pragma unroll
    for (int eight = 1; eight < kPartEights; eight *= 2) add_other<Squares>(sum, (kInterleaved ? 8 : 4) * eight);
  }
  // Of each row, in as many lanes as there are parts.
  template <bool Squares>
  static ZS_DEVICE void over_parts(float (&sum)[together][outs]) {
#pragma unroll
    for (int part = 1; part < 32 && part < parts; part *= 2)
#pragma unroll
      for (int r = 0; r < together; ++r) add_other<Squares>(sum[r], part);
  }
  template <bool Squares>
  static ZS_DEVICE void add_other(float (&sum)[outs], int distance) {
    float other[outs];
#pragma unroll
    for (int out = 0; out < outs; ++out)
      if (is_summed<Squares>(out)) other[out] = __shfl_xor_sync(~0u, sum[out], distance);
#pragma unroll
    for (int out = 0; out < outs; ++out)
      if (is_summed<Squares>(out)) sum[out] += other[out];
  }
  // The lanes of a part share the peers out.
  static ZS_DEVICE void hand_out(const Block& block, const Item& w, int tile, i64 index, int place, const uint4& sums) {
    constexpr int lanes = kPartUnits / 2;
    const int member = kDirect        ? block.lane / 8
                       : kInterleaved ? block.lane % 4 + block.lane / 8 % (kPartUnits / 8) * 4
                                      : block.lane % lanes;
    if (!w.on || (kMode != kCluster && member)) return;
    if constexpr (kMode == kGrid) {
      store_vector(Exchange<P>::in_l2(block, tile, index) + place, sums);
    } else if constexpr (kMode == kBlock) {
      *reinterpret_cast<uint4*>(block.shared + Exchange<P>::in_shared(tile, index) + place) = sums;
    } else {
#if __CUDA_ARCH__ >= 900
      const u32 to = shared_address(block.shared) + Exchange<P>::in_shared(tile, index) + place;
      const u32 counter = Exchange<P>::barrier(block, tile, index);
#pragma unroll
      for (int n = 0; n < (kBlocks + lanes - 1) / lanes; ++n) {
        if (kBlocks % lanes && n * lanes + member >= kBlocks) break;
        const u32 peer = (n * lanes + member + block.rank) % kBlocks;
        send(on_peer(to, peer), on_peer(counter, peer), sums);
      }
#endif
    }
  }
  // Over the grid all that is missing is loaded again at once.
  static ZS_DEVICE void load(Words (&to)[together], const char* from, int first, int lane) {
    auto each = [&](auto load_one) {
#pragma unroll
      for (int r = 0; r < together; ++r)
#pragma unroll
        for (int turn = 0; turn < turns; ++turn)
#pragma unroll
          for (int v = 0; v < vectors; ++v) {
            const int row = first + r * warps, part = turn * 32 + lane;
            if (row < kRows && part < parts) load_one(to[r].pieces[turn][v], from + place(row, part, v));
          }
    };
    if constexpr (kMode != kGrid) {
      each([](uint4& piece, const char* here) { piece = *reinterpret_cast<const uint4*>(here); });
    } else {
      each([](uint4& piece, const char* here) { piece = load_relaxed(here); });
      Patience patience;
      for (bool all = false; !all; patience.look()) {
        all = true;
        each([&](uint4& piece, const char* here) {
          if (!missing(piece)) return;
          all = false;
          piece = load_relaxed(here);
        });
      }
    }
  }
};
