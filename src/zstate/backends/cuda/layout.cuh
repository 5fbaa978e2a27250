// What a block of scan.cu holds and where it lies in shared memory.
#pragma once

// Partial sums, one per warp over K. An odd multiple of 8 avoids bank conflicts; interleaved rows r and r + 8 are read
// together, so they must not share banks either.
constexpr int kSumStride = (kWidestProduct * kUnits / 8 | 1) * 8;
constexpr int kSumShift = kInterleaved ? 16 : 0;
constexpr int kSumSize = kRows * kSumStride + (kRowEights - 1) * kSumShift;  // floats per warp over K
ZS_DEVICE int sum_row(int row) { return row * kSumStride + row / 8 * kSumShift; }

// Shared memory, in this order; placements.py computes the same sizes.
constexpr int aligned(int bytes) { return (bytes + 127) / 128 * 128; }
constexpr int kStateStride = kTiles * kRows * kUnits / 2;    // pairs
constexpr int kAtState = aligned(kPhases * kTiles * 2 * 8);  // behind the barriers
constexpr int kAtSums = kAtState + aligned(kStates * kStateStride * 8);
constexpr int kAtReduced = kAtSums + aligned(kDirect ? 0 : 2 * kWarpsK * kSumSize * 4);
constexpr int kAtOperands = kAtReduced + aligned(2 * kRows * kMostReduced * 4);
constexpr int kAtWeights = aligned(kAtOperands + Before<kPhases>::operands);
constexpr int kWeightsEnd = kAtWeights + Before<kPhases>::weights;
static_assert(kMode == kSteps || kWeightsEnd == kShared, "the placement and the kernel disagree about shared memory");
template <int P>
struct At {
  static constexpr int operand = kAtOperands + Before<P>::operands;
  static constexpr int weight = kAtWeights + Before<P>::weights;
};
