// The engine of one instruction set: from the plan's values to types, and the table that the dispatcher
// finds.
//
// Compiled once per instruction set, with ZS_NAMESPACE and ZS_ENGINE_NAME saying which, and ZS_BASE_ENGINE
// where the set only extends another one.
#include "engine.h"

#include "backward_op.h"
#include "forward_op.h"
#include "product.h"

#if defined(ZS_BASE_ENGINE)
namespace ZS_BASE_ENGINE {
extern const zstate::Engine kEngine;
extern const zstate::GraphOps kGraphOps;
}  // namespace ZS_BASE_ENGINE
#endif

namespace ZS_NAMESPACE {

#if !defined(ZS_BASE_ENGINE)
extern const zstate::GraphOps kGraphOps;  // graph_engine.cpp
#endif

namespace {

template <class Acts>
void mark_cell(const Problem& p) {
  constexpr bool any = std::is_same_v<Acts, AnyActivations>;
  mark(any ? Path::any_activations : Path::usual_activations);
  if (p.cell == zstate::Cell::kGru) mark(p.reset_after ? Path::reset_after : Path::reset_before);
}

template <class S, class Cell, class Acts>
void forward_with(const Problem& p, const ForwardArrays& a, const Acts& acts) {
  mark_cell<Acts>(p);
  ForwardOp<S, Cell> op(p, a, acts);
  run_operation(op, operation_work(p));
}
template <class S, class Cell, class Acts>
void backward_with(const Problem& p, const BackwardArrays& a, const Acts& acts) {
  mark_cell<Acts>(p);
  BackwardOp<S, Cell> op(p, a, acts);
  run_operation(op, 2 * operation_work(p));
}

using UsualLstm = FixedActivations<kSigmoid, kSigmoid, kTanh, kSigmoid, kTanh>;
using UsualGru = FixedActivations<kSigmoid, kSigmoid, kTanh>;
// The usual activations are compiled in where speed matters most; elsewhere they would only lengthen the
// build.
template <class S>
inline constexpr bool kHasUsual =
    sizeof(S) == sizeof(float) || !Operand<typename Elements<S>::Product>::kPlain;

template <class Acts>
bool matches(const Problem& p, int count) {
  for (int k = 0; k < count; ++k)
    if (p.activations[k] != Acts{}.kind(k)) return false;
  return true;
}
AnyActivations any_of(const Problem& p) {
  AnyActivations acts;
  for (int k = 0; k < 5; ++k) acts.kinds[k] = p.activations[k];
  return acts;
}

template <class S>
void forward_as(const Problem& p, const ForwardArrays& a) {
  const AnyActivations any = any_of(p);
  switch (p.cell) {
    case zstate::Cell::kRnn:
      return forward_with<S, RnnForward<S, AnyActivations>>(p, a, any);
    case zstate::Cell::kLstm:
      if constexpr (kHasUsual<S>)
        if (matches<UsualLstm>(p, 5)) return forward_with<S, LstmForward<S, UsualLstm>>(p, a, UsualLstm{});
      return forward_with<S, LstmForward<S, AnyActivations>>(p, a, any);
    case zstate::Cell::kGru:
      if (!p.reset_after) return forward_with<S, GruForward<S, AnyActivations, false>>(p, a, any);
      if constexpr (kHasUsual<S>)
        if (matches<UsualGru>(p, 3)) return forward_with<S, GruForward<S, UsualGru, true>>(p, a, UsualGru{});
      return forward_with<S, GruForward<S, AnyActivations, true>>(p, a, any);
  }
}
template <class S>
void backward_as(const Problem& p, const BackwardArrays& a) {
  const AnyActivations any = any_of(p);
  switch (p.cell) {
    case zstate::Cell::kRnn:
      return backward_with<S, RnnBackward<S, AnyActivations>>(p, a, any);
    case zstate::Cell::kLstm:
      if constexpr (kHasUsual<S>)
        if (matches<UsualLstm>(p, 5)) return backward_with<S, LstmBackward<S, UsualLstm>>(p, a, UsualLstm{});
      return backward_with<S, LstmBackward<S, AnyActivations>>(p, a, any);
    case zstate::Cell::kGru:
      if (!p.reset_after) return backward_with<S, GruBackward<S, AnyActivations, false>>(p, a, any);
      if constexpr (kHasUsual<S>)
        if (matches<UsualGru>(p, 3))
          return backward_with<S, GruBackward<S, UsualGru, true>>(p, a, UsualGru{});
      return backward_with<S, GruBackward<S, AnyActivations, true>>(p, a, any);
  }
}

#if defined(ZS_BASE_ENGINE)

// This instruction set adds something for bfloat16 alone: everything else is the base's.
void forward(const Problem& p, const ForwardArrays& a) {
  if (p.type != zstate::Type::kBfloat16) return ZS_BASE_ENGINE::kEngine.forward(p, a);
  forward_as<Bfloat16>(p, a);
}
void backward(const Problem& p, const BackwardArrays& a) {
  if (p.type != zstate::Type::kBfloat16) return ZS_BASE_ENGINE::kEngine.backward(p, a);
  backward_as<Bfloat16>(p, a);
}
void product(const Product& p) { ZS_BASE_ENGINE::kEngine.product(p); }
void activation(zstate::Type type, int kind, const void* in, void* out, i64 count) {
  ZS_BASE_ENGINE::kEngine.activation(type, kind, in, out, count);
}
bool supported() { return ZS_BASE_ENGINE::kEngine.supported() && __builtin_cpu_supports("avx512bf16"); }
using ZS_BASE_ENGINE::kGraphOps;

#else

void forward(const Problem& p, const ForwardArrays& a) {
  switch (p.type) {
    case zstate::Type::kFloat32:
      return forward_as<float>(p, a);
    case zstate::Type::kFloat64:
      return forward_as<double>(p, a);
    case zstate::Type::kFloat16:
      return forward_as<Float16>(p, a);
    case zstate::Type::kBfloat16:
      return forward_as<Bfloat16>(p, a);
  }
}
void backward(const Problem& p, const BackwardArrays& a) {
  switch (p.type) {
    case zstate::Type::kFloat32:
      return backward_as<float>(p, a);
    case zstate::Type::kFloat64:
      return backward_as<double>(p, a);
    case zstate::Type::kFloat16:
      return backward_as<Float16>(p, a);
    case zstate::Type::kBfloat16:
      return backward_as<Bfloat16>(p, a);
  }
}

template <class R>
void product_as(const Product& p) {
  ProductOp<R> op(p);
  run_operation(op, static_cast<double>(p.rows) * static_cast<double>(p.columns * p.length));
}
void product(const Product& p) {
  if (p.type == zstate::Type::kFloat64) return product_as<double>(p);
  product_as<float>(p);
}

template <class S>
void activation_as(int kind, const void* in, void* out, i64 count) {
  constexpr int L = Io<S>::lanes;
  const S* from = static_cast<const S*>(in);
  S* to = static_cast<S*>(out);
  for (i64 i = 0; i < count; i += L) {
    const int n = static_cast<int>(min_of(L, count - i));
    Io<S>::store_n(to + i, activate(kind, Io<S>::load_n(from + i, n)), n);
  }
}
void activation(zstate::Type type, int kind, const void* in, void* out, i64 count) {
  switch (type) {
    case zstate::Type::kFloat32:
      return activation_as<float>(kind, in, out, count);
    case zstate::Type::kFloat64:
      return activation_as<double>(kind, in, out, count);
    case zstate::Type::kFloat16:
      return activation_as<Float16>(kind, in, out, count);
    case zstate::Type::kBfloat16:
      return activation_as<Bfloat16>(kind, in, out, count);
  }
}

bool supported() {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512cd");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#elif defined(__SSE4_2__)
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
#else
  return true;
#endif
}

#endif

}  // namespace

extern const zstate::Engine kEngine;
const zstate::Engine kEngine = {ZS_ENGINE_NAME, supported,  forward,   backward,
                                product,        activation, &kGraphOps};

}  // namespace ZS_NAMESPACE
