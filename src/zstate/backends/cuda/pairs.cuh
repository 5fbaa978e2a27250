// Arithmetic and functions of pairs of neighbouring units, in which equations are written.
#pragma once

using namespace zstate;

ZS_DEVICE float2 splat(float x) { return {x, x}; }
ZS_DEVICE float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
ZS_DEVICE float2 operator-(float2 a, float2 b) { return {a.x - b.x, a.y - b.y}; }
ZS_DEVICE float2 operator*(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }
ZS_DEVICE float2 operator/(float2 a, float2 b) { return {quotient(a.x, b.x), quotient(a.y, b.y)}; }
ZS_DEVICE float2 operator-(float2 a) { return {-a.x, -a.y}; }

// A condition for each of the two; kept for a later stage, it is 1 or 0.
struct Both {
  bool x, y;
  ZS_DEVICE Both(bool x, bool y) : x(x), y(y) {}
  ZS_DEVICE Both(float2 kept) : x(kept.x > 0.0f), y(kept.y > 0.0f) {}
  ZS_DEVICE operator float2() const { return {x ? 1.0f : 0.0f, y ? 1.0f : 0.0f}; }
};
ZS_DEVICE Both operator>(float2 a, float2 b) { return {a.x > b.x, a.y > b.y}; }
ZS_DEVICE Both operator>=(float2 a, float2 b) { return {a.x >= b.x, a.y >= b.y}; }
ZS_DEVICE float2 where(Both on, float2 a, float2 b) { return {on.x ? a.x : b.x, on.y ? a.y : b.y}; }

// A function of one unit, for both.
template <class Function>
ZS_DEVICE float2 each(float2 x, const Function& function) {
  return {function(Real{x.x}).v, function(Real{x.y}).v};
}
#define ZS_ACTIVATION(NAME, KIND)                                   \
  ZS_DEVICE float2 NAME(float2 x) {                                 \
    return each(x, [](Real one) { return activate(KIND, one); });   \
  }                                                                 \
  ZS_DEVICE float2 slope_##NAME(float2 y) {                         \
    return each(y, [](Real one) { return d_activate(KIND, one); }); \
  }
ZS_ACTIVATION(none, kNone)
ZS_ACTIVATION(relu, kRelu)
ZS_ACTIVATION(tanh, kTanh)
ZS_ACTIVATION(sigmoid, kSigmoid)
ZS_ACTIVATION(hard_sigmoid, kHardSigmoid)
#undef ZS_ACTIVATION

// The others: a relative error of 2^-17 at most, near 0 too, where the type is not full float32.
ZS_DEVICE float exp_of(float x) {
  if constexpr (kType == kFloat32) return ::expf(x);
  return exp2_fast(kLog2e * x);
}
ZS_DEVICE float log1p_of(float x) {  // x is never negative
  if constexpr (kType == kFloat32) return ::log1pf(x);
  return x < 0.03125f ? x * (1.0f - x * (0.5f - x * (1.0f / 3))) : log_fast(1.0f + x);
}
ZS_DEVICE float expm1_of(float x) {  // x is never positive
  if constexpr (kType == kFloat32) return ::expm1f(x);
  return x > -0.03125f ? x * (1.0f + x * (0.5f + x * (1.0f / 6))) : exp2_fast(kLog2e * x) - 1.0f;
}
ZS_DEVICE Real softplus_of(Real x) {
  return {(x.v < 0.0f ? 0.0f : x.v) + log1p_of(exp_of(-::fabsf(x.v)))};  // the argument of exp is never positive
}
ZS_DEVICE float2 softplus(float2 x) { return each(x, softplus_of); }
ZS_DEVICE float2 slope_softplus(float2 y) {
  return each(y, [](Real one) { return Real{-expm1_of(-one.v)}; });
}
ZS_DEVICE float2 log_sigmoid(float2 x) { return -softplus(-x); }
ZS_DEVICE float2 slope_log_sigmoid(float2 y) {
  return each(y, [](Real one) { return Real{-expm1_of(one.v)}; });
}
ZS_DEVICE float2 exp(float2 x) { return {exp_of(x.x), exp_of(x.y)}; }
ZS_DEVICE float2 log(float2 x) { return {::logf(x.x), ::logf(x.y)}; }
ZS_DEVICE float2 sqrt(float2 x) { return {root(x.x), root(x.y)}; }
ZS_DEVICE float2 abs(float2 x) { return {::fabsf(x.x), ::fabsf(x.y)}; }
// NaN stays NaN, whichever of the two it is.
ZS_DEVICE float larger(float a, float b) { return b > a || b != b ? b : a; }
ZS_DEVICE float smaller(float a, float b) { return b < a || b != b ? b : a; }
ZS_DEVICE float2 maximum(float2 a, float2 b) { return {larger(a.x, b.x), larger(a.y, b.y)}; }
ZS_DEVICE float2 minimum(float2 a, float2 b) { return {smaller(a.x, b.x), smaller(a.y, b.y)}; }
