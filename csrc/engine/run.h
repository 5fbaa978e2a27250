// The two operations on arrays of one type.
#pragma once

#include "engine/backward.h"
#include "engine/forward.h"

namespace ZS_NAMESPACE {

template <class S>
void run_forward(const Problem& p, const ForwardArrays& arrays) {
  Forward<S> op(p, arrays);
  run_operation(op, op.work(), op.shared_work());
}
template <class S>
void run_backward(const Problem& p, const BackwardArrays& arrays) {
  if (p.rows() == 0) return backward_without_rows<S>(p, arrays);
  Backward<S> op(p, arrays);
  run_operation(op, op.work(), op.shared_work());
}

// The 16-bit types are compiled apart (half_types.cpp), so that two cores share the work of a build.
#define ZS_FOR_TYPE(keyword, S)                                               \
  keyword template void run_forward<S>(const Problem&, const ForwardArrays&); \
  keyword template void run_backward<S>(const Problem&, const BackwardArrays&);
ZS_FOR_TYPE(extern, Bfloat16)
ZS_FOR_TYPE(extern, Float16)

}  // namespace ZS_NAMESPACE
