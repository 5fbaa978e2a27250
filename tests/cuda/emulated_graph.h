// Stands in for what NVRTC knows by itself: graph.cu on the CPU, one thread after the other.
#include <algorithm>
#include <cmath>
#include <cstring>
#define __device__
#define __global__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads)
#define asm(...) converted(#__VA_ARGS__, bits, value)  // both texts convert between these two names
struct Place {
  int x;
};
static Place threadIdx, blockIdx, blockDim;
struct int4 {
  int x, y, z, w;
};
float sums[1];  // of a kernel that is not run here
inline void __syncthreads() {}
inline float __shfl_xor_sync(unsigned, float x, int) { return x; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
template <class To, class From>
To same_bits(From from) {
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
inline float __int_as_float(int bits) { return same_bits<float>(bits); }
inline void converted(const char* text, unsigned short& bits, float& value) {
  if (std::strstr(text, "cvt.rn.f16.f32"))
    bits = same_bits<unsigned short>((_Float16)value);
  else
    value = same_bits<_Float16>(bits);
}
