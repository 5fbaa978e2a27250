// The Python module `zstate._native`.
//
// Plan(*, cell, dtype, T, N, I, H, D, reverse, gate_slots, activations, reset_after, flip_z,
// has_input_weight)
//   cell              "rnn", "lstm" or "gru"
//   dtype             "float32", "float64", "float16" or "bfloat16"; 16-bit arrays come as uint16 views
//   D                 1 or 2 directions; reverse counts only with D == 1
//   gate_slots        position of canonical gate k along the G axis (LSTM i,f,z,o; GRU z,r,o; RNN (0,)); GRU:
//   o must be last activations       RNN (act,), LSTM (i, f, z, o, cell), GRU (z, r, o), as numbers 0..4
//   has_input_weight  False: source is [T,N,D·G·H], already projected
//
// plan.forward(source, R, W, b, h0, c0, mask, peephole, b2, h_out, c_out, z_out) -> None
// plan.backward(source, R, dY, z, c_fwd, h_fwd, dS, dC, W, b, h0, c0, mask, peephole, b2,
//               dx, dR, dW, db, dp, dh0, dc0, db2) -> None
//   Positional only. None: an optional input that is missing, or an output that is not wanted. Outputs are
//   C-contiguous and overwritten. Input arrays: any strides (negative and zero too) but for the last axis,
//   which is contiguous.
//     source [T,N,I]           R [G·H,H] or [2,G·H,H]    W [D·G·H,I]            b [D·G·H]     b2 [D·H]
//     h0, c0, dS [N,D·H] or [1,N,D·H]                    peephole [4H], [8H] or [2,4H]
//     mask: broadcast to [T,N,D·H]; its last axis may also have stride 0
//     h, c, dY, c_fwd, h_fwd [T,N,D·H]                   z [T,N,D·G·H]
//     dC [N,D·H] or [1,N,D·H] (added at the last processed step), or [T,N,D·H] (at every step)
//   z is the pre-activation (RNN) or the activated gates (LSTM, GRU). c_fwd is for the LSTM, h_fwd for the
//   GRU; the others recompute h from z and c. b itself is not read by backward; it may be None whether or not
//   db is wanted. Shapes that do not fit raise ValueError before anything is written. The GIL is released
//   while computing.
//
// isa() -> str, use_isa(name), supported_isas() -> list[str], get_num_threads() -> int, set_num_threads(n),
// activation(kind, dtype, array, out): one activation on contiguous arrays, for accuracy tests.
// The environment variable ZSTATE_ISA (v2, avx2, avx512, avx512bf16, or generic off x86-64) forces an engine;
// a value that this machine cannot run raises RuntimeError at the first use.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine.h"
#include "threads.h"

namespace nb = nanobind;

namespace zstate {
namespace {

using i64 = std::int64_t;

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const Engine* const* e = kEngines; *e; ++e)
    if ((*e)->supported()) names.push_back((*e)->name);
  return names;
}

// The engine of that name, or the best one for an empty name.
const Engine* find_engine(const std::string& name, const char* asked_by) {
  const Engine* best = nullptr;
  for (const Engine* const* e = kEngines; *e; ++e)
    if ((*e)->supported() && (name.empty() || name == (*e)->name)) best = *e;
  if (best) return best;
  std::string known;
  for (const std::string& isa : supported_isas()) known += " " + isa;
  throw std::runtime_error(asked_by + name + ": this machine and build support" + known);
}

std::atomic<const Engine*> g_engine{nullptr};

const Engine& engine() {
  const Engine* chosen = g_engine.load(std::memory_order_acquire);
  if (!chosen) {
    const char* forced = std::getenv("ZSTATE_ISA");
    chosen = find_engine(forced ? forced : "", "ZSTATE_ISA=");
    g_engine.store(chosen, std::memory_order_release);
  }
  return *chosen;
}
// For tests: the engine that calls from now on use.
void use_isa(const std::string& name) {
  g_engine.store(find_engine(name, "use_isa: "), std::memory_order_release);
}

int item_size(Type type) { return type == Type::kFloat64 ? 8 : type == Type::kFloat32 ? 4 : 2; }

// The buffers of one call, released together.
class Buffers {
 public:
  explicit Buffers(int item) : item_(item) {}
  ~Buffers() {
    for (int i = 0; i < count_; ++i) PyBuffer_Release(&views_[i]);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // A missing array stays empty. `shapes`: those that are allowed.
  Array input(const char* name, nb::handle h, std::initializer_list<std::initializer_list<i64>> shapes) {
    return h.is_none() ? Array{} : describe(name, view(name, h, PyBUF_STRIDES), shapes, false);
  }
  Array mask(nb::handle h, std::initializer_list<i64> shape) {
    return h.is_none() ? Array{} : describe("mask", view("mask", h, PyBUF_STRIDES), {shape}, true);
  }
  Array required(const char* name, nb::handle h, std::initializer_list<std::initializer_list<i64>> shapes) {
    if (h.is_none()) throw std::invalid_argument(std::string(name) + " is required");
    return input(name, h, shapes);
  }
  Array output(const char* name, nb::handle h, std::initializer_list<std::initializer_list<i64>> shapes) {
    if (h.is_none()) return {};
    return describe(name, view(name, h, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE), shapes, false);
  }

 private:
  static constexpr int kMost = 24;

  const Py_buffer& view(const char* name, nb::handle h, int flags) {
    if (count_ == kMost || PyObject_GetBuffer(h.ptr(), &views_[count_], flags) != 0) {
      PyErr_Clear();
      throw std::invalid_argument(std::string(name) +
                                  ": not an array with the strides and access this call needs");
    }
    return views_[count_++];
  }

  static bool fits(const Py_buffer& v, std::initializer_list<i64> shape) {
    if (v.ndim != static_cast<int>(shape.size())) return false;
    int axis = 0;
    for (const i64 n : shape)
      if (v.shape[axis++] != n) return false;
    return true;
  }

  Array describe(const char* name, const Py_buffer& v,
                 std::initializer_list<std::initializer_list<i64>> shapes, bool broadcast) {
    bool known = false;
    for (const auto& shape : shapes) known = known || fits(v, shape);
    if (!known) throw std::invalid_argument(std::string(name) + ": unexpected shape");
    if (v.itemsize != item_) throw std::invalid_argument(std::string(name) + ": wrong element size");
    Array a;
    static char empty;
    a.data = v.buf ? v.buf : &empty;
    a.rank = v.ndim;
    for (int axis = 0; axis < v.ndim; ++axis) {
      if (v.strides[axis] % item_ != 0)
        throw std::invalid_argument(std::string(name) + ": misaligned strides");
      a.strides[axis] = v.strides[axis] / item_;
    }
    i64& last = a.strides[v.ndim - 1];
    if (v.shape[v.ndim - 1] <= 1 || v.len == 0) last = 1;  // strides that nobody walks
    if (last != 1 && !(broadcast && last == 0))
      throw std::invalid_argument(std::string(name) + ": the last axis must be contiguous");
    return a;
  }

  int item_;
  int count_ = 0;
  Py_buffer views_[kMost];
};

// [1,N,X] is [N,X].
Array without_first_axis(Array a) {
  if (a.rank != 3) return a;
  return {a.data, {a.strides[1], a.strides[2], 0}, 2};
}

Cell cell_named(const std::string& name) {
  if (name == "rnn") return Cell::kRnn;
  if (name == "lstm") return Cell::kLstm;
  if (name == "gru") return Cell::kGru;
  throw std::invalid_argument("cell: expected rnn, lstm or gru, got " + name);
}
Type type_named(const std::string& name) {
  if (name == "float32") return Type::kFloat32;
  if (name == "float64") return Type::kFloat64;
  if (name == "float16") return Type::kFloat16;
  if (name == "bfloat16") return Type::kBfloat16;
  throw std::invalid_argument("dtype: expected float32, float64, float16 or bfloat16, got " + name);
}

class Plan {
 public:
  Plan(const std::string& cell, const std::string& dtype, i64 T, i64 N, i64 I, i64 H, i64 D, bool reverse,
       const std::vector<int>& gate_slots, const std::vector<int>& activations, bool reset_after, bool flip_z,
       bool has_input_weight) {
    p_.cell = cell_named(cell);
    p_.type = type_named(dtype);
    p_.G = p_.cell == Cell::kLstm ? 4 : p_.cell == Cell::kGru ? 3 : 1;
    if (T < 0 || N < 0 || I < 0 || H < 1 || (D != 1 && D != 2))
      throw std::invalid_argument("Plan: impossible sizes");
    if (!has_input_weight && I != D * p_.G * H)
      throw std::invalid_argument("Plan: a projected source has I = D*G*H");
    p_.T = T, p_.N = N, p_.I = I, p_.H = H, p_.D = D;
    p_.reverse = reverse, p_.reset_after = reset_after, p_.flip_z = flip_z,
    p_.has_input_weight = has_input_weight;
    set_slots(gate_slots);
    set_activations(activations);
  }

  void forward(nb::handle source, nb::handle R, nb::handle W, nb::handle b, nb::handle h0, nb::handle c0,
               nb::handle mask, nb::handle peephole, nb::handle b2, nb::handle h_out, nb::handle c_out,
               nb::handle z_out) const {
    const i64 T = p_.T, N = p_.N, H = p_.H, D = p_.D, GH = p_.G * H, DH = D * H, DGH = D * GH;
    Buffers buffers(item_size(p_.type));
    ForwardArrays a;
    a.source = buffers.required("source", source, {{T, N, p_.I}});
    a.recurrent_weight = recurrent(buffers, R);
    a.input_weight = input_weight(buffers, W);
    a.bias = buffers.input("bias", b, {{DGH}});
    a.init_state = state(buffers, "init_state", h0);
    a.init_cell = state(buffers, "init_cell", c0);
    a.mask = buffers.mask(mask, {T, N, DH});
    a.peephole = buffers.input("peephole", peephole, {{4 * DH}, {D, 4 * H}});
    a.secondary_bias = buffers.input("secondary_bias", b2, {{DH}});
    a.state = buffers.output("h_out", h_out, {{T, N, DH}});
    a.cell = buffers.output("c_out", c_out, {{T, N, DH}});
    a.training_state = buffers.output("z_out", z_out, {{T, N, DGH}});
    if (!a.state) throw std::invalid_argument("h_out is required");
    const Engine& e = engine();
    nb::gil_scoped_release released;
    e.forward(p_, a);
  }

  void backward(nb::handle source, nb::handle R, nb::handle dY, nb::handle z, nb::handle c_fwd,
                nb::handle h_fwd, nb::handle dS, nb::handle dC, nb::handle W, nb::handle b, nb::handle h0,
                nb::handle c0, nb::handle mask, nb::handle peephole, nb::handle b2, nb::handle dx,
                nb::handle dR, nb::handle dW, nb::handle db, nb::handle dp, nb::handle dh0, nb::handle dc0,
                nb::handle db2) const {
    const i64 T = p_.T, N = p_.N, H = p_.H, D = p_.D, GH = p_.G * H, DH = D * H, DGH = D * GH;
    Buffers buffers(item_size(p_.type));
    BackwardArrays a;
    a.source = buffers.required("source", source, {{T, N, p_.I}});
    a.recurrent_weight = recurrent(buffers, R);
    a.source_gradient = buffers.required("source_gradient", dY, {{T, N, DH}});
    a.training_state = buffers.required("z_state", z, {{T, N, DGH}});
    a.cell_fwd = buffers.input("cell_output_fwd", c_fwd, {{T, N, DH}});
    a.state_fwd = buffers.input("output_fwd", h_fwd, {{T, N, DH}});
    if (p_.cell == Cell::kLstm && !a.cell_fwd) throw std::invalid_argument("cell_output_fwd is required");
    if (p_.cell == Cell::kGru && !a.state_fwd) throw std::invalid_argument("output_fwd is required");
    a.state_gradient = state(buffers, "state_gradient", dS);
    a.cell_gradient = buffers.input("cell_gradient", dC, {{N, DH}, {1, N, DH}, {T, N, DH}});
    if (!dC.is_none() && a.cell_gradient.rank == 3 && nb::len(dC) == 1)
      a.cell_gradient = without_first_axis(a.cell_gradient);
    a.input_weight = input_weight(buffers, W);
    a.bias = buffers.input("bias", b, {{DGH}});
    a.init_state = state(buffers, "init_state", h0);
    a.init_cell = state(buffers, "init_cell", c0);
    a.mask = buffers.mask(mask, {T, N, DH});
    a.peephole = buffers.input("peephole", peephole, {{4 * DH}, {D, 4 * H}});
    a.secondary_bias = buffers.input("secondary_bias", b2, {{DH}});
    a.d_source = buffers.output("dx", dx, {{T, N, p_.I}});
    a.d_recurrent = buffers.output("dR", dR, {{GH * D, H}, {D, GH, H}});
    a.d_input = buffers.output("dW", dW, {{DGH, p_.I}});
    a.d_bias = buffers.output("db", db, {{DGH}});
    a.d_peephole = buffers.output("dp", dp, {{4 * DH}, {D, 4 * H}});
    a.d_state = without_first_axis(buffers.output("dh0", dh0, {{N, DH}, {1, N, DH}}));
    a.d_cell = without_first_axis(buffers.output("dc0", dc0, {{N, DH}, {1, N, DH}}));
    a.d_secondary = buffers.output("db2", db2, {{DH}});
    if (!a.d_source || !a.d_recurrent) throw std::invalid_argument("dx and dR are required");
    if (!p_.has_input_weight && a.d_input) throw std::invalid_argument("dW: there is no input weight");
    if (p_.cell != Cell::kLstm && (a.d_cell || a.d_peephole))
      throw std::invalid_argument("dc0 and dp belong to the LSTM");
    if (a.d_secondary && !(p_.cell == Cell::kGru && p_.reset_after))
      throw std::invalid_argument("db2 belongs to the GRU that resets after the product");
    const Engine& e = engine();
    nb::gil_scoped_release released;
    e.backward(p_, a);
  }

 private:
  void set_slots(const std::vector<int>& slots) {
    const std::size_t G = static_cast<std::size_t>(p_.G);
    bool seen[4] = {};
    if (slots.size() != G) throw std::invalid_argument("gate_slots: one for each gate");
    for (std::size_t k = 0; k < G; ++k) {
      if (slots[k] < 0 || slots[k] >= p_.G || seen[slots[k]])
        throw std::invalid_argument("gate_slots: not a permutation");
      seen[slots[k]] = true;
      p_.slots[k] = slots[k];
    }
    if (p_.cell == Cell::kGru && p_.slots[2] != 2)
      throw std::invalid_argument("gate_slots: the GRU's output gate is last");
  }
  void set_activations(const std::vector<int>& activations) {
    const std::size_t expected = p_.cell == Cell::kLstm ? 5 : static_cast<std::size_t>(p_.G);
    if (activations.size() != expected) throw std::invalid_argument("activations: wrong number");
    for (std::size_t k = 0; k < expected; ++k) {
      if (activations[k] < 0 || activations[k] > 4)
        throw std::invalid_argument("activations: expected 0 to 4");
      p_.activations[k] = activations[k];
    }
  }

  Array recurrent(Buffers& buffers, nb::handle R) const {
    const i64 GH = p_.G * p_.H;
    if (p_.D == 1) return buffers.required("recurrent_weight", R, {{GH, p_.H}, {1, GH, p_.H}});
    return buffers.required("recurrent_weight", R, {{p_.D, GH, p_.H}});
  }
  Array input_weight(Buffers& buffers, nb::handle W) const {
    if (W.is_none() == p_.has_input_weight)
      throw std::invalid_argument("input_weight: the plan says otherwise");
    return buffers.input("input_weight", W, {{p_.D * p_.G * p_.H, p_.I}});
  }
  Array state(Buffers& buffers, const char* name, nb::handle h) const {
    const i64 DH = p_.D * p_.H;
    return without_first_axis(buffers.input(name, h, {{p_.N, DH}, {1, p_.N, DH}}));
  }

  Problem p_;
};

void apply_activation(int kind, const std::string& dtype, nb::handle array, nb::handle out) {
  const Type type = type_named(dtype);
  if (kind < 0 || kind > 4) throw std::invalid_argument("kind: expected 0 to 4");
  const i64 count = static_cast<i64>(nb::len(array));
  Buffers buffers(item_size(type));
  const Array in = buffers.required("array", array, {{count}});
  const Array to = buffers.output("out", out, {{count}});
  if (!to) throw std::invalid_argument("out is required");
  engine().activation(type, kind, in.data, to.data, count);
}

}  // namespace
}  // namespace zstate

NB_MODULE(_native, m) {
  using zstate::Plan;
  // Plans live in a cache until the process ends: that is not a leak to tell a user of.
  nb::set_leak_warnings(false);
  m.doc() = "The native CPU engine: whole recurrent operations in C++.";
  nb::class_<Plan>(m, "Plan")
      .def(nb::init<const std::string&, const std::string&, std::int64_t, std::int64_t, std::int64_t,
                    std::int64_t, std::int64_t, bool, const std::vector<int>&, const std::vector<int>&, bool,
                    bool, bool>(),
           nb::kw_only(), nb::arg("cell"), nb::arg("dtype"), nb::arg("T"), nb::arg("N"), nb::arg("I"),
           nb::arg("H"), nb::arg("D"), nb::arg("reverse"), nb::arg("gate_slots"), nb::arg("activations"),
           nb::arg("reset_after"), nb::arg("flip_z"), nb::arg("has_input_weight"))
      .def("forward", &Plan::forward, nb::arg("source").none(), nb::arg("R").none(), nb::arg("W").none(),
           nb::arg("b").none(), nb::arg("h0").none(), nb::arg("c0").none(), nb::arg("mask").none(),
           nb::arg("peephole").none(), nb::arg("b2").none(), nb::arg("h_out").none(), nb::arg("c_out").none(),
           nb::arg("z_out").none())
      .def("backward", &Plan::backward, nb::arg("source").none(), nb::arg("R").none(), nb::arg("dY").none(),
           nb::arg("z").none(), nb::arg("c_fwd").none(), nb::arg("h_fwd").none(), nb::arg("dS").none(),
           nb::arg("dC").none(), nb::arg("W").none(), nb::arg("b").none(), nb::arg("h0").none(),
           nb::arg("c0").none(), nb::arg("mask").none(), nb::arg("peephole").none(), nb::arg("b2").none(),
           nb::arg("dx").none(), nb::arg("dR").none(), nb::arg("dW").none(), nb::arg("db").none(),
           nb::arg("dp").none(), nb::arg("dh0").none(), nb::arg("dc0").none(), nb::arg("db2").none());
  m.attr("interface") = 1;  // grows with every change that backends/native.py must know of
  m.def("isa", [] { return std::string(zstate::engine().name); });
  m.def("supported_isas", &zstate::supported_isas);
  m.def("use_isa", &zstate::use_isa);
  m.def("set_num_threads", [](int n) {
    if (n < 1) throw std::invalid_argument("set_num_threads: expected a positive number");
    zstate::set_num_threads(n);
  });
  m.def("get_num_threads", &zstate::get_num_threads);
  m.def("activation", &zstate::apply_activation);
}
