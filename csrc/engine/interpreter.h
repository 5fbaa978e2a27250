// A cell's instructions over a block of vectors. Each instruction is a loop, which spreads the cost of
// dispatching it over many elements.
#pragma once

#include "engine/engine.h"
#include "engine/opcodes.h"
#include "engine/simd.h"

namespace ZS_NAMESPACE {

using zstate::Instruction;

// The vectors of one value: strides, in bytes, within the inner loop and between its turns.
template <class R>
struct View {
  R* data;
  i64 inner, outer;
  View() = default;
  View(R* at, i64 near, i64 far)
      : data(at), inner(near * static_cast<i64>(sizeof(R))), outer(far * static_cast<i64>(sizeof(R))) {}
};
template <class R>
ZS_DEVICE R* bytes_on(R* from, i64 bytes) {
  return reinterpret_cast<R*>(reinterpret_cast<std::uintptr_t>(from) + static_cast<std::uintptr_t>(bytes));
}

// All values of a block, and how many vectors the loops go over.
template <class R>
struct Frame {
  const View<R>* views;
  i64 inner, outer;
};

template <class R>
struct Instructions {
  using V = Vec<R>;
  using M = VectorMath<R>;
  static ZS_DEVICE V number(double x) { return M::splat(x); }

#define ZS_UNARY(name, value) \
  static ZS_DEVICE V name(V a, V, V, V) { return value; }
#define ZS_BINARY(name, value) \
  static ZS_DEVICE V name(V a, V b, V, V) { return value; }
#define ZS_TERNARY(name, value) \
  static ZS_DEVICE V name(V a, V b, V c, V) { return value; }
  ZS_UNARY(end, a)
  ZS_UNARY(copy, a)
  ZS_UNARY(negative, -a)
  ZS_UNARY(none, a)
  ZS_UNARY(relu, ZS_NAMESPACE::relu(a))
  ZS_UNARY(tanh, M::tanh(a))
  ZS_UNARY(sigmoid, M::sigmoid(a))
  ZS_UNARY(hard_sigmoid, ZS_NAMESPACE::hard_sigmoid(a))
  ZS_UNARY(softplus, M::softplus(a))
  ZS_UNARY(log_sigmoid, -M::softplus(-a))
  ZS_UNARY(exp, M::exp(a))
  ZS_UNARY(log, M::log(a))
  ZS_UNARY(sqrt, M::sqrt(a))
  ZS_UNARY(abs, M::abs(a))
  // Slopes are functions of the result.
  static ZS_DEVICE V slope_none(V, V, V, V) { return number(1.0); }
  ZS_UNARY(slope_relu, d_relu(a))
  ZS_UNARY(slope_tanh, d_tanh(a))
  ZS_UNARY(slope_sigmoid, d_sigmoid(a))
  ZS_UNARY(slope_hard_sigmoid, d_hard_sigmoid(a))
  ZS_UNARY(slope_softplus, -M::expm1_negative(-a))
  ZS_UNARY(slope_log_sigmoid, -M::expm1_negative(a))
  ZS_BINARY(add, a + b)
  ZS_BINARY(subtract, a - b)
  ZS_BINARY(multiply, a* b)
  ZS_BINARY(divide, a / b)
  // If the values are equal, the first; NaN stays.
  ZS_BINARY(maximum, (b > a) | (b != b) ? b : a)
  ZS_BINARY(minimum, (b < a) | (b != b) ? b : a)
  ZS_BINARY(greater, a > b ? number(1.0) : number(0.0))
  ZS_BINARY(at_least, a >= b ? number(1.0) : number(0.0))
  ZS_TERNARY(where, a != number(0.0) ? b : c)
  ZS_BINARY(unless_positive, a > number(0.0) ? number(0.0) : b)
  ZS_TERNARY(multiply_add, a* b + c)
  ZS_TERNARY(multiply_subtract, a* b - c)
  ZS_TERNARY(subtract_product, c - a * b)
  ZS_TERNARY(add_add, (a + b) + c)
  ZS_TERNARY(multiply_multiply, (a * b) * c)
  ZS_BINARY(multiply_tanh, a* M::tanh(b))
  static ZS_DEVICE V product_sum(V a, V b, V c, V d) { return a * b + c * d; }
#define ZS_FUSED(name)                                          \
  ZS_BINARY(add_##name, name(a + b, a, a, a))                   \
  ZS_TERNARY(add_add_##name, name((a + b) + c, a, a, a))        \
  ZS_BINARY(multiply_slope_##name, a* slope_##name(b, b, b, b)) \
  ZS_TERNARY(multiply_multiply_slope_##name, (a * b) * slope_##name(c, c, c, c))
  ZS_FUSED(relu)
  ZS_FUSED(tanh)
  ZS_FUSED(sigmoid)
  ZS_FUSED(hard_sigmoid)
#undef ZS_FUSED
#undef ZS_UNARY
#undef ZS_BINARY
#undef ZS_TERNARY
};

template <class R, int Values, Vec<R> (*Function)(Vec<R>, Vec<R>, Vec<R>, Vec<R>)>
ZS_DEVICE void each_vector(const Frame<R>& frame, const Instruction& instruction) {
  const View<R>*views = frame.views, &out = views[instruction.out], &a = views[instruction.a],
        &b = views[instruction.b], &c = views[instruction.c], &d = views[instruction.d];
  R *to = out.data, *at_a = a.data, *at_b = nullptr, *at_c = nullptr, *at_d = nullptr;
  i64 step = out.inner, step_a = a.inner, step_b = 0, step_c = 0, step_d = 0;
  if constexpr (Values > 1) at_b = b.data, step_b = b.inner;
  if constexpr (Values > 2) at_c = c.data, step_c = c.inner;
  if constexpr (Values > 3) at_d = d.data, step_d = d.inner;
  for (i64 o = 0;;) {
    i64 left = frame.inner;
    do {
      const Vec<R> first = Io<R>::load(at_a);
      Vec<R> second = first, third = first, fourth = first;
      if constexpr (Values > 1) second = Io<R>::load(at_b), at_b = bytes_on(at_b, step_b);
      if constexpr (Values > 2) third = Io<R>::load(at_c), at_c = bytes_on(at_c, step_c);
      if constexpr (Values > 3) fourth = Io<R>::load(at_d), at_d = bytes_on(at_d, step_d);
      Io<R>::store(to, Function(first, second, third, fourth));
      to = bytes_on(to, step), at_a = bytes_on(at_a, step_a);
    } while (--left);
    if (++o >= frame.outer) return;
    // Mostly there is one turn: nothing is prepared for others, since a short loop would wait for it.
    asm volatile("" ::: "memory");
    to = bytes_on(out.data, o * out.outer), at_a = bytes_on(a.data, o * a.outer);
    if constexpr (Values > 1) at_b = bytes_on(b.data, o * b.outer);
    if constexpr (Values > 2) at_c = bytes_on(c.data, o * c.outer);
    if constexpr (Values > 3) at_d = bytes_on(d.data, o * d.outer);
  }
}

template <class R>
using Operation = void (*)(const Frame<R>*, const Instruction*);
template <class R>
struct Operations {
  static const Operation<R> list[];
};
// One instruction, then its own jump to the next, which a processor predicts better than one jump shared by
// all.
template <class R, int Values, Vec<R> (*Function)(Vec<R>, Vec<R>, Vec<R>, Vec<R>)>
void perform(const Frame<R>* frame, const Instruction* code) {
  if constexpr (Values > 0) {
    each_vector<R, Values, Function>(*frame, *code);
    ++code;
    return Operations<R>::list[code->op](frame, code);
  }
}
template <class R>
const Operation<R> Operations<R>::list[] = {
#define ZS_NAME(name, values) perform<R, values, Instructions<R>::name>,
    ZS_OPCODES(ZS_NAME)
#undef ZS_NAME
};

template <class R>
ZS_DEVICE void run_code(const Instruction* code, const Frame<R>& frame) {
  Operations<R>::list[code->op](&frame, code);
}

}  // namespace ZS_NAMESPACE
