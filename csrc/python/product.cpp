// From NumPy matrices to the engine's product.
#include "python/graph_arrays.h"
#include "python/gil.h"
#include "python/numpy.h"
#include "python/results.h"
#include "runtime/engines.h"

namespace zstate {
namespace {

using i64 = std::int64_t;

// Below this NumPy's product has less overhead, and uses one thread as well.
constexpr double kLeastProduct = 1 << 18;

// Strides in elements of a matrix with rows or columns that are contiguous.
bool matrix_strides(PyArrayObject* array, i64 (&strides)[2]) {
  const npy_intp item = PyArray_ITEMSIZE(array);
  if (!PyArray_ISALIGNED(array)) return false;
  for (int axis = 0; axis < 2; ++axis) {
    if (PyArray_STRIDE(array, axis) % item) return false;
    strides[axis] = PyArray_STRIDE(array, axis) / item;
  }
  return strides[0] == 1 || strides[1] == 1;
}

bool fill_product(PyArrayObject* a, PyArrayObject* b, Product& p) {
  const int type = PyArray_TYPE(a);
  if (PyArray_NDIM(a) != 2 || PyArray_NDIM(b) != 2 || type != PyArray_TYPE(b)) return false;
  if ((type != NPY_FLOAT32 && type != NPY_FLOAT64) || !PyArray_ISNOTSWAPPED(a) || !PyArray_ISNOTSWAPPED(b))
    return false;
  p.type = type == NPY_FLOAT32 ? Type::kFloat32 : Type::kFloat64;
  p.rows = PyArray_DIM(a, 0), p.columns = PyArray_DIM(b, 1), p.length = PyArray_DIM(a, 1);
  const double work =
      static_cast<double>(p.rows) * static_cast<double>(p.columns) * static_cast<double>(p.length);
  if (p.length != PyArray_DIM(b, 0) || work < kLeastProduct) return false;
  if (!matrix_strides(a, p.a_strides) || !matrix_strides(b, p.b_strides)) return false;
  p.a = PyArray_DATA(a), p.b = PyArray_DATA(b);
  return p.a_strides[1] == 1 || p.b_strides[1] == 1;
}

}  // namespace

nb::object product(nb::handle a, nb::handle b) {
  Product p;
  if (!PyArray_CheckExact(a.ptr()) || !PyArray_CheckExact(b.ptr()) ||
      !fill_product(as_array(a.ptr()), as_array(b.ptr()), p))
    return nb::none();
  const i64 shape[2] = {p.rows, p.columns};
  nb::object made = new_array(2, shape, reinterpret_cast<PyObject*>(PyArray_DESCR(as_array(a.ptr()))));
  p.c = PyArray_DATA(as_array(made.ptr()));
  const Engine& e = engine();
  const WithoutGil released;
  e.product(p);
  return made;
}

}  // namespace zstate
