// One specialisation: the phases of a step, what a block holds and where it lies in shared memory, the arguments.
//
// Constants that are not defined in these texts come from options.py, under the names of the placement's fields.
//
// A step has one phase, or two where one product needs the result of the other (the GRU that resets before the
// product). A phase gathers an operand of gates_in · kPadded values per row, multiplies it by the block's slice of the
// weight, and gives gates_out values per unit.
#pragma once

constexpr bool kTwoPhases = kPhases == 2;
constexpr int kLastPhase = kPhases - 1;

// Where a canonical gate lies along the gate axis.
ZS_DEVICE constexpr int slot(int gate) { return gate == 0 ? kSlot0 : gate == 1 ? kSlot1 : gate == 2 ? kSlot2 : kSlot3; }

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

template <int P>
struct Phase {
  static constexpr int gates_in = kGatesIn[P], gates_out = kGatesOut[P], first_gate = kFirstGate[P];
  static constexpr int k_blocks = gates_in * kGateBlocks;
  static constexpr int warp_blocks = (k_blocks + kWarpsK - 1) / kWarpsK;     // k-blocks per warp
  static constexpr int held = kHeld[P], stored = kStored[P];                 // of these, in registers, in shared memory
  static constexpr int chunk = warp_blocks < kChunk ? warp_blocks : kChunk;  // k-blocks loaded together
  static constexpr int columns = kUnitTiles * gates_out;                     // tiles of eight columns per warp
  static constexpr int column_pairs = (columns + 1) / 2;
  // Matrix instructions on the same sum wait for each other: where there are few sums, each is split into several.
  static constexpr int chains = kTransposed ? column_pairs : columns * kRowSixteens;
  static constexpr int splits = chains > 2 ? 1 : chains == 2 || warp_blocks < 2 ? 2 : 4;
  static constexpr int tile_bytes = kRows * gates_in * kPadded * kBytes;  // the operand of a tile of rows
  static constexpr int operand_bytes = kMode == kGrid ? 0 : 2 * kTiles * tile_bytes;
  static constexpr int weight_bytes = kWarpsK * kWarpsN * stored * columns * 512;
};

// The sums of a single tile group are the gradients themselves; those of several are added up afterwards, as are those
// that grow from launch to launch.
using Summed = Select<kOneGroup, Stored, float>::type;

// What a launch is given, all of it 64-bit words; the same order as in launch.py.
struct Arguments {
  i64 T, N;
  i64 step;                    // values in a step of [N,D,H]
  i64 first_group;             // tile groups of earlier launches
  i64 mask_t, mask_n, mask_h;  // strides, 0 where the mask is broadcast
  const Stored* weight;        // [D,G,H,H], the caller's own, if kHoldsAll; else padded: see padded_weight
  const Stored* mask;
  const Stored* peephole;  // [D,G,H]
  const Stored* bias2;     // [D,H]
  const Stored* state0;    // [N,D,H]
  const Stored* cell0;     // [N,D,H]
  const Stored* gates_x;   // [T,N,D,G,H]
  Stored* state;           // [T,N,D,H]; backward: read
  Stored* cell;            // [T,N,D,H]; backward: read
  Stored* saved;           // [T,N,D,G,H]; backward: read
  char* exchange;  // whole grid: phases of [T][groups·kTiles] operands, all ones; kWide: a counter per tile, all ones,
                   // then two operands per tile
  const Stored* d_state;  // [T,N,D,H]
  const Stored* d_cell;   // [T,N,D,H] or [N,D,H]
  const Stored* d_last;   // [N,D,H]
  const Stored* unreset;  // [T,N,D,H]
  Stored* d_gates;        // [T,N,D,G,H]
  Stored* left;           // [T,N,D,H]: h[t-1]·m[t], which dR is contracted with
  Stored* left_reset;     // [T,N,D,H]: h[t-1]·r·m; with reset_after [T,N,D,3,H]: the gradient of the products with R
  Stored* d_state0;       // [N,D,H]
  Stored* d_cell0;        // [N,D,H]
  Summed* bias_sum;       // [D,G,H] per tile group
  Summed* peephole_sum;   // [D,G,H]
  Summed* bias2_sum;      // [D,H]
  i64 sum_stride;         // from one tile group to the next
  // Of a scan in single steps:
  i64 index;
  const Stored* product;  // [D][parts][N][gates_out,H]
  Stored* operand;        // [D][N][gates_in,H]
  float2* kept;           // [blocks][kStates][kRows,kUnits/2]
};
