// From NumPy arrays to the engine's operations of a graph.
#include "python/graph_arrays.h"

#include <optional>
#include <vector>

#include "engine/graph_ops.h"
#include "python/gil.h"
#include "python/numpy.h"
#include "python/results.h"
#include "runtime/engines.h"

namespace zstate {
namespace {

using i64 = std::int64_t;
using Sizes = std::vector<i64>;

constexpr std::size_t kMostAxes = 32;  // of an array in every version of NumPy

// A plain array that lies in memory as its shape says.
bool is_plain(nb::handle value, int type) {
  if (!PyArray_CheckExact(value.ptr())) return false;
  PyArrayObject* array = as_array(value.ptr());
  return PyArray_TYPE(array) == type && PyArray_ISNOTSWAPPED(array) && PyArray_IS_C_CONTIGUOUS(array) &&
         PyArray_ISALIGNED(array);
}

// Plain arrays of one type, float32 or float64, and not empty.
class Reals {
 public:
  explicit Reals(nb::handle first) {
    if (!PyArray_CheckExact(first.ptr())) return;
    number_ = PyArray_TYPE(as_array(first.ptr()));
    known_ = (number_ == NPY_FLOAT32 || number_ == NPY_FLOAT64) && has(first);
  }
  explicit operator bool() const { return known_; }
  Type type() const { return number_ == NPY_FLOAT32 ? Type::kFloat32 : Type::kFloat64; }

  bool has(nb::handle value) const {
    return is_plain(value, number_) && PyArray_SIZE(as_array(value.ptr())) > 0;
  }
  bool have(nb::handle value, nb::handle like) const {
    return has(value) && PyArray_SAMESHAPE(as_array(value.ptr()), as_array(like.ptr()));
  }
  // An array of this type, of the shape of the first axes of another one.
  nb::object empty_like(nb::handle value, int axes) const {
    const npy_intp* sizes = PyArray_DIMS(as_array(value.ptr()));
    return empty(Sizes(sizes, sizes + axes));
  }
  nb::object empty_like(nb::handle value) const {
    return empty_like(value, PyArray_NDIM(as_array(value.ptr())));
  }
  nb::object empty(const Sizes& shape) const {
    const nb::object dtype = nb::steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(number_)));
    return new_array(static_cast<int>(shape.size()), shape.data(), dtype);
  }

 private:
  int number_ = NPY_NOTYPE;
  bool known_ = false;
};

void* data(nb::handle value) { return PyArray_DATA(as_array(value.ptr())); }
int axes(nb::handle value) { return PyArray_NDIM(as_array(value.ptr())); }
npy_intp size(nb::handle value) { return PyArray_SIZE(as_array(value.ptr())); }
npy_intp* shape(nb::handle value) { return PyArray_DIMS(as_array(value.ptr())); }

template <class Arguments>
void compute(void (*const GraphOps::*operation)(const Arguments&), const Arguments& arguments) {
  const GraphOps& ops = *engine().graph;
  const WithoutGil released;
  (ops.*operation)(arguments);
}

// A number, or an array without axes.
bool read_number(nb::handle value, double& number) {
  if (PyArray_Check(value.ptr()) && axes(value) > 0) return false;
  number = PyFloat_AsDouble(value.ptr());
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  return true;
}

// Whole numbers in [0, rows), copied: another thread may write to the array while this one computes.
std::optional<Sizes> copy_places(nb::handle value, i64 rows) {
  if (!is_plain(value, NPY_INT64)) return {};
  return copy_below(static_cast<const i64*>(data(value)), size(value), rows);
}

}  // namespace

nb::object soft_max_cross_entropy(nb::handle source, nb::handle labels) {
  const Reals reals(source);
  if (!reals || axes(source) < 1 || !reals.have(labels, source)) return nb::none();
  const nb::object loss = reals.empty_like(source, axes(source) - 1), soft_max = reals.empty_like(source);
  CrossEntropy p;
  p.type = reals.type();
  p.rows = size(loss), p.classes = size(source) / p.rows;
  p.source = data(source), p.labels = data(labels);
  p.loss = data(loss), p.soft_max = data(soft_max);
  compute(&GraphOps::cross_entropy, p);
  return nb::make_tuple(loss, soft_max);
}

nb::object soft_max_cross_entropy_gradient(nb::handle factor, nb::handle soft_max, nb::handle labels) {
  const Reals reals(soft_max);
  if (!reals || axes(soft_max) < 1 || !reals.have(labels, soft_max)) return nb::none();
  CrossEntropyGradient p;
  p.type = reals.type();
  p.classes = shape(soft_max)[axes(soft_max) - 1], p.rows = size(soft_max) / p.classes;
  if (!read_number(factor, p.factor)) {
    if (!reals.has(factor) || size(factor) != p.rows) return nb::none();
    p.factors = data(factor);
  }
  const nb::object result = reals.empty_like(soft_max);
  p.soft_max = data(soft_max), p.labels = data(labels), p.result = data(result);
  compute(&GraphOps::cross_entropy_gradient, p);
  return result;
}

nb::object adam(nb::tuple arrays, nb::tuple numbers) {
  if ((arrays.size() != 4 && arrays.size() != 5) || numbers.size() != 6) return nb::none();
  const Reals reals(arrays[0]);
  if (!reals) return nb::none();
  for (nb::handle array : arrays)
    if (!reals.have(array, arrays[0])) return nb::none();
  Adam p;
  double* const places[] = {&p.rate, &p.beta1, &p.rest1, &p.beta2, &p.rest2, &p.epsilon};
  for (std::size_t i = 0; i < 6; ++i)
    if (!read_number(numbers[i], *places[i])) return nb::none();
  const bool has_largest = arrays.size() == 5;
  nb::object made[4];
  for (int i = 0; i < (has_largest ? 4 : 3); ++i) made[i] = reals.empty_like(arrays[0]);
  p.type = reals.type();
  p.count = size(arrays[0]);
  p.values = data(arrays[0]), p.momentum = data(arrays[1]), p.velocity = data(arrays[2]);
  p.gradient = data(arrays[3]);
  p.new_values = data(made[0]), p.new_momentum = data(made[1]), p.new_velocity = data(made[2]);
  if (has_largest) p.largest = data(arrays[4]), p.new_largest = data(made[3]);
  compute(&GraphOps::adam, p);
  if (has_largest) return nb::make_tuple(made[0], made[1], made[2], made[3]);
  return nb::make_tuple(made[0], made[1], made[2]);
}

nb::object take_rows(nb::handle table, nb::handle places) {
  const Reals reals(table);
  if (!reals || axes(table) < 1) return nb::none();
  const std::optional<Sizes> copied = copy_places(places, shape(table)[0]);
  if (!copied) return nb::none();
  Sizes sizes(shape(places), shape(places) + axes(places));
  sizes.insert(sizes.end(), shape(table) + 1, shape(table) + axes(table));
  if (sizes.size() > kMostAxes) return nb::none();
  const nb::object result = reals.empty(sizes);
  TakeRows p;
  p.type = reals.type();
  p.count = size(places), p.width = size(table) / shape(table)[0];
  p.places = copied->data(), p.table = data(table), p.result = data(result);
  compute(&GraphOps::take_rows, p);
  return result;
}

nb::object add_rows(nb::handle updates, nb::handle places, i64 rows) {
  const Reals reals(updates);
  if (!reals || axes(updates) < 1 || rows < 1) return nb::none();
  const std::optional<Sizes> copied = copy_places(places, rows);
  if (!copied || axes(places) != 1 || size(places) != shape(updates)[0]) return nb::none();
  Sizes sizes(shape(updates), shape(updates) + axes(updates));
  sizes[0] = rows;
  const nb::object result = reals.empty(sizes);
  AddRows p;
  p.type = reals.type();
  p.count = size(places), p.width = size(updates) / p.count, p.rows = rows;
  p.places = copied->data(), p.updates = data(updates), p.result = data(result);
  compute(&GraphOps::add_rows, p);
  return result;
}

}  // namespace zstate
