// The shape of one specialisation: phases of a step, what each block holds, and where it lies in shared memory.
//
// The constants in capitals come from the plan (options.py writes them in front of this text).
// A step has one phase, or two where one product needs the other's result (the GRU that resets before the product). A phase is:
// gather an operand of KG·HP values a row (in memory: [k-block][row][64 bytes], so that a warp loads in one piece; see operand_place), multiply it with the block's slice of the weight, give NG values a unit.
#pragma once

enum { kRnn = 0, kLstm = 1, kGru = 2 };
constexpr int G = CELL == kRnn ? 1 : CELL == kLstm ? 4 : 3;
constexpr bool kTwoPhases = CELL == kGru && !RESET_AFTER;
constexpr int kPhases = kTwoPhases ? 2 : 1;

ZS_DEVICE constexpr int slot(int gate) { return gate == 0 ? SLOT0 : gate == 1 ? SLOT1 : gate == 2 ? SLOT2 : SLOT3; }

constexpr int kThreads = 32 * WK * WN;
constexpr int kBlockK = 64 / kBytes;              // values in a k-block
constexpr int kGateK = HP / kBlockK;              // k-blocks of one gate
constexpr int kUnitBlocks = UH / 8 / WN;          // blocks of eight units that a warp computes
constexpr int kItems = RV * UH / 2;               // pairs of units in a tile of rows
constexpr int kHalves = RV > 8 ? RV / 8 : 1;      // groups of eight rows
// Up to eight rows the matrix instruction is turned round: the weight's columns are its sixteen rows, so none is empty.
constexpr bool kTurned = RV <= 8 && TYPE != kFloat32;
// Otherwise the operand lies as the instruction takes it: 16 bytes of a thread hold words of rows r and r + 8 in turn.
constexpr bool kWoven = !kTurned && TYPE != kFloat32;
// One warp over all of K: what it has summed up stays in its registers. Otherwise sums pass through shared memory.
constexpr bool kDirect = WK == 1 && kTurned;
constexpr int kBands = RV > 16 ? RV / 16 : 1;     // groups of sixteen: one matrix instruction each
constexpr int kTileRows = RV > 16 ? RV : 16;
constexpr int kPerThread = kDirect ? kUnitBlocks : (kItems + kThreads - 1) / kThreads;
constexpr i64 kFar = 8 << 20;  // bytes

template <int P> struct Phase {
  static constexpr int NG = BACKWARD ? 1 : kTwoPhases ? (P == 0 ? 2 : 1) : G;                // gates that come out
  static constexpr int KG = !BACKWARD ? 1 : kTwoPhases ? (P == 0 ? 1 : 2) : G;               // gates that go in
  static constexpr int first = kTwoPhases && (BACKWARD ? P == 0 : P == 1) ? 2 : 0;           // the first of these
  static constexpr int blocks = KG * kGateK;                                                 // k-blocks in all
  static constexpr int KB = (blocks + WK - 1) / WK;                                          // and of one warp
  static constexpr int KR = P == 0 ? KR0 : KR1, KS = P == 0 ? KS0 : KS1;                     // in registers, shared memory
  static constexpr int CH = KB < CHUNK ? KB : CHUNK;                                         // loaded together
  static constexpr int NT = kUnitBlocks * NG;                                                // tiles of eight columns a warp
  static constexpr int pairs = (NT + 1) / 2;
  // Matrix instructions on the same sum wait for each other: where there are few sums, each is made of several.
  static constexpr int chains = kTurned ? pairs : NT * kBands;
  static constexpr int splits = chains > 2 ? 1 : chains == 2 || KB < 2 ? 2 : 4;
  static constexpr int tile_bytes = RV * KG * HP * kBytes;                                   // the operand of a tile of rows
  static constexpr int operand_bytes = MODE == kGrid ? 0 : 2 * MT * tile_bytes;
  static constexpr int weight_bytes = WK * WN * KS * NT * 512;
};

// Several tiles in turn, exchanged through L2: what the next tile needs was handed on a while ago and is asked for before its turn.
// A turn of an LSTM that saves its gates is long enough for that (8% faster at H = 1024); others would look too early, and again.
constexpr bool kAhead = MODE == kGrid && MT > 1 && CELL == kLstm && SAVE_Z && kIsHalf && RV == 16 && KR0 > 0 && AS_IS &&
                        Phase<0>::CH <= 4 && Phase<0>::blocks % WK == 0;

constexpr int kColumns = (kTwoPhases ? (BACKWARD ? 1 : 2) : (BACKWARD ? 1 : G)) * UH;
constexpr int kSumStride = (kColumns / 8 | 1) * 8;  // an odd multiple of 8: no bank conflicts
constexpr int kStates = CELL == kRnn ? 0 : CELL == kLstm ? 1 : kTwoPhases ? (BACKWARD ? 4 : 2) : 1;

// Shared memory, in this order.
constexpr int kSumShift = kWoven ? 16 : 0;  // lanes read rows r and r + 8 together: from other banks
constexpr int kSumSize = RV * kSumStride + (kHalves - 1) * kSumShift;  // floats that one warp over K leaves
ZS_DEVICE int sum_row(int row) { return row * kSumStride + row / 8 * kSumShift; }
constexpr int kSumBytes = kDirect ? 0 : 2 * WK * kSumSize * 4;
constexpr int kStateStride = MT * RV * UH / 2;  // pairs
constexpr int kStateBytes = kStates * kStateStride * 8;
constexpr int kBarrierBytes = (kPhases * MT * 2 * 8 + 127) / 128 * 128;
constexpr int kAtState = kBarrierBytes;
constexpr int kAtSum = kAtState + (kStateBytes + 127) / 128 * 128;
constexpr int kAtOperand0 = kAtSum + (kSumBytes + 127) / 128 * 128;
constexpr int kAtOperand1 = kAtOperand0 + Phase<0>::operand_bytes;
constexpr int kAtWeight0 = (kAtOperand1 + (kTwoPhases ? Phase<1>::operand_bytes : 0) + 127) / 128 * 128;
constexpr int kAtWeight1 = kAtWeight0 + Phase<0>::weight_bytes;
constexpr int kSharedBytes = kAtWeight1 + (kTwoPhases ? Phase<1>::weight_bytes : 0);
static_assert(kSharedBytes == SHARED, "the plan and the kernel disagree about shared memory");

// Where there is one tile group, its sums are the gradients themselves; otherwise they are added up afterwards.
using Summed = Select<ONE_GROUP, Stored, float>::type;

// What a launch is given; the same order as in launch.py. All of it 64-bit words.
struct Arguments {
  i64 T, N;
  i64 step;                    // values in a step of [N,D,H]
  i64 first_group;             // tile groups of earlier launches
  i64 mask_t, mask_n, mask_h;  // strides, 0 where the mask is broadcast
  const Stored* weight;        // [D,G,H,H] AS_IS, the caller's own; else forward [D,G,HP,HP], backward [D,HP,G,HP]
  const Stored* mask;
  const Stored* peephole;      // [D,4,H]
  const Stored* bias2;         // [D,H]
  const Stored* state0;        // [N,D,H]
  const Stored* cell0;         // [N,D,H]
  const Stored* gates_x;       // [T,N,D,G,H]
  Stored* state;               // [T,N,D,H]; backward: read
  Stored* cell;                // [T,N,D,H]; backward: read
  Stored* saved;               // [T,N,D,G,H]; backward: read
  char* exchange;              // phases of [T][groups·MT] operands, all ones; whole grid only
  const Stored* d_state;       // [T,N,D,H]
  const Stored* d_cell;        // [T,N,D,H] or [N,D,H]
  const Stored* d_last;        // [N,D,H]
  const Stored* unreset;       // [T,N,D,H]
  Stored* d_gates;             // [T,N,D,G,H]
  Stored* left;                // [T,N,D,H]: h[t-1]·m[t], what dR is contracted with
  Stored* left_reset;          // [T,N,D,H]: h[t-1]·r·m; with reset_after [T,N,D,3,H]: the gradient of the products with R
  Stored* d_state0;            // [N,D,H]
  Stored* d_cell0;             // [N,D,H]
  Summed* bias_sum;            // [D,G,H] of a tile group
  Summed* peephole_sum;        // [D,4,H]
  Summed* bias2_sum;           // [D,H]
  i64 sum_stride;              // from one tile group to the next
};
