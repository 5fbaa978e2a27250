// NumPy's interface for custom memory (NEP 49): a handler, set while an array is made, that the array keeps
// until it is freed.
#include "python/results.h"

#define ZS_IMPORTS_NUMPY
#include "python/numpy.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "runtime/blocks.h"

namespace zstate {
namespace {

// For smaller ones the C library's heap is fine.
constexpr std::size_t kLarge = std::size_t{1} << 20;

void* take(void*, std::size_t bytes) {
  try {
    return take_block(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;  // for which NumPy raises MemoryError
  }
}
void* take_zeros(void* context, std::size_t count, std::size_t size) {
  if (size && count > SIZE_MAX / size) return nullptr;
  void* block = take(context, count * size);
  if (block) std::memset(block, 0, count * size);
  return block;
}
void give(void*, void* block, std::size_t) {
  if (block) give_block(block);
}
void* change(void* context, void* block, std::size_t bytes) {
  if (block && block_size(block) >= bytes) return block;
  void* other = take(context, bytes);
  if (other && block) {
    std::memcpy(other, block, std::min(bytes, block_size(block)));
    give_block(block);
  }
  return other;
}

PyDataMem_Handler g_handler = {"zstate", 1, {nullptr, take, take_zeros, change, give}};
PyObject* g_capsule = nullptr;  // of the handler, as NumPy wants it

// NumPy's handler is ours as long as this lives.
class OurMemory {
 public:
  OurMemory() : before_(PyDataMem_SetHandler(g_capsule)) {
    if (!before_) throw nb::python_error();
  }
  ~OurMemory() {
    Py_XDECREF(PyDataMem_SetHandler(before_));
    Py_DECREF(before_);
  }
  OurMemory(const OurMemory&) = delete;
  OurMemory& operator=(const OurMemory&) = delete;

 private:
  PyObject* before_;
};

nb::object make(int rank, npy_intp* shape, nb::handle dtype) {
  Py_INCREF(dtype.ptr());  // which PyArray_Empty takes over
  nb::object made =
      nb::steal(PyArray_Empty(rank, shape, reinterpret_cast<PyArray_Descr*>(dtype.ptr()), /*fortran=*/0));
  if (!made) throw nb::python_error();
  return made;
}

}  // namespace

nb::object new_array(int rank, const std::int64_t* shape, nb::handle dtype) {
  npy_intp sizes[NPY_MAXDIMS];
  double bytes = static_cast<double>(PyDataType_ELSIZE(reinterpret_cast<PyArray_Descr*>(dtype.ptr())));
  for (int axis = 0; axis < rank; ++axis) {
    sizes[axis] = static_cast<npy_intp>(shape[axis]);
    bytes *= static_cast<double>(shape[axis]);
  }
  if (bytes < static_cast<double>(kLarge)) return make(rank, sizes, dtype);
  const OurMemory ours;
  return make(rank, sizes, dtype);
}

bool import_numpy() {
  if (PyArray_ImportNumPyAPI() != 0) return false;
  g_capsule = PyCapsule_New(&g_handler, "mem_handler", nullptr);
  return g_capsule != nullptr;
}

}  // namespace zstate
