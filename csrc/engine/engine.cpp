// The engine of one instruction set: from a problem's values to types, and the table of its functions.
//
// Compiled once per instruction set, with ZS_NAMESPACE and ZS_ENGINE_NAME saying which, and ZS_BASE_ENGINE
// where the set only extends another one: AVX-512 BF16 and ARM's BF16 add code for bfloat16 only, VNNI and
// ARM's dot and matrix products for int8 weights (prepared.cpp); everything else is the base's.
#include "engine/engine.h"

#include "engine/product.h"
#include "engine/run.h"
#include "runtime/cpu.h"

#if defined(ZS_BASE_ENGINE)
namespace ZS_BASE_ENGINE {
extern const zstate::Engine kEngine;
}  // namespace ZS_BASE_ENGINE
namespace ZS_ROOT_ENGINE {  // which extends no other
extern const zstate::GraphOps kGraphOps;
}  // namespace ZS_ROOT_ENGINE
#endif

namespace ZS_NAMESPACE {

#if !defined(ZS_BASE_ENGINE)
extern const zstate::GraphOps kGraphOps;  // graph_ops.cpp
#endif

// prepared.cpp
char* pack(const Problem& p, const ForwardArrays& arrays, zstate::Weights weights);
zstate::Call* ready(const Problem& p, const ForwardArrays& arrays, zstate::Weights weights, char* packed,
                    int threads);

namespace {

using zstate::Feature;
using zstate::Type;

#if defined(ZS_BASE_ENGINE) && !defined(ZS_MULTIPLIES_PAIRS)

void forward(const Problem& p, const ForwardArrays& arrays) { ZS_BASE_ENGINE::kEngine.forward(p, arrays); }
void backward(const Problem& p, const BackwardArrays& arrays) { ZS_BASE_ENGINE::kEngine.backward(p, arrays); }

#else

// Calls run.template operator()<S>(), S being what arrays of this type are made of.
template <class Run>
void with_type(Type type, const Run& run) {
  switch (type) {
    case Type::kBfloat16:
      return run.template operator()<Bfloat16>();
#if !defined(ZS_BASE_ENGINE)
    case Type::kFloat32:
      return run.template operator()<float>();
    case Type::kFloat64:
      return run.template operator()<double>();
    case Type::kFloat16:
      return run.template operator()<Float16>();
#else
    default:  // the base's
      return;
#endif
  }
}

void forward(const Problem& p, const ForwardArrays& arrays) {
#if defined(ZS_BASE_ENGINE)
  if (p.type != Type::kBfloat16) return ZS_BASE_ENGINE::kEngine.forward(p, arrays);
#endif
  if (p.rows() == 0) return;  // every result is empty
  with_type(p.type, [&]<class S>() { run_forward<S>(p, arrays); });
}
void backward(const Problem& p, const BackwardArrays& arrays) {
#if defined(ZS_BASE_ENGINE)
  if (p.type != Type::kBfloat16) return ZS_BASE_ENGINE::kEngine.backward(p, arrays);
#endif
  with_type(p.type, [&]<class S>() { run_backward<S>(p, arrays); });
}

#endif

#if defined(ZS_BASE_ENGINE)

void product(const Product& p) { ZS_BASE_ENGINE::kEngine.product(p); }
void function(Type type, int op, const void* in, void* out, i64 count) {
  ZS_BASE_ENGINE::kEngine.function(type, op, in, out, count);
}
bool supported() {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return zstate::cpu_has(Feature::kNeonBf16);
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  return zstate::cpu_has(Feature::kNeonI8mm);
#elif defined(__aarch64__)
  return zstate::cpu_has(Feature::kNeonDot);
#elif defined(__AVX512BF16__)
  return zstate::cpu_has(Feature::kAvx512Bf16);
#elif defined(__AVX512F__)
  return zstate::cpu_has(Feature::kAvx512Vnni);
#else
  return zstate::cpu_has(Feature::kAvx2Vnni);
#endif
}
using ZS_ROOT_ENGINE::kGraphOps;

#else

void product(const Product& p) {
  with_real(p.type, [&]<class R>() {
    ProductOp<R> op(p);
    const double work = static_cast<double>(p.rows) * static_cast<double>(p.columns * p.length);
    run_operation(op, work, work);
  });
}

void function(Type type, int op, const void* in, void* out, i64 count) {
  with_type(type, [&]<class S>() {
    using R = RealOf<S>;
    const S* from = static_cast<const S*>(in);
    S* to = static_cast<S*>(out);
    R values[Simd<R>::lanes];
    const View<R> view{values, 0, 0};
    const zstate::Instruction code[] = {{op, 0, 0, 0, 0, 0}, {}};  // then the end
    for (i64 i = 0; i < count; i += Io<S>::lanes) {
      const int n = static_cast<int>(min_of(Io<S>::lanes, count - i));
      Io<R>::store(values, Io<S>::load_n(from + i, n));
      run_code(code, Frame<R>{&view, 1, 1});
      Io<S>::store_n(to + i, Io<R>::load(values), n);
    }
  });
}

bool supported() {
#if defined(__AVX512F__)
  return zstate::cpu_has(Feature::kAvx512);
#elif defined(__AVX2__)
  return zstate::cpu_has(Feature::kAvx2);
#elif defined(__SSE4_2__)
  return zstate::cpu_has(Feature::kV2);
#else
  return true;
#endif
}

#endif

}  // namespace

extern const zstate::Engine kEngine;
const zstate::Engine kEngine = {ZS_ENGINE_NAME, supported,  forward, backward, product,
                                function,       &kGraphOps, pack,    ready};

}  // namespace ZS_NAMESPACE
