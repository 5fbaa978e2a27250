// Plans on NumPy arrays, and the calls that are known already.
#include "plan.h"

#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "numpy.h"
#include "paths.h"
#include "results.h"

namespace zstate {
namespace {

using i64 = std::int64_t;

template <class Arrays>
struct Member {
  const char* name;
  Array Arrays::* array;
};

// What the engines' arrays are called in Python.
constexpr Member<ForwardArrays> kForwardInputs[] = {
    {"source", &ForwardArrays::source},
    {"recurrent_weight", &ForwardArrays::recurrent_weight},
    {"input_weight", &ForwardArrays::input_weight},
    {"bias", &ForwardArrays::bias},
    {"init_state", &ForwardArrays::init_state},
    {"init_cell", &ForwardArrays::init_cell},
    {"mask", &ForwardArrays::mask},
    {"peephole", &ForwardArrays::peephole},
    {"secondary_bias", &ForwardArrays::secondary_bias},
};
constexpr Member<ForwardArrays> kForwardResults[] = {
    {"state", &ForwardArrays::state},
    {"cell", &ForwardArrays::cell},
    {"training_state", &ForwardArrays::training_state},
};
constexpr Member<BackwardArrays> kBackwardInputs[] = {
    {"source", &BackwardArrays::source},
    {"recurrent_weight", &BackwardArrays::recurrent_weight},
    {"source_gradient", &BackwardArrays::source_gradient},
    {"z_state", &BackwardArrays::training_state},
    {"cell_output_fwd", &BackwardArrays::cell_fwd},
    {"output_fwd", &BackwardArrays::state_fwd},
    {"state_gradient", &BackwardArrays::state_gradient},
    {"cell_gradient", &BackwardArrays::cell_gradient},
    {"input_weight", &BackwardArrays::input_weight},
    {"bias", &BackwardArrays::bias},
    {"init_state", &BackwardArrays::init_state},
    {"init_cell", &BackwardArrays::init_cell},
    {"mask", &BackwardArrays::mask},
    {"peephole", &BackwardArrays::peephole},
    {"secondary_bias", &BackwardArrays::secondary_bias},
};
constexpr Member<BackwardArrays> kBackwardResults[] = {
    {"source", &BackwardArrays::d_source},      {"recurrent_weight", &BackwardArrays::d_recurrent},
    {"input_weight", &BackwardArrays::d_input}, {"bias", &BackwardArrays::d_bias},
    {"peephole", &BackwardArrays::d_peephole},  {"init_state", &BackwardArrays::d_state},
    {"init_cell", &BackwardArrays::d_cell},     {"secondary_bias", &BackwardArrays::d_secondary},
};

template <class Arrays, std::size_t Count>
int place_of(const Member<Arrays> (&members)[Count], const std::string& name) {
  for (std::size_t i = 0; i < Count; ++i)
    if (name == members[i].name) return static_cast<int>(i);
  throw std::invalid_argument("Plan: no array is called " + name);
}

bool has_shape(PyArrayObject* array, const Shape& shape) {
  if (PyArray_NDIM(array) != static_cast<int>(shape.size())) return false;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    if (PyArray_DIM(array, static_cast<int>(axis)) != shape[axis]) return false;
  return true;
}

// Pointers and strides of an array that an engine can walk. `axes`: how many it is to have; axes of one
// element are put in front, or dropped from there, to make it so.
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

// The arrays of one call: what is kept until it ends.
class Operands {
 public:
  explicit Operands(const Signature& s) : s_(s) {}

  Array input(const Tensor& tensor, PyObject* value) {
    if (tensor.name.empty()) {
      if (value != Py_None) throw std::invalid_argument("an array that the plan has not");
      return {};
    }
    if (!PyArray_Check(value) || !has_shape(as_array(value), tensor.shape) ||
        PyArray_ITEMSIZE(as_array(value)) != PyDataType_ELSIZE(dtype()))
      throw std::invalid_argument(tensor.name + ": not the array that the plan was made for");
    PyArrayObject* array = as_array(value);
    const bool mask = tensor.name == "mask";
    if (!walkable(array, mask)) {
      mark(Path::input_copied);
      array = copy(array);
    }
    if (mask) return walk(array, 3);
    Array a = walk(array, axes_of(tensor));
    a.strides[a.rank - 1] = 1;
    return a;
  }

  Array result(const Tensor& tensor, PyObject* tuple, Py_ssize_t place) {
    if (tensor.name.empty()) {
      PyTuple_SET_ITEM(tuple, place, Py_NewRef(Py_None));
      return {};
    }
    nb::object made = new_array(static_cast<int>(tensor.shape.size()), tensor.shape.data(), s_.dtype);
    Array a = walk(as_array(made.ptr()), axes_of(tensor));
    PyTuple_SET_ITEM(tuple, place, made.release().ptr());
    a.strides[a.rank - 1] = 1;
    return a;
  }

 private:
  PyArray_Descr* dtype() const { return reinterpret_cast<PyArray_Descr*>(s_.dtype.ptr()); }

  // [1,N,X] is [N,X] for the states between calls.
  static int axes_of(const Tensor& tensor) {
    const int rank = static_cast<int>(tensor.shape.size());
    const bool state = tensor.name == "init_state" || tensor.name == "init_cell" ||
                       tensor.name == "state_gradient" || tensor.name == "cell_gradient";
    return state && rank == 3 && tensor.shape[0] == 1 ? 2 : rank;
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
  Operands operands(s);
  Arrays arrays;
  for (std::size_t i = 0; i < s.inputs.size(); ++i) {
    const Array a = operands.input(s.inputs[i], PyTuple_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i)));
    if (a) arrays.*inputs[s.inputs[i].place].array = a;
  }
  nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(s.results.size())));
  if (!made) throw nb::python_error();
  for (std::size_t i = 0; i < s.results.size(); ++i) {
    const Array a = operands.result(s.results[i], made.ptr(), static_cast<Py_ssize_t>(i));
    if (a) arrays.*results[s.results[i].place].array = a;
  }
  {
    nb::gil_scoped_release released;
    function(s.problem, arrays);
  }
  // A named tuple is a tuple with other names: its own constructor would only count the fields again.
  nb::object arguments = nb::steal(PyTuple_Pack(1, made.ptr()));
  if (!arguments) throw nb::python_error();
  PyObject* result =
      PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(s.result.ptr()), arguments.ptr(), nullptr);
  if (!result) throw nb::python_error();
  return nb::steal(result);
}

void check_problem(const Signature& s) {
  const Problem& p = s.problem;
  if (p.T < 0 || p.N < 0 || p.I < 0 || p.H < 1 || (p.D != 1 && p.D != 2))
    throw std::invalid_argument("Plan: impossible sizes");
  if (!p.has_input_weight && p.I != p.D * p.G * p.H)
    throw std::invalid_argument("Plan: a projected source has I = D*G*H");
  if (!PyArray_DescrCheck(s.dtype.ptr())) throw std::invalid_argument("Plan: dtype is not NumPy's");
  if (!PyType_Check(s.result.ptr()) ||
      !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(s.result.ptr()), &PyTuple_Type))
    throw std::invalid_argument("Plan: the result's type is no tuple");
  for (const auto* list : {&s.inputs, &s.results})
    for (const Tensor& tensor : *list)
      if (!tensor.name.empty() && (tensor.shape.empty() || tensor.shape.size() > 3) && tensor.name != "mask")
        throw std::invalid_argument("Plan: " + tensor.name + " has a shape that no array here has");
}

}  // namespace

Plan::Plan(Signature signature) : s_(std::move(signature)) {
  mark(Path::first_call);
  if (!s_.starts.empty()) {
    s_.problem.starts = s_.starts.data();
    s_.problem.step_of = s_.step_of.data();
  }
  check_problem(s_);
  for (Tensor& tensor : s_.inputs)
    if (!tensor.name.empty())
      tensor.place =
          s_.gradient ? place_of(kBackwardInputs, tensor.name) : place_of(kForwardInputs, tensor.name);
  for (Tensor& tensor : s_.results)
    if (!tensor.name.empty())
      tensor.place =
          s_.gradient ? place_of(kBackwardResults, tensor.name) : place_of(kForwardResults, tensor.name);
}

nb::object Plan::run(nb::handle values) const {
  if (!PyTuple_Check(values.ptr()) ||
      PyTuple_GET_SIZE(values.ptr()) != static_cast<Py_ssize_t>(s_.inputs.size()))
    throw std::invalid_argument("Plan: expected a tuple of as many arrays as the signature has");
  const Engine& e = engine();
  if (s_.gradient) return run_on(s_, values, kBackwardInputs, kBackwardResults, e.backward);
  return run_on(s_, values, kForwardInputs, kForwardResults, e.forward);
}

bool Plan::matches(nb::handle values) const {
  if (PyTuple_GET_SIZE(values.ptr()) != static_cast<Py_ssize_t>(s_.inputs.size())) return false;
  for (std::size_t i = 0; i < s_.inputs.size(); ++i) {
    PyObject* value = PyTuple_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i));
    const Tensor& tensor = s_.inputs[i];
    if (tensor.name.empty()) {
      if (value != Py_None) return false;
    } else if (!PyArray_CheckExact(value) ||
               reinterpret_cast<PyObject*>(PyArray_DESCR(as_array(value))) != s_.dtype.ptr() ||
               !has_shape(as_array(value), tensor.shape)) {
      return false;
    }
  }
  return true;
}

// ---- calls that were seen before ----

namespace {

struct Known {
  nb::object operation, descriptor, plan;
};

// Found by the shape of the source, the operation and the descriptor; what is found is then compared in full.
using KnownCalls = std::unordered_multimap<std::size_t, Known>;
constexpr std::size_t kMostKnown = 1024;  // then start anew: a bound, not a policy

KnownCalls& known_calls() {
  static KnownCalls* calls = new KnownCalls;  // never destroyed: the interpreter may be gone by then
  return *calls;
}

// False for what is surely not a known call.
bool hash_call(nb::handle operation, nb::handle values, nb::handle descriptor, std::size_t& hash) {
  if (!PyTuple_CheckExact(values.ptr()) || PyTuple_GET_SIZE(values.ptr()) == 0) return false;
  PyObject* source = PyTuple_GET_ITEM(values.ptr(), 0);
  if (!PyArray_CheckExact(source)) return false;
  hash = reinterpret_cast<std::size_t>(operation.ptr());
  const auto mix = [&](std::size_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15u; };
  mix(reinterpret_cast<std::size_t>(descriptor.ptr()));
  for (int axis = 0; axis < PyArray_NDIM(as_array(source)); ++axis)
    mix(static_cast<std::size_t>(PyArray_DIM(as_array(source), axis)));
  return true;
}

const Known* find_known(nb::handle operation, nb::handle values, nb::handle descriptor, std::size_t hash) {
  const auto range = known_calls().equal_range(hash);
  for (auto it = range.first; it != range.second; ++it)
    if (it->second.operation.is(operation) && it->second.descriptor.is(descriptor) &&
        nb::inst_ptr<Plan>(it->second.plan)->matches(values))
      return &it->second;
  return nullptr;
}

}  // namespace

nb::object repeat(nb::handle operation, nb::handle values, nb::handle descriptor) {
  std::size_t hash;
  if (!hash_call(operation, values, descriptor, hash)) return nb::none();
  const Known* known = find_known(operation, values, descriptor, hash);
  if (!known) return nb::none();
  mark(Path::known_call);
  const nb::object plan = known->plan;  // held: another thread may forget it while this one computes
  return nb::inst_ptr<Plan>(plan)->run(values);
}

void remember(nb::handle operation, nb::handle values, nb::handle descriptor, nb::object plan) {
  std::size_t hash;
  if (!nb::isinstance<Plan>(plan) || !hash_call(operation, values, descriptor, hash)) return;
  if (!nb::inst_ptr<Plan>(plan)->matches(values) || find_known(operation, values, descriptor, hash)) return;
  if (known_calls().size() >= kMostKnown) {
    KnownCalls forgotten;  // taken out first: what ends with them may run Python, which may call again
    forgotten.swap(known_calls());
  }
  known_calls().emplace(hash, Known{nb::borrow(operation), nb::borrow(descriptor), std::move(plan)});
}

// ---- matrix products ----

namespace {

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
  nb::gil_scoped_release released;
  e.product(p);
  return made;
}

}  // namespace zstate
