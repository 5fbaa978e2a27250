// Functions that the engines share are always inlined: the linker must never merge a copy that was compiled
// for a wider instruction set into code for a narrower one.
#pragma once

#define ZS_INLINE inline __attribute__((always_inline))
