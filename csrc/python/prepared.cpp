// Prepared layers: what runs them, and what keeps the states of a stream.
#include "python/prepared.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python/gil.h"
#include "python/numpy.h"
#include "python/plan.h"
#include "python/results.h"
#include "python/tuples.h"
#include "runtime/blocks.h"
#include "runtime/cell_tables.h"
#include "runtime/engines.h"
#include "runtime/named_arrays.h"
#include "runtime/paths.h"
#include "runtime/problem.h"
#include "runtime/sizes.h"
#include "runtime/team_choice.h"
#include "runtime/threads.h"

namespace zstate {
namespace {

using i64 = std::int64_t;

struct GiveBlock {
  void operator()(char* block) const { give_block(block); }
};
using Block = std::unique_ptr<char, GiveBlock>;
struct EndCall {
  void operator()(Call* call) const { call->end(call); }
};
using ReadyCall = std::unique_ptr<Call, EndCall>;

Weights weights_named(const std::string& name) {
  if (name == "float32") return Weights::kFloat32;
  if (name == "bfloat16") return Weights::kBfloat16;
  if (name == "int8") return Weights::kInt8;
  throw std::invalid_argument("Stack: no weights are called " + name);
}

// Contiguous rows of floats.
Array rows_at(float* data, i64 rows_per_step, i64 width, int rank) {
  Array a;
  a.data = data;
  a.rank = rank;
  a.strides[rank - 1] = 1;
  a.strides[rank - 2] = width;
  if (rank == 3) a.strides[0] = rows_per_step * width;
  return a;
}

bool has_axes(PyObject* value, std::initializer_list<i64> shape, nb::handle dtype) {
  if (!PyArray_Check(value)) return false;
  PyArrayObject* array = as_array(value);
  if (reinterpret_cast<PyObject*>(PyArray_DESCR(array)) != dtype.ptr()) return false;
  if (PyArray_NDIM(array) != static_cast<int>(shape.size())) return false;
  int axis = 0;
  for (const i64 size : shape)
    if (PyArray_DIM(array, axis++) != size) return false;
  return true;
}
// The same, of plain rows one after the other.
bool is_plain(PyObject* value, std::initializer_list<i64> shape, nb::handle dtype) {
  return has_axes(value, shape, dtype) && PyArray_IS_C_CONTIGUOUS(as_array(value)) &&
         PyArray_ISALIGNED(as_array(value));
}

using LayerParts =
    std::tuple<std::vector<i64>, std::vector<double>, i64, i64, i64, bool, bool, std::vector<bool>, nb::dict>;

// One layer: its problem without T and N, its arrays without those of a call.
struct Layer {
  std::unique_ptr<CellTables> tables;
  Problem problem;
  ForwardArrays arrays;
  std::vector<nb::object> held;  // what the arrays point into
  std::vector<bool> results;     // the states that are given at every step
  Block packed;

  i64 width() const { return problem.D * problem.H; }
  int states() const { return problem.cell->states; }
};

// Where a call's values are stored. A missing value has no data.
struct CallPlaces {
  Array source;
  std::vector<Array> initial, last, mask;  // of every state of every layer; of every layer
};

// How many rows there are, and how they are spread over the steps.
struct Extent {
  i64 T = 1, N = 1;
  std::vector<i64> starts, step_of;  // sequences of different lengths
  i64 rows() const { return starts.empty() ? size_product(T, N) : starts.back(); }
};

constexpr double kWorthReleasing = 2e5;  // multiplications: some microseconds

void run_calls(void* context, const Team& team) {
  for (const ReadyCall& call : *static_cast<std::vector<ReadyCall>*>(context)) {
    if (team.stopped()) return;
    call->run(call.get(), team);
  }
}

class Stack {
 public:
  Stack(const std::string& weights, nb::object dtype, const std::vector<LayerParts>& layers,
        std::vector<nb::object> kinds, bool single)
      : engine_(engine()),
        weights_(weights_named(weights)),
        dtype_(std::move(dtype)),
        kinds_(std::move(kinds)),
        single_(single) {
    if (layers.empty()) throw std::invalid_argument("Stack: no layers");
    if (kinds_.size() != layers.size() || (single_ && layers.size() != 1))
      throw std::invalid_argument("Stack: kinds of other layers");
    for (const nb::object& kind : kinds_)
      if (!PyType_Check(kind.ptr()) ||
          !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(kind.ptr()), &PyTuple_Type))
        throw std::invalid_argument("Stack: a kind that is no tuple");
    if (!PyArray_DescrCheck(dtype_.ptr())) throw std::invalid_argument("Stack: dtype is not NumPy's");
    for (const LayerParts& parts : layers) add(parts);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  nb::object run(nb::handle x, nb::handle initial, nb::handle masks, const std::vector<i64>& sizes) const {
    Extent extent;
    const bool packed = !sizes.empty();
    if (packed) {
      set_sizes(extent, sizes);
    } else if (PyArray_Check(x.ptr()) && PyArray_NDIM(as_array(x.ptr())) == 3) {
      extent.T = PyArray_DIM(as_array(x.ptr()), 0);
      extent.N = PyArray_DIM(as_array(x.ptr()), 1);
    }
    if (extent.T < 1 || extent.N < 1) throw std::invalid_argument("Stack: no rows");
    const i64 features = layers_.front().problem.I;
    if (packed ? !is_plain(x.ptr(), {extent.rows(), features}, dtype_)
               : !is_plain(x.ptr(), {extent.T, extent.N, features}, dtype_))
      throw std::invalid_argument("Stack: not such an input");
    CallPlaces places;
    read_states(initial, extent.N, places.initial);
    read_masks(masks, extent, places.mask);
    std::vector<nb::object> last = new_states(extent.N, places.last);
    nb::object output = answer(extent, places, x);
    return nb::make_tuple(output, listed(last));
  }

  nb::object call(nb::handle x, nb::handle states) const {
    if (!PyArray_Check(x.ptr()) || PyArray_NDIM(as_array(x.ptr())) != 3) return nb::none();
    Extent extent;
    extent.T = PyArray_DIM(as_array(x.ptr()), 0), extent.N = PyArray_DIM(as_array(x.ptr()), 1);
    if (extent.T < 1 || extent.N < 1) return nb::none();
    if (!is_plain(x.ptr(), {extent.T, extent.N, layers_.front().problem.I}, dtype_)) return nb::none();
    CallPlaces places;
    if (!take_states(states, extent.N, places.initial)) return nb::none();
    places.mask.resize(layers_.size());
    std::vector<nb::object> last = new_states(extent.N, places.last);
    nb::object output = answer(extent, places, x);
    return nb::make_tuple(output, named(last));
  }

  const std::vector<Layer>& layers() const { return layers_; }
  nb::handle dtype() const { return dtype_; }

  // The calls of all layers, from places.source to `output`; `buffers` gets the block between them.
  std::vector<ReadyCall> ready(const Extent& extent, const CallPlaces& places, float* output,
                               Block& buffers) const {
    const i64 rows = extent.rows();
    const int rank = extent.starts.empty() ? 3 : 2;
    i64 total = 0;
    for (int pass = 0; pass < 2; ++pass) {
      float* free = nullptr;
      if (pass == 1) {
        buffers.reset(static_cast<char*>(take_block(static_cast<std::size_t>(std::max<i64>(total, 64)))));
        free = reinterpret_cast<float*>(buffers.get());
      }
      std::vector<ReadyCall> calls;
      Array source = places.source;
      std::size_t state = 0;
      for (std::size_t i = 0; i < layers_.size(); ++i) {
        const Layer& layer = layers_[i];
        ForwardArrays arrays = layer.arrays;
        arrays.source = source;
        arrays.mask = places.mask[i];
        for (int k = 0; k < layer.states(); ++k, ++state) {
          arrays.initial[k] = places.initial[state];
          arrays.last[k] = places.last[state];
          if (!layer.results[static_cast<std::size_t>(k)]) continue;
          const bool given = k == 0 && i + 1 == layers_.size();
          arrays.result[k] = rows_at(given ? output : free, extent.N, layer.width(), rank);
          if (given) continue;
          const i64 size = (size_product(rows, layer.width(), sizeof(float)) + 127) / 128 * 128;
          if (pass == 0) total = size_sum(total, size);
          if (pass == 1) free += size / static_cast<i64>(sizeof(float));
        }
        source = arrays.result[0];
        if (pass == 0) continue;
        Problem p = layer.problem;
        p.T = extent.T, p.N = extent.N;
        if (!extent.starts.empty()) p.starts = extent.starts.data(), p.step_of = extent.step_of.data();
        check(p);
        calls.emplace_back(engine_.ready(p, arrays, weights_, layer.packed.get(), get_num_threads()));
      }
      if (pass == 1) return calls;
    }
    return {};
  }

  // `stops`: whether a long job may be interrupted. Others may take the lock of the interpreter meanwhile,
  // unless it would take longer to give it away.
  static void run_ready(std::vector<ReadyCall>& calls, bool stops) {
    double work = 0, shared = 0;
    int most = 1 << 20;
    for (const ReadyCall& call : calls) {
      work += call->work, shared += call->shared;
      most = std::min(most, call->threads);
    }
    std::optional<WithoutGil> released;
    if (work > kWorthReleasing) released.emplace();
    const TeamChoice choice(work, shared);
    run_team(std::min(choice.threads(), most), run_calls, &calls, stops ? work : 0);
  }

  // The last states as plain tuples of arrays, or by their names.
  nb::list listed(const std::vector<nb::object>& states) const {
    nb::list all;
    auto state = states.begin();
    for (const Layer& layer : layers_) {
      nb::list own;
      for (int k = 0; k < layer.states(); ++k) own.append(*state++);
      all.append(own);
    }
    return all;
  }
  nb::object named(const std::vector<nb::object>& states) const {
    nb::list all;
    auto state = states.begin();
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      nb::object own = nb::steal(PyTuple_New(layers_[i].states()));
      for (int k = 0; k < layers_[i].states(); ++k)
        set_tuple_item(own.ptr(), k, nb::object(*state++).release().ptr());
      nb::object made =
          nb::steal(new_tuple(reinterpret_cast<PyTypeObject*>(kinds_[i].ptr()), nb::make_tuple(own).ptr()));
      if (!made) throw nb::python_error();
      if (single_) return made;
      all.append(made);
    }
    return all;
  }

  // States as a caller gives them: None, or a tuple for each layer. False where it takes more to read them.
  bool take_states(nb::handle given, i64 N, std::vector<Array>& to) const {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto count = static_cast<Py_ssize_t>(layers_[i].states());
      PyObject* own = given.ptr();
      if (own == Py_None) {
        to.resize(to.size() + static_cast<std::size_t>(count));
        continue;
      }
      if (!single_) {
        if (!PyList_Check(own) || PyList_Size(own) != static_cast<Py_ssize_t>(layers_.size())) return false;
        own = PyList_GetItem(own, static_cast<Py_ssize_t>(i));
      }
      if (!PyTuple_Check(own) || tuple_size(own) != count) return false;
      for (Py_ssize_t k = 0; k < count; ++k) {
        PyObject* state = tuple_item(own, k);
        if (!is_plain(state, {N, layers_[i].width()}, dtype_)) return false;
        to.push_back(rows_at(static_cast<float*>(PyArray_DATA(as_array(state))), 0, layers_[i].width(), 2));
      }
    }
    return true;
  }

  void read_states(nb::handle given, i64 N, std::vector<Array>& to) const {
    nb::list layers = nb::cast<nb::list>(given);
    if (layers.size() != layers_.size()) throw std::invalid_argument("Stack: states of other layers");
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      nb::list states = nb::cast<nb::list>(layers[i]);
      if (static_cast<int>(states.size()) != layers_[i].states())
        throw std::invalid_argument("Stack: another number of states");
      for (const nb::handle state : states) {
        if (state.is_none()) {
          to.emplace_back();
          continue;
        }
        if (!is_plain(state.ptr(), {N, layers_[i].width()}, dtype_))
          throw std::invalid_argument("Stack: not such a state");
        to.push_back(
            rows_at(static_cast<float*>(PyArray_DATA(as_array(state.ptr()))), 0, layers_[i].width(), 2));
      }
    }
  }

  void read_masks(nb::handle given, const Extent& extent, std::vector<Array>& to) const {
    nb::list masks = nb::cast<nb::list>(given);
    if (masks.size() != layers_.size()) throw std::invalid_argument("Stack: masks of other layers");
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      PyObject* mask = nb::handle(masks[i]).ptr();
      if (mask == Py_None) {
        to.emplace_back();
        continue;
      }
      if (!has_axes(mask, {extent.T, extent.N, layers_[i].width()}, dtype_))
        throw std::invalid_argument("Stack: not such a mask");
      const npy_intp last = PyArray_STRIDE(as_array(mask), 2);
      if (last != 0 && last != static_cast<npy_intp>(sizeof(float)))
        throw std::invalid_argument("Stack: a mask's last axis is contiguous or repeats");
      to.push_back(walk(as_array(mask), 3));
    }
  }

  // New arrays for the states of N rows, and where they lie.
  std::vector<nb::object> new_states(i64 N, std::vector<Array>& to) const {
    std::vector<nb::object> made;
    for (const Layer& layer : layers_)
      for (int k = 0; k < layer.states(); ++k) {
        const i64 shape[] = {N, layer.width()};
        made.push_back(new_array(2, shape, dtype_));
        to.push_back(
            rows_at(static_cast<float*>(PyArray_DATA(as_array(made.back().ptr()))), 0, layer.width(), 2));
      }
    return made;
  }

 private:
  // The output of a call on x, whose other values have their places.
  nb::object answer(const Extent& extent, CallPlaces& places, nb::handle x) const {
    const bool packed = !extent.starts.empty();
    const i64 width = layers_.back().width();
    places.source = rows_at(static_cast<float*>(PyArray_DATA(as_array(x.ptr()))), extent.N,
                            layers_.front().problem.I, packed ? 2 : 3);
    const i64 shape[] = {packed ? extent.rows() : extent.T, packed ? width : extent.N, width};
    nb::object output = new_array(packed ? 2 : 3, shape, dtype_);
    Block buffers;
    std::vector<ReadyCall> calls =
        ready(extent, places, static_cast<float*>(PyArray_DATA(as_array(output.ptr()))), buffers);
    run_ready(calls, true);
    return output;
  }

  void add(const LayerParts& parts) {
    const auto& [cell, numbers, I, H, D, reverse, has_input_weight, results, arrays] = parts;
    Layer layer;
    layer.tables = std::make_unique<CellTables>(cell.data(), cell.size(), numbers.data(), numbers.size());
    if (layer.tables->gradient()) throw std::invalid_argument("Stack: the tables of another operation");
    Problem& p = layer.problem;
    p.cell = &layer.tables->program();
    p.G = p.cell->gates;
    p.T = p.N = 1, p.I = I, p.H = H, p.D = D;
    p.reverse = reverse, p.has_input_weight = has_input_weight, p.packed = true;
    check(p);
    if (static_cast<int>(results.size()) != p.cell->states || !results[0])
      throw std::invalid_argument("Stack: results that the cell has not");
    for (int k = 0; k < p.cell->states; ++k)
      if (!results[static_cast<std::size_t>(k)] && !p.cell->keeps[k])
        throw std::invalid_argument("Stack: a state that is neither given nor kept");
    if (!layers_.empty() && layers_.back().width() != I)
      throw std::invalid_argument("Stack: a layer that the one before it does not feed");
    layer.results = results;
    for (const auto& [name, value] : arrays) add_array(layer, nb::cast<std::string>(name), value);
    check_weights(layer);
    layer.packed.reset(engine_.pack(p, layer.arrays, weights_));
    layer.arrays.recurrent_weight = layer.arrays.input_weight = {};
    layers_.push_back(std::move(layer));
  }

  void add_array(Layer& layer, const std::string& name, nb::handle value) {
    if (!PyArray_Check(value.ptr()) || !PyArray_IS_C_CONTIGUOUS(as_array(value.ptr())) ||
        !PyArray_ISALIGNED(as_array(value.ptr())))
      throw std::invalid_argument("Stack: " + name + " is no plain array");
    PyArrayObject* array = as_array(value.ptr());
    const Array a = walk_contiguous(array);
    const bool weight = name == "recurrent_weight" || name == "input_weight";
    const bool integers = weight && weights_ == Weights::kInt8;
    if (PyArray_ITEMSIZE(array) != (integers ? 1 : 4))
      throw std::invalid_argument("Stack: " + name + " has another type");
    if (name == "recurrent_scale") {
      layer.arrays.recurrent_scale = a;
    } else if (name == "input_scale") {
      layer.arrays.input_scale = a;
    } else {
      const int place = place_of(kForwardInputs, name);
      if (place < 0) throw std::invalid_argument("Stack: no array is called " + name);
      array_at(layer.arrays, kForwardInputs, place) = a;
    }
    sizes_of_[name] = PyArray_SIZE(array);
    if (!weight) layer.held.push_back(nb::borrow(value));
  }

  // The engine trusts these sizes.
  void check_weights(const Layer& layer) {
    const Problem& p = layer.problem;
    const i64 rows = p.D * p.G * p.H;
    const auto wants = [&](const char* name, bool needed, i64 size) {
      const auto found = sizes_of_.find(name);
      if (found == sizes_of_.end() ? needed : found->second != size)
        throw std::invalid_argument(std::string("Stack: not such an array: ") + name);
    };
    const bool int8 = weights_ == Weights::kInt8;
    wants("recurrent_weight", true, rows * p.H);
    wants("recurrent_scale", int8, rows);
    wants("input_weight", p.has_input_weight, rows * p.I);
    wants("input_scale", int8 && p.has_input_weight, rows);
    wants("bias", false, rows);
    for (int k = 0; k < p.cell->own_arrays; ++k) {
      bool by_gate = false;
      for (int i = 0; i < p.cell->own; ++i) by_gate |= p.cell->own_array[i] == k && p.cell->own_gate[i] >= 0;
      bool used = false;
      for (int i = 0; i < p.cell->own; ++i) used |= p.cell->own_array[i] == k;
      wants(("own." + std::to_string(k)).c_str(), used, by_gate ? rows : p.D * p.H);
    }
    sizes_of_.clear();
  }

  static Array walk_contiguous(PyArrayObject* array) {
    Array a = walk(array, PyArray_NDIM(array));
    i64 stride = 1;  // also along axes of one element
    for (int axis = a.rank - 1; axis >= 0; --axis) {
      a.strides[axis] = stride;
      stride *= PyArray_DIM(array, axis);
    }
    return a;
  }

  static void set_sizes(Extent& extent, const std::vector<i64>& sizes) {
    extent.T = static_cast<i64>(sizes.size()), extent.N = sizes[0];
    extent.starts.assign(1, 0);
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      if (sizes[t] < 1 || sizes[t] > sizes[t > 0 ? t - 1 : 0])
        throw std::invalid_argument("batch_sizes: expected falling positive numbers");
      extent.starts.push_back(extent.starts.back() + sizes[t]);
      extent.step_of.insert(extent.step_of.end(), static_cast<std::size_t>(sizes[t]), static_cast<i64>(t));
    }
  }

  const Engine& engine_;  // which packed the weights
  Weights weights_;
  nb::object dtype_;
  std::vector<nb::object> kinds_;
  bool single_;
  std::vector<Layer> layers_;
  std::unordered_map<std::string, i64> sizes_of_;  // while a layer is added
};

// Rejects a second thread, because the states belong to one step at a time.
class Alone {
 public:
  explicit Alone(std::atomic<bool>& busy) : busy_(busy) {
    if (busy_.exchange(true)) throw std::runtime_error("a stream runs in one thread at a time");
  }
  ~Alone() { busy_.store(false); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  std::atomic<bool>& busy_;
};

class Stream {
 public:
  Stream(nb::object stack, i64 batch, nb::handle initial, nb::list masks)
      : owner_(std::move(stack)), stack_(nb::cast<const Stack&>(owner_)), masks_(std::move(masks)) {
    if (batch < 1) throw std::invalid_argument("Stream: no rows");
    extent_.N = batch;
    const std::vector<Layer>& layers = stack_.layers();
    features_ = layers.front().problem.I, width_ = layers.back().width();
    input_.resize(static_cast<std::size_t>(size_product(batch, features_)));
    output_.resize(static_cast<std::size_t>(size_product(batch, width_)));
    for (const Layer& layer : layers)
      for (int k = 0; k < layer.states(); ++k) {
        values_.emplace_back(static_cast<std::size_t>(size_product(batch, layer.width())));
        places_.initial.push_back(rows_at(values_.back().data(), 0, layer.width(), 2));
      }
    places_.last = places_.initial;
    places_.source = rows_at(input_.data(), batch, features_, 3);
    stack_.read_masks(masks_, extent_, places_.mask);
    set_states(initial);
    calls_ = stack_.ready(extent_, places_, output_.data(), buffers_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  nb::object step(nb::handle x) {
    if (!is_plain(x.ptr(), {extent_.N, features_}, stack_.dtype())) return nb::none();
    const Alone alone(busy_);
    std::memcpy(input_.data(), PyArray_DATA(as_array(x.ptr())), input_.size() * sizeof(float));
    Stack::run_ready(calls_, false);
    const i64 shape[] = {extent_.N, width_};
    nb::object made = new_array(2, shape, stack_.dtype());
    std::memcpy(PyArray_DATA(as_array(made.ptr())), output_.data(), output_.size() * sizeof(float));
    return made;
  }

  nb::object run(nb::handle x, nb::handle masks) {
    const Alone alone(busy_);
    nb::object found = stack_.run(x, states(), masks, {});
    set_states(found[1]);
    return found[0];
  }

  nb::list states() const {
    std::vector<Array> copies;
    const std::vector<nb::object> made = stack_.new_states(extent_.N, copies);
    for (std::size_t i = 0; i < values_.size(); ++i)
      std::memcpy(copies[i].data, values_[i].data(), values_[i].size() * sizeof(float));
    return stack_.listed(made);
  }

  // Nothing changes if one of them does not fit. A state that is not given is zero.
  void set_states(nb::handle given) {
    std::vector<Array> from;
    stack_.read_states(given, extent_.N, from);
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (from[i])
        std::memcpy(values_[i].data(), from[i].data, values_[i].size() * sizeof(float));
      else
        std::fill(values_[i].begin(), values_[i].end(), 0.0f);
    }
  }
  void replace_states(nb::handle given) {
    const Alone alone(busy_);
    set_states(given);
  }
  nb::list copy_states() {
    const Alone alone(busy_);
    return states();
  }

 private:
  nb::object owner_;
  const Stack& stack_;
  nb::list masks_;
  Extent extent_;
  i64 features_ = 0, width_ = 0;
  std::vector<float> input_, output_;
  std::vector<std::vector<float>> values_;  // of every state of every layer
  CallPlaces places_;
  Block buffers_;
  std::vector<ReadyCall> calls_;
  std::atomic<bool> busy_{false};
};

}  // namespace

void bind_prepared(nb::module_& m) {
  nb::class_<Stack>(m, "Stack")
      .def(nb::init<const std::string&, nb::object, const std::vector<LayerParts>&, std::vector<nb::object>,
                    bool>(),
           nb::kw_only(), nb::arg("weights"), nb::arg("dtype"), nb::arg("layers"), nb::arg("kinds"),
           nb::arg("single"))
      .def("run", &Stack::run)
      .def("call", &Stack::call, nb::arg().none(), nb::arg().none());
  nb::class_<Stream>(m, "Stream")
      .def(nb::init<nb::object, i64, nb::handle, nb::list>())
      .def("step", &Stream::step, nb::arg().none())
      .def("run", &Stream::run)
      .def("states", &Stream::copy_states)
      .def("set_states", &Stream::replace_states);
}

}  // namespace zstate
