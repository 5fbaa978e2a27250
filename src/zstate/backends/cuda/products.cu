// Several matrix products in one launch, for products that take less time than launching a library's kernel.
//
// A block computes a tile of 64 by 64 numbers of one product. Operands come in pieces of 16 bytes through four stages
// of shared memory, as they lie: along K, or across it, with the pieces of a row swapped so that no two lanes meet in a
// bank. K is never split, so every sum has a fixed order.

enum { kAlong = 0, kAcross = 1 };              // which axis of an operand is contiguous: K, or its rows (columns)
enum { kNT = 0, kNN = 1, kTN = 2, kSum = 3 };  // BLAS's letters; a sum over the rows of A

// In the order of products.py; all members are 64-bit words.
struct Job {
  const Stored *a, *b, *bias;  // bias null: none; of a sum, a is float
  Stored* c;
  i64 m, n, k, lda, ldb, ldc, kind;
  i64 first, columns;  // the job's first block; tiles side by side
};
struct Jobs {
  i64 count;
  Job job[kMostJobs];
};

constexpr int kSide = 64, kDeep = 128 / kBytes, kPiece = 16 / kBytes, kStages = 4, kThreads = 256;
constexpr int kOperandBytes = kSide * 128, kCopies = kOperandBytes / 16 / kThreads;

ZS_DEVICE void copy_async(u32 to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
ZS_DEVICE void load_matrices(u32 from, u32 (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}
ZS_DEVICE void load_transposed(u32 from, u32 (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}

// One operand: `rows` of them, of which a tile has 64, and K. A thread copies the same pieces of every step.
template <int Lies>
struct Operand {
  static constexpr int pieces = Lies == kAlong ? 8 : kSide / kPiece;  // of a row in shared memory
  static ZS_DEVICE int swap(int row) { return Lies == kAlong || kIsHalf ? row & 7 : (row & 3) * 2; }
  static ZS_DEVICE u32 place(int row, int piece) { return (row * pieces + (piece ^ swap(row))) * 16; }

  const Stored* from[kCopies];
  i64 left[kCopies];  // values of K left from the piece on; 0 where there is no such row
  i64 ahead;          // from one step to the next
  ZS_DEVICE Operand(const Stored* first, i64 stride, i64 rows, i64 row0, i64 K)
      : ahead(Lies == kAlong ? kDeep : kDeep * stride) {
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      const int at = c * kThreads + threadIdx.x, row = at / pieces, piece = at % pieces;
      const i64 r = row0 + (Lies == kAlong ? row : piece * kPiece), k = Lies == kAlong ? piece * kPiece : row;
      from[c] = first + (Lies == kAlong ? r * stride + k : k * stride + r);
      left[c] = r < rows ? K - k : 0;
    }
  }
  ZS_DEVICE void fetch(u32 to) {
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      const int at = c * kThreads + threadIdx.x;
      copy_async(to + place(at / pieces, at % pieces), from[c], left[c] > 0);
      from[c] += ahead;
      left[c] -= kDeep;
    }
  }
  // 16 rows and 32 bytes of K as the matrix instruction takes A: {rows 0-7, 8-15} of the first half of K, then of the
  // second. With kSplit, what TF32 cannot hold of a number goes into `rest`.
  static ZS_DEVICE void take(u32 tile, int row, int slice, int lane, u32 (&x)[4], u32 (&rest)[4]) {
    const int part = lane / 8, at = lane % 8;
    if constexpr (Lies == kAlong) {
      load_matrices(tile + place(row + part % 2 * 8 + at, slice * 2 + part / 2), x);
    } else if constexpr (kIsHalf) {
      load_transposed(tile + place(slice * 16 + part / 2 * 8 + at, row / 8 + part % 2), x);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = row + e % 2 * 8 + lane / 4, k = slice * 8 + e / 2 * 4 + lane % 4;
        asm volatile("ld.shared.b32 %0,[%1];" : "=r"(x[e]) : "r"(tile + place(k, r / 4) + r % 4 * 4));
      }
    }
    if constexpr (kType == kTf32) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float whole = __uint_as_float(x[e]);
        x[e] = operand_word(whole);
        if constexpr (kSplit) rest[e] = operand_word(whole - __uint_as_float(x[e]));
      }
    }
  }
};

template <int LiesA, int LiesB>
ZS_DEVICE void product(const Job& job, i64 tile, char* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp / 4 * 32, column = warp % 4 * 16;
  const i64 row0 = tile / job.columns * kSide, column0 = tile % job.columns * kSide;
  const u32 base = shared_address(shared);
  const int steps = static_cast<int>((job.k + kDeep - 1) / kDeep);
  Operand<LiesA> a(job.a, job.lda, job.m, row0, job.k);
  Operand<LiesB> b(job.b, job.ldb, job.n, column0, job.k);
  auto stage = [&](int step) { return base + step % kStages * 2 * kOperandBytes; };
  auto fetch = [&](int step) {
    if (step < steps) {
      a.fetch(stage(step));
      b.fetch(stage(step) + kOperandBytes);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float acc[2][2][4] = {}, acc_rest[2][2][4] = {};
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) fetch(s);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();
    fetch(step + kStages - 1);
    u32 x[4][2][4], y[4][4], x_rest[4][2][4], y_rest[4][4];
#pragma unroll
    for (int slice = 0; slice < 4; ++slice) {
#pragma unroll
      for (int i = 0; i < 2; ++i) a.take(stage(step), row + i * 16, slice, lane, x[slice][i], x_rest[slice][i]);
      b.take(stage(step) + kOperandBytes, column, slice, lane, y[slice], y_rest[slice]);
    }
#pragma unroll
    for (int slice = 0; slice < 4; ++slice)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          auto add = [&](float (&sum)[4], const u32(&v)[4], const u32(&w)[4]) {
            mma(sum, v[0], v[1], v[2], v[3], w[j], w[j + 2]);
          };
          add(acc[i][j], x[slice][i], y[slice]);
          if constexpr (kSplit) {
            add(acc_rest[i][j], x_rest[slice][i], y[slice]);
            add(acc_rest[i][j], x[slice][i], y_rest[slice]);
          }
        }
  }
  if constexpr (kSplit) {
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      // Infinite numbers have no rest: infinity minus infinity is not a number.
      const float rest = acc_rest[e / 8][e / 4 % 2][e % 4];
      if (rest - rest == 0.0f) acc[e / 8][e / 4 % 2][e % 4] += rest;
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const i64 n = column0 + column + j * 8 + lane % 4 * 2;
    if (n >= job.n) continue;
    const float2 bias =
        job.bias != nullptr ? make_float2(widen(job.bias[n]), widen(job.bias[n + 1])) : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const i64 m = row0 + row + i * 16 + h * 8 + lane / 4;
        if (m < job.m)
          store_pair(job.c + m * job.ldc + n, {acc[i][j][h * 2] + bias.x, acc[i][j][h * 2 + 1] + bias.y}, 2);
      }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2) products(const __grid_constant__ Jobs jobs) {
  extern __shared__ __align__(128) char shared[];
  static_assert(kShared == kStages * 2 * kOperandBytes, "the host and the kernel disagree about shared memory");
  int which = 0;
  while (which + 1 < jobs.count && blockIdx.x >= jobs.job[which + 1].first) ++which;
  const Job& job = jobs.job[which];
  const i64 tile = blockIdx.x - job.first;
  if (job.kind == kNT)
    product<kAlong, kAlong>(job, tile, shared);
  else if (job.kind == kNN)
    product<kAlong, kAcross>(job, tile, shared);
  else if (job.kind == kTN)
    product<kAcross, kAcross>(job, tile, shared);
  else {
    const i64 n = tile * kThreads + threadIdx.x;
    float sum = 0.0f;
    if (n < job.n) {
      for (i64 k = 0; k < job.k; ++k) sum += reinterpret_cast<const float*>(job.a)[k * job.lda + n];
      put(job.c + n, sum);
    }
  }
}

// The products of a diagonal weight: sums over some rows of a·b, column by column; one sum per thread.
struct Dots {
  const Stored *a, *b;
  float* to;                           // [chunks,columns]
  i64 rows, columns, lda, ldb, chunk;  // chunk: rows of a sum
};
extern "C" __global__ void __launch_bounds__(kThreads) dots(const __grid_constant__ Dots d) {
  const i64 across = (d.columns + kThreads - 1) / kThreads, chunk = blockIdx.x / across;
  const i64 column = blockIdx.x % across * kThreads + threadIdx.x, end = min((chunk + 1) * d.chunk, d.rows);
  if (column >= d.columns) return;
  float sum = 0.0f;
#pragma unroll 8
  for (i64 row = chunk * d.chunk; row < end; ++row)
    sum += widen(d.a[row * d.lda + column]) * widen(d.b[row * d.ldb + column]);
  d.to[chunk * d.columns + column] = sum;
}

// A matrix [rows,columns] into one that lies the other way, [columns,rows].
struct Turning {
  const Stored* from;
  Stored* to;
  i64 rows, columns, stride;
};
extern "C" __global__ void __launch_bounds__(kThreads) turn(const __grid_constant__ Turning a) {
  constexpr int side = 32;
  __shared__ Stored tile[side][side + 1];
  const int x = threadIdx.x % side, y = threadIdx.x / side;
  const i64 across = (a.columns + side - 1) / side;
  const i64 row = blockIdx.x / across * side, column = blockIdx.x % across * side;
#pragma unroll
  for (int k = y; k < side; k += kThreads / side)
    if (row + k < a.rows && column + x < a.columns) tile[k][x] = a.from[(row + k) * a.stride + column + x];
  __syncthreads();
#pragma unroll
  for (int k = y; k < side; k += kThreads / side)
    if (column + k < a.columns && row + x < a.rows) a.to[(column + k) * a.rows + row + x] = tile[x][k];
}

// All ones: what an exchange through L2 begins with. After the driver's memset instead, a scan at N = 64, H = 512 takes
// 2 to 4% longer.
struct Filling {
  uint4* to;
  i64 pieces;
};
extern "C" __global__ void __launch_bounds__(kThreads) fill(const __grid_constant__ Filling a) {
  for (i64 k = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x; k < a.pieces;
       k += static_cast<i64>(gridDim.x) * kThreads)
    a.to[k] = make_uint4(~0u, ~0u, ~0u, ~0u);
}
