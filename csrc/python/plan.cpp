// Plans on NumPy arrays.
#include "python/plan.h"

#include <stdexcept>
#include <utility>

#include "python/gil.h"
#include "python/numpy.h"
#include "python/results.h"
#include "python/tuples.h"
#include "runtime/engines.h"
#include "runtime/blocks.h"
#include "runtime/named_arrays.h"
#include "runtime/paths.h"
#include "runtime/problem.h"

namespace zstate {
namespace {

using i64 = std::int64_t;

template <class Arrays, std::size_t Count>
int known_place(const Member<Arrays> (&members)[Count], const std::string& called) {
  const int place = place_of(members, called);
  if (place < 0) throw std::invalid_argument("Plan: no array is called " + called);
  return place;
}

bool has_shape(PyArrayObject* array, const Shape& shape) {
  if (PyArray_NDIM(array) != static_cast<int>(shape.size())) return false;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    if (PyArray_DIM(array, static_cast<int>(axis)) != shape[axis]) return false;
  return true;
}

// The arrays of one call: what is kept until it ends.
class CallArrays {
 public:
  explicit CallArrays(const Signature& s) : s_(s) {}

  Array input(const NamedShape& named, PyObject* value) {
    if (named.name.empty()) {
      if (value != Py_None) throw std::invalid_argument("an array that the plan has not");
      return {};
    }
    if (!PyArray_Check(value) || !has_shape(as_array(value), named.shape) ||
        PyArray_ITEMSIZE(as_array(value)) != PyDataType_ELSIZE(dtype()))
      throw std::invalid_argument(named.name + ": not the array that the plan was made for");
    PyArrayObject* array = as_array(value);
    const bool mask = named.called == "mask";
    if (!walkable(array, mask)) {
      mark(Path::input_copied);
      array = copy(array);
    }
    if (mask) return walk(array, 3);
    Array a = walk(array, axes_of(named));
    a.strides[a.rank - 1] = 1;
    return a;
  }

  Array result(const NamedShape& named, PyObject* tuple, Py_ssize_t place) {
    if (named.name.empty()) {
      set_tuple_item(tuple, place, Py_NewRef(Py_None));
      return {};
    }
    nb::object made = new_array(static_cast<int>(named.shape.size()), named.shape.data(), s_.dtype);
    Array a = walk(as_array(made.ptr()), axes_of(named));
    set_tuple_item(tuple, place, made.release().ptr());
    a.strides[a.rank - 1] = 1;
    return a;
  }

 private:
  PyArray_Descr* dtype() const { return reinterpret_cast<PyArray_Descr*>(s_.dtype.ptr()); }

  // [1,N,X] is [N,X] for the states between calls.
  static int axes_of(const NamedShape& named) {
    const int rank = static_cast<int>(named.shape.size());
    return is_between_calls(named.called) && rank == 3 && named.shape[0] == 1 ? 2 : rank;
  }

  // Aligned, whole elements between rows, and the last axis contiguous; a mask may repeat there.
  static bool walkable(PyArrayObject* array, bool mask) {
    const int rank = PyArray_NDIM(array);
    if (!PyArray_ISALIGNED(array)) return false;
    if (PyArray_IS_C_CONTIGUOUS(array)) return true;
    const npy_intp item = PyArray_ITEMSIZE(array);
    for (int axis = 0; axis < rank; ++axis)
      if (PyArray_STRIDE(array, axis) % item) return false;
    const npy_intp last = PyArray_STRIDE(array, rank - 1);
    return PyArray_DIM(array, rank - 1) == 1 || last == item || (mask && last == 0);
  }

  PyArrayObject* copy(PyArrayObject* array) {
    nb::object made = nb::steal(PyArray_NewCopy(array, NPY_CORDER));
    if (!made && PyErr_ExceptionMatches(PyExc_MemoryError)) {
      PyErr_Clear();
      free_kept();
      made = nb::steal(PyArray_NewCopy(array, NPY_CORDER));
    }
    if (!made) throw nb::python_error();
    copies_.push_back(made);
    return as_array(made.ptr());
  }

  const Signature& s_;
  std::vector<nb::object> copies_;
};

template <class Arrays, std::size_t Inputs, std::size_t Results>
nb::object run_on(const Signature& s, nb::handle values, const Member<Arrays> (&inputs)[Inputs],
                  const Member<Arrays> (&results)[Results], void (*function)(const Problem&, const Arrays&)) {
  CallArrays call(s);
  Arrays arrays;
  for (std::size_t i = 0; i < s.inputs.size(); ++i) {
    const Array a = call.input(s.inputs[i], tuple_item(values.ptr(), static_cast<Py_ssize_t>(i)));
    if (a) array_at(arrays, inputs, s.inputs[i].place) = a;
  }
  nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(s.results.size())));
  if (!made) throw nb::python_error();
  for (std::size_t i = 0; i < s.results.size(); ++i) {
    const Array a = call.result(s.results[i], made.ptr(), static_cast<Py_ssize_t>(i));
    if (a) array_at(arrays, results, s.results[i].place) = a;
  }
  {
    const WithoutGil released;
    function(s.problem, arrays);
  }
  // A named tuple is a tuple with other names: its own constructor would only count the fields again.
  nb::object arguments = nb::steal(PyTuple_Pack(1, made.ptr()));
  if (!arguments) throw nb::python_error();
  PyObject* result = new_tuple(reinterpret_cast<PyTypeObject*>(s.result.ptr()), arguments.ptr());
  if (!result) throw nb::python_error();
  return nb::steal(result);
}

void check_signature(const Signature& s) {
  check(s.problem);
  if (s.tables->gradient() != s.gradient)
    throw std::invalid_argument("Plan: the tables of another operation");
  if (!PyArray_DescrCheck(s.dtype.ptr())) throw std::invalid_argument("Plan: dtype is not NumPy's");
  if (!PyType_Check(s.result.ptr()) ||
      !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(s.result.ptr()), &PyTuple_Type))
    throw std::invalid_argument("Plan: the result's type is no tuple");
  for (const auto* list : {&s.inputs, &s.results})
    for (const NamedShape& named : *list)
      if (!named.name.empty() && (named.shape.empty() || named.shape.size() > 3) && named.called != "mask")
        throw std::invalid_argument("Plan: " + named.name + " has a shape that no array here has");
}

}  // namespace

Array walk(PyArrayObject* array, int axes) {
  static char empty;
  Array a;
  a.data = PyArray_SIZE(array) ? PyArray_DATA(array) : &empty;
  a.rank = axes;
  const int extra = PyArray_NDIM(array) - axes;
  const npy_intp item = PyArray_ITEMSIZE(array);
  for (int axis = 0; axis < axes; ++axis) {
    const int from = axis + extra;
    // A step along an axis of one element leads nowhere; a mask has it all the same.
    if (from >= 0 && PyArray_DIM(array, from) != 1) a.strides[axis] = PyArray_STRIDE(array, from) / item;
  }
  return a;
}

Plan::Plan(Signature signature) : s_(std::move(signature)) {
  mark(Path::first_call);
  if (!s_.starts.empty()) {
    s_.problem.starts = s_.starts.data();
    s_.problem.step_of = s_.step_of.data();
  }
  check_signature(s_);
  for (NamedShape& named : s_.inputs)
    if (!named.name.empty())
      named.place = s_.gradient ? known_place(kBackwardInputs, named.called)
                                : known_place(kForwardInputs, named.called);
  for (NamedShape& named : s_.results)
    if (!named.name.empty())
      named.place = s_.gradient ? known_place(kBackwardResults, named.called)
                                : known_place(kForwardResults, named.called);
}

nb::object Plan::run(nb::handle values) const {
  if (!PyTuple_Check(values.ptr()) || tuple_size(values.ptr()) != static_cast<Py_ssize_t>(s_.inputs.size()))
    throw std::invalid_argument("Plan: expected a tuple of as many arrays as the signature has");
  const Engine& e = engine();
  if (s_.gradient) return run_on(s_, values, kBackwardInputs, kBackwardResults, e.backward);
  return run_on(s_, values, kForwardInputs, kForwardResults, e.forward);
}

bool Plan::matches(nb::handle values) const {
  if (tuple_size(values.ptr()) != static_cast<Py_ssize_t>(s_.inputs.size())) return false;
  for (std::size_t i = 0; i < s_.inputs.size(); ++i) {
    PyObject* value = tuple_item(values.ptr(), static_cast<Py_ssize_t>(i));
    const NamedShape& named = s_.inputs[i];
    if (named.name.empty()) {
      if (value != Py_None) return false;
    } else if (!PyArray_CheckExact(value) ||
               reinterpret_cast<PyObject*>(PyArray_DESCR(as_array(value))) != s_.dtype.ptr() ||
               !has_shape(as_array(value), named.shape)) {
      return false;
    }
  }
  return true;
}

}  // namespace zstate
