// The Python module `zstate._native`.
//
// Plan(*, cell, numbers, type, T, N, I, H, D, heads, reverse, has_input_weight, gradient, dtype, inputs,
//      results, result, batch_sizes=[])
//   cell, numbers     the cell's programs: src/zstate/backends/encoding.py, runtime/cell_tables.h
//   type              "float32", "float64", "float16" or "bfloat16"
//   D                 1 or 2 directions; reverse counts only with D == 1
//   heads             of H units each; R is their blocks, one below the other: [heads·G·H,H], [2,heads·G·H,H]
//   has_input_weight  False: source is [T,N,D·G·heads·H], already projected
//   gradient          which of the two operations
//   dtype             NumPy's type of every array
//   inputs            a (name, shape, engine's name: named_arrays.h) for each input of the operation
//                     in its order, None for one not given
//   results           the same for each field of `result`, None for one that is not wanted
//   result            the named tuple that a call returns
//     shapes as in docs/layouts.md, checked before
//   batch_sizes       sequences of different lengths, longest first: how many of the N each of the T steps
//   has,
//                     N at the first, never more than before, at least 1. Every [T,N,...] array but the mask
//                     is then [rows,...], step after step, and so is dC; both directions begin at a
//                     sequence's own ends. Not with reverse.
//
// plan.run(values) -> result: a tuple of arrays with any strides, None where the plan has none.
// remember(operation, values, descriptor, plan): calls like this one go to this plan.
// repeat(operation, values, descriptor) -> result, or None if no plan is remembered for such calls.
// repeat_tensors(operation, tensors, descriptor), use_torch(...): the same on PyTorch's tensors; see
// tensors.h. pack_rows(array, rows), unpack_rows(array, rows, T, N): between padded and packed sequences; see
// padding.h.
//
// Stack, Stream: layers with packed weights, for inference; see prepared.h.
//
// product(a, b) -> a·b of two matrices, or None where NumPy's own product is to be used.
// soft_max_cross_entropy, soft_max_cross_entropy_gradient, adam, take_rows, add_rows: graph_arrays.h.
//
// paths() -> list[str]: the ways through the engine, paths_taken() -> list[str]: those that calls took since
// forget_paths(): paths.h.
//
// isa() -> str, use_isa(name), supported_isas() -> list[str], get_num_threads() -> int, set_num_threads(n),
// set_kept_memory(bytes): the most that is kept between calls, kept_memory() -> bytes that are,
// use_openmp(GOMP_parallel, omp_get_thread_num, omp_get_num_threads): their addresses; computes on its
// threads, function(opcode, type, array, out): a function of one value on contiguous arrays, for accuracy
// tests, opcodes() and places() -> list[str]: the names of instructions and of places, in the order of their
// numbers, limits() -> dict[str, int]: the most gates, states, ... that a cell may have, build_info() ->
// dict: build_info.h. The environment variable ZSTATE_ISA (v2, avx2, avx512 or avx512bf16 on x86-64, neon or
// neon_bf16 on ARM, generic elsewhere) forces an engine; a value that this machine cannot run raises
// RuntimeError at the first use. ZSTATE_ALWAYS_SHARE, for tests, gives every call all threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/opcodes.h"
#include "python/build_info.h"
#include "python/gil.h"
#include "python/graph_arrays.h"
#include "python/known_calls.h"
#include "python/padding.h"
#include "python/plan.h"
#include "python/prepared.h"
#include "python/results.h"
#include "python/torch_tensors.h"
#include "runtime/blocks.h"
#include "runtime/engines.h"
#include "runtime/paths.h"
#include "runtime/problem.h"
#include "runtime/threads.h"

namespace nb = nanobind;

namespace zstate {
namespace {

using i64 = std::int64_t;

Type type_named(const std::string& name) {
  if (name == "float32") return Type::kFloat32;
  if (name == "float64") return Type::kFloat64;
  if (name == "float16") return Type::kFloat16;
  if (name == "bfloat16") return Type::kBfloat16;
  throw std::invalid_argument("dtype: expected float32, float64, float16 or bfloat16, got " + name);
}

void set_batch_sizes(Signature& s, const std::vector<i64>& sizes) {
  if (sizes.empty()) return;
  Problem& p = s.problem;
  if (p.reverse || static_cast<i64>(sizes.size()) != p.T || sizes[0] != p.N)
    throw std::invalid_argument("batch_sizes: expected T of them, N first, and no reverse");
  s.starts.assign(1, 0);
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    if (sizes[t] < 1 || sizes[t] > sizes[t > 0 ? t - 1 : 0])
      throw std::invalid_argument("batch_sizes: expected numbers that do not grow, the last at least 1");
    s.starts.push_back(s.starts.back() + sizes[t]);
    s.step_of.insert(s.step_of.end(), static_cast<std::size_t>(sizes[t]), static_cast<i64>(t));
  }
}

using Named = std::vector<std::optional<std::tuple<std::string, Shape, std::string>>>;

std::vector<NamedShape> shapes(const Named& named) {
  std::vector<NamedShape> list;
  for (const auto& item : named)
    list.push_back(item ? NamedShape{std::get<0>(*item), std::get<1>(*item), std::get<2>(*item)}
                        : NamedShape{});
  return list;
}

void make_plan(Plan* place, const std::vector<i64>& cell, const std::vector<double>& numbers,
               const std::string& type, i64 T, i64 N, i64 I, i64 H, i64 D, i64 heads, bool reverse,
               bool has_input_weight, bool gradient, nb::object dtype, const Named& inputs,
               const Named& results, nb::object result, const std::vector<i64>& batch_sizes) {
  Signature s;
  Problem& p = s.problem;
  s.tables = std::make_unique<CellTables>(cell.data(), cell.size(), numbers.data(), numbers.size());
  p.cell = &s.tables->program();
  p.type = type_named(type);
  p.G = p.cell->gates;
  p.T = T, p.N = N, p.I = I, p.H = H, p.D = D, p.heads = heads;
  p.reverse = reverse, p.has_input_weight = has_input_weight;
  s.gradient = gradient;
  s.dtype = std::move(dtype);
  s.inputs = shapes(inputs);
  s.results = shapes(results);
  s.result = std::move(result);
  set_batch_sizes(s, batch_sizes);
  new (place) Plan(std::move(s));
}

using Plain = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void apply_function(int op, const std::string& type_name, const Plain& in, const Plain& out) {
  const Type type = type_named(type_name);
  const std::size_t item = type == Type::kFloat64 ? 8 : type == Type::kFloat32 ? 4 : 2;
  if (op < 1 || op >= static_cast<int>(Opcode::count))
    throw std::invalid_argument("function: no such opcode");
  if (in.size() != out.size() || in.itemsize() != item || out.itemsize() != item)
    throw std::invalid_argument("function: the arrays do not fit");
  engine().function(type, op, in.data(), out.data(), static_cast<i64>(in.size()));
}

std::vector<std::string> opcode_names() {
  return {
#define ZS_NAME(name, values) #name,
      ZS_OPCODES(ZS_NAME)
#undef ZS_NAME
  };
}
std::vector<std::string> place_names() {
  return {
#define ZS_NAME(name) #name,
      ZS_PLACES(ZS_NAME)
#undef ZS_NAME
  };
}
nb::dict limits() {
  nb::dict found;
  found["gates"] = kMostGates;
  found["states"] = kMostStates;
  found["parameters"] = kMostOwn;
  found["products"] = kMostProducts;
  found["operands"] = kMostOperands;
  found["stages"] = kMostStages;
  found["values"] = kMostPlaces;
  return found;
}

}  // namespace
}  // namespace zstate

namespace zstate {
namespace {

// Whether a signal's handler raised; the error is then set.
bool signal_raised() {
  bool raised = false;
  WithoutGil::with_gil([&] { raised = PyErr_CheckSignals() != 0; });
  return raised;
}

}  // namespace
}  // namespace zstate

NB_MODULE(_native, m) {
  using zstate::Plan;
  if (!zstate::import_numpy()) throw nb::python_error();
  zstate::set_stop_check(&zstate::signal_raised);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const zstate::Interrupted&) {  // by signal_raised(), which has left Python's error
    }
  });
  // Plans live in a cache until the process ends, which is not a leak to report.
  nb::set_leak_warnings(false);
  m.doc() = "The native CPU engine: whole recurrent operations in C++.";
  nb::class_<Plan>(m, "Plan")
      .def("__init__", &zstate::make_plan, nb::kw_only(), nb::arg("cell"), nb::arg("numbers"),
           nb::arg("type"), nb::arg("T"), nb::arg("N"), nb::arg("I"), nb::arg("H"), nb::arg("D"),
           nb::arg("heads"), nb::arg("reverse"), nb::arg("has_input_weight"), nb::arg("gradient"),
           nb::arg("dtype"), nb::arg("inputs"), nb::arg("results"), nb::arg("result"),
           nb::arg("batch_sizes") = std::vector<std::int64_t>{})
      .def("run", &Plan::run);
  m.def("repeat", &zstate::repeat, nb::arg().none(), nb::arg().none(), nb::arg().none());
  m.def("remember", &zstate::remember, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg());
  zstate::bind_tensors(m);
  zstate::bind_padding(m);
  zstate::bind_prepared(m);
  zstate::bind_build_info(m);
  m.def("product", &zstate::product);
  m.def("soft_max_cross_entropy", &zstate::soft_max_cross_entropy);
  m.def("soft_max_cross_entropy_gradient", &zstate::soft_max_cross_entropy_gradient);
  m.def("adam", &zstate::adam);
  m.def("take_rows", &zstate::take_rows);
  m.def("add_rows", &zstate::add_rows);
  m.attr("interface") = zstate::kInterface;
  m.attr("stamp") = zstate::kStamp;
  m.def("isa", [] { return std::string(zstate::engine().name); });
  m.def("supported_isas", &zstate::supported_isas);
  m.def("use_isa", &zstate::use_isa);
  m.def("set_num_threads", [](int n) {
    if (n < 1) throw std::invalid_argument("set_num_threads: expected a positive number");
    zstate::set_num_threads(n);
  });
  m.def("get_num_threads", &zstate::get_num_threads);
  m.def("set_kept_memory", &zstate::set_kept_limit);
  m.def("kept_memory", &zstate::kept_bytes);
  m.def("use_openmp", [](std::uintptr_t parallel, std::uintptr_t thread_number, std::uintptr_t team_size) {
    zstate::use_openmp({reinterpret_cast<decltype(zstate::OpenMp::parallel)>(parallel),
                        reinterpret_cast<decltype(zstate::OpenMp::thread_number)>(thread_number),
                        reinterpret_cast<decltype(zstate::OpenMp::team_size)>(team_size)});
  });
  m.def("function", &zstate::apply_function);
  m.def("opcodes", &zstate::opcode_names);
  m.def("places", &zstate::place_names);
  m.def("limits", &zstate::limits);
  m.def("paths", [] { return zstate::path_names(false); });
  m.def("paths_taken", [] { return zstate::path_names(true); });
  m.def("forget_paths", &zstate::forget_paths);
}
