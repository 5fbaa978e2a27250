// Tensors as arrays over the same memory, and results as tensors.
#include "python/torch_tensors.h"

#include <cstdint>

#include "python/known_calls.h"
#include "python/numpy.h"
#include "python/tuples.h"
#include "runtime/paths.h"

namespace zstate {
namespace {

// What a capsule called "dltensor" points at: https://dmlc.github.io/dlpack/latest/c_api.html
struct DLTensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t ndim;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t *shape, *strides;  // strides count elements
  std::uint64_t byte_offset;
};
constexpr std::int32_t kCpu = 1;
constexpr std::uint8_t kFloat = 2;
constexpr int kTensorAxes = 3;

struct Torch {
  nb::tuple types;
  nb::object to_dlpack, from_numpy;
};
Torch& torch() {
  static Torch* functions = new Torch;  // never destroyed: the interpreter may be gone by then
  return *functions;
}

void use_torch(nb::tuple types, nb::object to_dlpack, nb::object from_numpy) {
  torch() = {std::move(types), std::move(to_dlpack), std::move(from_numpy)};
}

// Only a plain tensor, whose values are those in its memory. A subclass may be anything.
bool is_plain(PyObject* value) {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  bool known = false;
  for (const nb::handle type : torch().types)
    known = known || type.ptr() == reinterpret_cast<PyObject*>(Py_TYPE(value));
  if (!known) return false;
  // A tensor that stands for its memory's negative.
  const nb::object negative = nb::steal(call_method(value, is_neg));
  if (!negative) throw nb::python_error();
  return negative.ptr() == Py_False;
}

int numpy_type(const DLTensor& tensor) {
  if (tensor.code != kFloat || tensor.lanes != 1) return NPY_NOTYPE;
  switch (tensor.bits) {
    case 16:
      return NPY_FLOAT16;
    case 32:
      return NPY_FLOAT32;
    case 64:
      return NPY_FLOAT64;
    default:
      return NPY_NOTYPE;
  }
}

// A tensor as an array over its memory, which lives as long as the array; null for what is none, on another
// device, or of a type that NumPy has not.
nb::object view(PyObject* value) {
  if (!is_plain(value)) return {};
  nb::object capsule = nb::steal(call_with(torch().to_dlpack.ptr(), value));
  if (!capsule) {  // a tensor without memory, or with more than that: the caller's own way says so by name
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
    PyErr_Clear();
    return {};
  }
  const auto* tensor = static_cast<const DLTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (!tensor) throw nb::python_error();
  const int type = numpy_type(*tensor);
  if (tensor->device_type != kCpu || type == NPY_NOTYPE || tensor->ndim > kTensorAxes) return {};
  npy_intp shape[kTensorAxes], strides[kTensorAxes];
  bool empty = false;
  for (int axis = 0; axis < tensor->ndim; ++axis) {
    empty = empty || tensor->shape[axis] == 0;
    shape[axis] = tensor->shape[axis];
    strides[axis] = tensor->strides[axis] * (tensor->bits / 8);
  }
  if (!tensor->data && !empty) return {};  // values that are nowhere: the caller's own way says so by name
  PyObject* array =
      PyArray_NewFromDescr(&PyArray_Type, PyArray_DescrFromType(type), tensor->ndim, shape, strides,
                           static_cast<char*>(tensor->data) + tensor->byte_offset, 0, nullptr);
  if (!array) throw nb::python_error();
  nb::object made = nb::steal(array);
  if (PyArray_SetBaseObject(as_array(array), capsule.release().ptr()) < 0) throw nb::python_error();
  return made;
}

nb::object views(nb::handle tensors) {
  const Py_ssize_t count = tuple_size(tensors.ptr());
  nb::object made = nb::steal(PyTuple_New(count));
  if (!made) throw nb::python_error();
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value = tuple_item(tensors.ptr(), i);
    nb::object array = value == Py_None ? nb::none() : view(value);
    if (!array) return {};
    set_tuple_item(made.ptr(), i, array.release().ptr());
  }
  return made;
}

// The same named tuple with tensors in place of arrays. It has just been made, so nothing else sees it
// change.
void to_tensors(nb::handle result) {
  for (Py_ssize_t i = 0; i < tuple_size(result.ptr()); ++i) {
    PyObject* array = tuple_item(result.ptr(), i);
    if (array == Py_None) continue;
    PyObject* tensor = call_with(torch().from_numpy.ptr(), array);
    if (!tensor) throw nb::python_error();
    set_tuple_item(result.ptr(), i, tensor);
  }
}

nb::object repeat_tensors(nb::handle operation, nb::handle tensors, nb::handle descriptor) {
  if (!PyTuple_CheckExact(tensors.ptr()) || !torch().types) return nb::none();
  const nb::object arrays = views(tensors);
  if (!arrays) return nb::none();
  nb::object result = repeat(operation, arrays, descriptor);
  if (!result.is_none()) {
    mark(Path::known_call_on_tensors);
    to_tensors(result);
  }
  return result;
}

}  // namespace

void bind_tensors(nb::module_& m) {
  m.def("use_torch", &use_torch);
  m.def("repeat_tensors", &repeat_tensors, nb::arg().none(), nb::arg().none(), nb::arg().none());
}

}  // namespace zstate
