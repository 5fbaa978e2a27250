// The operations on 16-bit types for one instruction set, compiled like engine.cpp.
#include "engine/run.h"

namespace ZS_NAMESPACE {

ZS_FOR_TYPE(, Bfloat16)
#if !defined(ZS_BASE_ENGINE)
ZS_FOR_TYPE(, Float16)
#endif

}  // namespace ZS_NAMESPACE
