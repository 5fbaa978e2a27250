// The operations as XLA custom calls on the CPU: what zstate.jax compiles to.
//
// A shared library of its own, without Python: one file serves every Python, and XLA calls it from its own
// threads without Python's lock. A call's attributes are its cell's programs (`cell`, `numbers`), the numbers
// of its Problem (`problem`, named by `fields`) and the names of its operands and results, which are dense
// row-major buffers. Shapes were checked while zstate.jax traced the call.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "runtime/blocks.h"
#include "runtime/cell_tables.h"
#include "runtime/engines.h"
#include "runtime/named_arrays.h"
#include "runtime/problem.h"
#include "runtime/threads.h"
#include "xla/ffi/api/ffi.h"

namespace zstate {
namespace {

namespace ffi = xla::ffi;
using i64 = std::int64_t;

ffi::Error refused(const std::string& why) { return ffi::Error::InvalidArgument("zstate: " + why); }

bool read_type(ffi::DataType type, Type& to) {
  switch (type) {
    case ffi::DataType::F32:
      return to = Type::kFloat32, true;
    case ffi::DataType::F64:
      return to = Type::kFloat64, true;
    case ffi::DataType::F16:
      return to = Type::kFloat16, true;
    case ffi::DataType::BF16:
      return to = Type::kBfloat16, true;
    default:
      return false;
  }
}

// What a call says about its problem: these numbers, in this order. Python names them too, with its interface
// number, so that a program of another version, perhaps from a file, is rejected.
constexpr std::string_view kFields = "T N I H D heads reverse has_input_weight";
constexpr std::size_t kNumbers = 8;

Problem read_problem(const CellProgram& cell, ffi::Span<const i64> numbers) {
  Problem p;
  const i64* at = numbers.begin();
  p.cell = &cell, p.G = cell.gates;
  p.T = *at++, p.N = *at++, p.I = *at++, p.H = *at++, p.D = *at++, p.heads = *at++;
  p.reverse = *at++ != 0, p.has_input_weight = *at++ != 0;
  check(p);
  return p;
}

// States between calls may have an axis of one in front.
int axes_of(std::string_view called, std::size_t rank) {
  if (called == "mask") return 3;
  return is_between_calls(called) && rank == 3 ? -1 : static_cast<int>(rank);
}

// A buffer as an array of so many axes; axes of one element have no step, so that a mask repeats along them.
Array as_array(const ffi::AnyBuffer& buffer, int axes) {
  static char empty;
  const auto shape = buffer.dimensions();
  const int rank = static_cast<int>(shape.size());
  if (axes < 0) axes = shape[0] == 1 ? rank - 1 : rank;
  Array a;
  a.data = buffer.element_count() ? buffer.untyped_data() : &empty;
  a.rank = axes;
  i64 stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    const int to = axis + axes - rank;
    const i64 size = shape[static_cast<std::size_t>(axis)];
    if (to >= 0 && size != 1) a.strides[to] = stride;
    stride *= size;
  }
  return a;
}

// Calls visit(name, k) for the k-th of the names, which are separated by spaces, while it returns true.
template <class Visit>
bool each_name(std::string_view names, const Visit& visit) {
  std::size_t k = 0;
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(' '), names.size());
    if (!visit(names.substr(0, end), k++)) return false;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return true;
}

// One buffer for each of the names, all of one type.
template <class Arrays, std::size_t Count, class Buffers, class Get>
bool read_arrays(std::string_view names, const Buffers& buffers, const Get& get, Type type,
                 const Member<Arrays> (&members)[Count], Arrays& arrays) {
  std::size_t read = 0;
  const bool known = each_name(names, [&](std::string_view name, std::size_t k) {
    const int place = place_of(members, name);
    if (place < 0 || k >= buffers.size()) return false;
    const ffi::AnyBuffer buffer = get(buffers, k);
    const std::size_t rank = buffer.dimensions().size();
    Type own{};
    if (rank > 3 || (rank == 0 && name != "mask") || !read_type(buffer.element_type(), own) || own != type)
      return false;
    read = k + 1;
    Array a = as_array(buffer, axes_of(name, rank));
    if (name != "mask") a.strides[a.rank - 1] = 1;
    array_at(arrays, members, place) = a;
    return true;
  });
  return known && read == buffers.size();
}

template <class Arrays>
constexpr bool kIsGradient = std::is_same_v<Arrays, BackwardArrays>;

template <class Arrays, std::size_t Inputs, std::size_t Results>
ffi::Error run(ffi::RemainingArgs operands, ffi::RemainingRets returned, ffi::Dictionary attributes,
               const Member<Arrays> (&inputs)[Inputs], const Member<Arrays> (&results)[Results],
               void (*Engine::*function)(const Problem&, const Arrays&)) {
  const auto fields = attributes.get<std::string_view>("fields");
  const auto numbers = attributes.get<ffi::Span<const i64>>("problem");
  const auto input_names = attributes.get<std::string_view>("inputs");
  const auto result_names = attributes.get<std::string_view>("results");
  const auto words = attributes.get<ffi::Span<const i64>>("cell");
  const auto constants = attributes.get<ffi::Span<const double>>("numbers");
  if (!fields || !numbers || !input_names || !result_names || !words || !constants ||
      *fields != std::to_string(kInterface) + " " + std::string(kFields) || numbers->size() != kNumbers ||
      attributes.size() != 6)
    return refused("the attributes of a call are not those of this version");
  try {
    const CellTables tables(words->begin(), words->size(), constants->begin(), constants->size());
    Problem problem = read_problem(tables.program(), *numbers);
    if (tables.gradient() != kIsGradient<Arrays>)
      return refused("the cell's programs are of another operation");
    Arrays arrays;
    if (operands.size() == 0 || !read_type(operands.get<ffi::AnyBuffer>(0)->element_type(), problem.type))
      return refused("the operands of a call are not those of this version");
    const auto operand = [](const auto& all, std::size_t k) { return *all.template get<ffi::AnyBuffer>(k); };
    const auto result = [](const auto& all, std::size_t k) { return **all.template get<ffi::AnyBuffer>(k); };
    if (!read_arrays(*input_names, operands, operand, problem.type, inputs, arrays) ||
        !read_arrays(*result_names, returned, result, problem.type, results, arrays) || !arrays.source ||
        !arrays.recurrent_weight)
      return refused("the operands of a call are not those of this version");
    (engine().*function)(problem, arrays);
  } catch (const std::invalid_argument& error) {
    return refused(error.what());
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "zstate: out of memory");
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("zstate: ") + error.what());
  }
  return ffi::Error::Success();
}

ffi::Error run_forward(ffi::RemainingArgs operands, ffi::RemainingRets returned, ffi::Dictionary attributes) {
  return run(operands, returned, attributes, kForwardInputs, kForwardResults, &Engine::forward);
}
ffi::Error run_gradient(ffi::RemainingArgs operands, ffi::RemainingRets returned,
                        ffi::Dictionary attributes) {
  return run(operands, returned, attributes, kBackwardInputs, kBackwardResults, &Engine::backward);
}

}  // namespace
}  // namespace zstate

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(zstate_forward, zstate::run_forward,
                              xla::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
XLA_FFI_DEFINE_HANDLER_SYMBOL(zstate_gradient, zstate::run_gradient,
                              xla::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
// What src/zstate/jax/ffi.py compares with its own and with the Python module's.
extern "C" int zstate_interface() { return zstate::kInterface; }
extern "C" const char* zstate_stamp() { return zstate::kStamp; }
// This copy of the engine has its own threads and memory: the settings of zstate.set_num_threads and
// zstate.set_kept_memory.
extern "C" void zstate_set_num_threads(int threads) { zstate::set_num_threads(threads); }
extern "C" int zstate_get_num_threads() { return zstate::get_num_threads(); }
extern "C" void zstate_set_kept_memory(std::size_t bytes) { zstate::set_kept_limit(bytes); }
#pragma GCC visibility pop
