// One specialisation: the phases of a step, what a block holds and where it lies in shared memory, the arguments.
//
// Constants not defined here come from options.py, under the names of the placement's fields.
//
// A step has one phase, or more where one product needs the result of another. A phase gathers an operand of
// ins · kPadded values per row, multiplies it by the block's slice of the weight, and gives outs values per unit.
// slot_of<P>(out, in) is the place along the gate axis of the gate whose weight connects the two; -1: none. Or a phase
// gives means and variances over the units of a row (reduction.cuh); slot_of then says which values each one takes.
#pragma once

constexpr int kLastPhase = kPhases - 1;

// Units of the layer, in heads of kHidden. A head of one direction is a chain: nothing passes from one to another.
constexpr int kLayer = kHeads * kHidden, kChains = kDirections * kHeads;
constexpr int kChainGroups = (kChains + kPack - 1) / kPack;  // of the heads that a block has

constexpr int kThreads = 32 * kWarpsK * kWarpsN;
constexpr int kBlockK = 64 / kBytes;                       // values in a k-block
constexpr int kGateBlocks = kPadded / kBlockK;             // k-blocks per gate
constexpr int kUnitTiles = kUnits / 8 / kWarpsN;           // tiles of eight units per warp
constexpr int kItems = kRows * kUnits / kItemUnits;        // in a tile of rows
constexpr int kRowEights = kRows > 8 ? kRows / 8 : 1;      // groups of eight rows
constexpr int kRowSixteens = kRows > 16 ? kRows / 16 : 1;  // groups of sixteen: one matrix instruction each
// Up to eight rows the matrix instruction is transposed: the weight's columns fill its sixteen rows, so none is empty.
constexpr bool kTransposed = kRows <= 8 && kType != kFloat32 && kMode != kRow;
// Otherwise the operand lies as the instruction takes it: the 16 bytes of a thread alternate words of rows r and r + 8.
constexpr bool kInterleaved = !kTransposed && kType != kFloat32 && kMode < kSteps;
// One warp over all of K keeps its sums in registers; the sums of several warps pass through shared memory.
constexpr bool kDirect = kWarpsK == 1 && kTransposed;
constexpr int kItemsPerThread = kDirect ? kUnitTiles : (kItems + kThreads - 1) / kThreads;

// Units of a part of a row in a reduction: those that neighbouring lanes have.
constexpr int kPartEights = kDirect || kUnits % 16 ? 1 : kUnits % 32 ? 2 : 4;
constexpr int kPartUnits = 8 * kPartEights;

template <int P>
struct Phase {
  static constexpr int ins = kIns[P], outs = kOuts[P];
  static constexpr bool is_full = kIsFull[P];  // every input and output are connected by a gate
  static constexpr bool reduces = kWords[P] > 0;
  static constexpr int parts = kPadded / kPartUnits, vectors = (kWords[P] + 3) / 4;  // of a row, in a reduction
  static constexpr int k_blocks = ins * kGateBlocks;
  static constexpr int warp_blocks = (k_blocks + kWarpsK - 1) / kWarpsK;     // k-blocks per warp
  static constexpr int held = kHeld[P], stored = kStored[P];                 // of these, in registers, in shared memory
  static constexpr int chunk = warp_blocks < kChunk ? warp_blocks : kChunk;  // k-blocks loaded together
  static constexpr int columns = kUnitTiles * outs;                          // tiles of eight columns per warp
  static constexpr int column_pairs = (columns + 1) / 2;
  // Matrix instructions on the same sum wait for each other, so where there are few sums, each is split into several.
  static constexpr int chains = kTransposed ? column_pairs : columns * kRowSixteens;
  static constexpr int splits = chains > 2 ? 1 : chains == 2 || warp_blocks < 2 ? 2 : 4;
  // The operand of a tile of rows.
  static constexpr int tile_bytes = kRows * (reduces ? parts * vectors * 16 : ins * kPadded * kBytes);
  static constexpr int operand_bytes = kMode == kGrid ? 0 : 2 * kTiles * tile_bytes;
  static constexpr int weight_bytes = kWarpsK * kWarpsN * stored * columns * 512;
};

// What the phases before this one take.
template <int P>
struct Before {
  using One = Phase<P - 1>;
  static constexpr int ins = Before<P - 1>::ins + One::ins, operands = Before<P - 1>::operands + One::operand_bytes;
  static constexpr int weights = Before<P - 1>::weights + One::weight_bytes;
  static constexpr int tiles = Before<P - 1>::tiles + One::tile_bytes;
};
template <>
struct Before<0> {
  static constexpr int ins = 0, operands = 0, weights = 0, tiles = 0;
};

constexpr int most_of(const int (&counts)[kPhases], bool reductions) {
  int most = 0;
  for (int p = 0; p < kPhases; ++p)
    if (reductions || !kWords[p]) most = counts[p] > most ? counts[p] : most;
  return most;
}
constexpr int kWidestIn = most_of(kIns, true), kWidestOut = most_of(kOuts, true);
constexpr int kWidestProduct = most_of(kOuts, false);
constexpr int kMostReduced = most_of(kReduced, true);  // results of a reduction
constexpr int kWidest = kWidestIn > kWidestOut ? kWidestIn : kWidestOut;

// The sums of a single tile group are the gradients themselves; those of several are added up afterwards, as are those
// that grow from launch to launch.
using Summed = Select<kOneGroup, Stored, float>::type;
