// The operations as XLA custom calls on the CPU: what zstate.jax compiles to.
//
// A shared library of its own, without Python: one file serves every Python, and XLA calls it from its own
// threads without Python's lock. A call's attributes are the numbers of its Problem (`problem`, in the order
// of read_problem()) and the names of its operands and results, which are dense row-major buffers. Shapes
// were checked while zstate.jax traced the call.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "runtime/blocks.h"
#include "runtime/engines.h"
#include "runtime/named_arrays.h"
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

// The numbers that _problem() in src/zstate/jax/ffi.py writes.
bool read_problem(ffi::Span<const i64> numbers, Problem& p) {
  constexpr std::size_t count = 12 + kMostGates + kMostActivations;
  if (numbers.size() != count) return false;
  const i64* at = numbers.begin();
  p.cell = static_cast<Cell>(*at++), p.G = *at++;
  p.T = *at++, p.N = *at++, p.I = *at++, p.H = *at++, p.D = *at++;
  p.reverse = *at++ != 0, p.reset_after = *at++ != 0, p.flip_z = *at++ != 0;
  p.peephole_on_new_cell = *at++ != 0, p.has_input_weight = *at++ != 0;
  for (int& slot : p.slots) slot = static_cast<int>(*at++);
  for (int& activation : p.activations) activation = static_cast<int>(*at++);
  return true;
}

// States between calls may have an axis of one in front.
int axes_of(std::string_view name, std::size_t rank) {
  if (name == "mask") return 3;
  const bool state = name == "state_gradient" || name == "cell_gradient";
  return state && rank == 3 ? -1 : static_cast<int>(rank);
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

template <class Arrays, std::size_t Count, class Buffers, class Get>
bool read_arrays(std::string_view names, const Buffers& buffers, const Get& get,
                 const Member<Arrays> (&members)[Count], Arrays& arrays) {
  return each_name(names, [&](std::string_view name, std::size_t k) {
    const int place = place_of(members, name);
    if (place < 0 || k >= buffers.size()) return false;
    const ffi::AnyBuffer buffer = get(buffers, k);
    Array a = as_array(buffer, axes_of(name, buffer.dimensions().size()));
    if (name != "mask") a.strides[a.rank - 1] = 1;
    arrays.*members[place].array = a;
    return true;
  });
}

template <class Arrays, std::size_t Inputs, std::size_t Results>
ffi::Error run(ffi::RemainingArgs operands, ffi::RemainingRets returned, ffi::Dictionary attributes,
               const Member<Arrays> (&inputs)[Inputs], const Member<Arrays> (&results)[Results],
               void (*Engine::*function)(const Problem&, const Arrays&)) {
  const auto numbers = attributes.get<ffi::Span<const i64>>("problem");
  const auto input_names = attributes.get<std::string_view>("inputs");
  const auto result_names = attributes.get<std::string_view>("results");
  Problem problem;
  Arrays arrays;
  if (!numbers || !input_names || !result_names || !read_problem(*numbers, problem) || operands.size() == 0 ||
      !read_type(operands.get<ffi::AnyBuffer>(0)->element_type(), problem.type))
    return refused("the attributes of a call are not those of this version");
  const auto operand = [](const auto& all, std::size_t k) { return *all.template get<ffi::AnyBuffer>(k); };
  const auto result = [](const auto& all, std::size_t k) { return **all.template get<ffi::AnyBuffer>(k); };
  if (!read_arrays(*input_names, operands, operand, inputs, arrays) ||
      !read_arrays(*result_names, returned, result, results, arrays))
    return refused("the operands of a call are not those of this version");
  try {
    (engine().*function)(problem, arrays);
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
// This copy of the engine has threads and memory of its own: the settings of zstate.set_num_threads and
// zstate.set_kept_memory.
extern "C" void zstate_set_num_threads(int threads) { zstate::set_num_threads(threads); }
extern "C" int zstate_get_num_threads() { return zstate::get_num_threads(); }
extern "C" void zstate_set_kept_memory(std::size_t bytes) { zstate::set_kept_limit(bytes); }
#pragma GCC visibility pop
