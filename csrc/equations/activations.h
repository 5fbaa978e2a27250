// The five activations and their derivatives, each derivative written through the activation's output.
//
// The value type V is a float, a double, or a vector of either, so the same text serves every CPU variant
// and, compiled at run time by NVRTC, the GPU: it therefore includes nothing. Math<V> supplies what V alone
// cannot say.
#pragma once

#ifndef ZS_DEVICE
#ifdef __CUDACC__
#define ZS_DEVICE __device__ __forceinline__
#else
#define ZS_DEVICE inline __attribute__((always_inline))
#endif
#endif
#ifndef ZS_NAMESPACE
#define ZS_NAMESPACE zstate
#endif

namespace ZS_NAMESPACE {

enum Activation { kNone = 0, kRelu = 1, kTanh = 2, kSigmoid = 3, kHardSigmoid = 4, kActivations };

// Math<V>::splat(double), tanh(V), sigmoid(V). The CPU's vectors get theirs in simd.h.
template <class V>
struct Math;

#ifdef __CUDACC__
template <>
struct Math<float> {
  static ZS_DEVICE float splat(double x) { return static_cast<float>(x); }
  static ZS_DEVICE float tanh(float x) { return ::tanhf(x); }
  static ZS_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + ::expf(-x)); }
};
template <>
struct Math<double> {
  static ZS_DEVICE double splat(double x) { return x; }
  static ZS_DEVICE double tanh(double x) { return ::tanh(x); }
  static ZS_DEVICE double sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }
};
#endif

// Comparisons are turned so that NaN takes the branch that keeps it.
template <class V>
ZS_DEVICE V relu(V x) {
  const V zero = Math<V>::splat(0.0);
  return x < zero ? zero : x;
}
template <class V>
ZS_DEVICE V d_relu(V y) {
  const V zero = Math<V>::splat(0.0), one = Math<V>::splat(1.0);
  return y > zero ? one : zero;
}

template <class V>
ZS_DEVICE V d_tanh(V y) {
  return Math<V>::splat(1.0) - y * y;
}

template <class V>
ZS_DEVICE V d_sigmoid(V y) {
  return y * (Math<V>::splat(1.0) - y);
}

template <class V>
ZS_DEVICE V hard_sigmoid(V x) {
  const V zero = Math<V>::splat(0.0), one = Math<V>::splat(1.0);
  const V y = Math<V>::splat(0.2) * x + Math<V>::splat(0.5);
  const V above = y < zero ? zero : y;
  return above > one ? one : above;
}
template <class V>
ZS_DEVICE V d_hard_sigmoid(V y) {
  const V zero = Math<V>::splat(0.0), one = Math<V>::splat(1.0), slope = Math<V>::splat(0.2);
  const V below = y < one ? slope : zero;
  return y > zero ? below : zero;
}

template <class V>
ZS_DEVICE V activate(int kind, V x) {
  switch (kind) {
    case kRelu:
      return relu(x);
    case kTanh:
      return Math<V>::tanh(x);
    case kSigmoid:
      return Math<V>::sigmoid(x);
    case kHardSigmoid:
      return hard_sigmoid(x);
    default:
      return x;
  }
}
// The derivative at the point where activate() gave y.
template <class V>
ZS_DEVICE V d_activate(int kind, V y) {
  switch (kind) {
    case kRelu:
      return d_relu(y);
    case kTanh:
      return d_tanh(y);
    case kSigmoid:
      return d_sigmoid(y);
    case kHardSigmoid:
      return d_hard_sigmoid(y);
    default:
      return Math<V>::splat(1.0);
  }
}

}  // namespace ZS_NAMESPACE
