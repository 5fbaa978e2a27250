// The table of known calls.
#include "python/known_calls.h"

#include <unordered_map>
#include <utility>

#include "python/numpy.h"
#include "python/plan.h"
#include "python/tuples.h"
#include "runtime/paths.h"

namespace zstate {
namespace {

struct Known {
  nb::object operation, descriptor, plan;
};

// Keyed by the shape of the source, the operation and the descriptor; an entry is then compared in full.
using KnownCalls = std::unordered_multimap<std::size_t, Known>;
constexpr std::size_t kMostKnown = 1024;  // then the table starts afresh

KnownCalls& known_calls() {
  static KnownCalls* calls = new KnownCalls;  // never destroyed: the interpreter may be gone by then
  return *calls;
}

// False if this cannot be a known call.
bool hash_call(nb::handle operation, nb::handle values, nb::handle descriptor, std::size_t& hash) {
  if (!PyTuple_CheckExact(values.ptr()) || tuple_size(values.ptr()) == 0) return false;
  PyObject* source = tuple_item(values.ptr(), 0);
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

}  // namespace zstate
