// Copies of rows, shared by a team.
#include "python/padding.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "python/gil.h"
#include "python/numpy.h"
#include "python/results.h"
#include "runtime/sizes.h"
#include "runtime/team_choice.h"
#include "runtime/threads.h"

namespace zstate {
namespace {

using i64 = std::int64_t;

// What copying a byte takes, in multiplications.
constexpr double kByte = 1.5;

PyArrayObject* checked(nb::handle array, int rank) {
  if (!PyArray_CheckExact(array.ptr())) throw std::invalid_argument("rows: expected a NumPy array");
  auto* found = as_array(array.ptr());
  if (PyArray_NDIM(found) != rank ||
      (PyArray_DIM(found, rank - 1) > 1 && PyArray_STRIDE(found, rank - 1) != PyArray_ITEMSIZE(found)))
    throw std::invalid_argument("rows: expected a contiguous last axis, and as many axes as it says");
  return found;
}

using Places = std::vector<i64>;
Places checked_places(nb::handle rows, i64 most) {
  PyArrayObject* array = checked(rows, 1);
  if (PyArray_TYPE(array) != NPY_INT64) throw std::invalid_argument("rows: expected int64");
  auto places = copy_below(static_cast<const i64*>(PyArray_DATA(array)), PyArray_DIM(array, 0), most);
  if (!places) throw std::invalid_argument("rows: beyond the end");
  return *std::move(places);
}

// One copy: row i of the packed rows is row places[i] of the padded ones, whose first axis counts T steps of
// N sequences.
struct Copy {
  Places places;
  i64 T, N, bytes;  // of one row
  char *padded, *packed;
  i64 step, sequence, row;  // strides
  bool put;
  std::vector<char> there;  // which of the T·N rows are put

  i64 count() const { return static_cast<i64>(places.size()); }
  char* place(i64 k) const { return padded + k / N * step + k % N * sequence; }

  static void member(void* context, const Team& team) {
    const Copy& c = *static_cast<const Copy*>(context);
    const auto size = static_cast<std::size_t>(c.bytes);
    const Range rows = share(team, c.count()), all = share(team, c.T * c.N);
    for (i64 i = rows.begin; i < rows.end; ++i) {
      char *outside = c.place(c.places[static_cast<std::size_t>(i)]), *inside = c.packed + i * c.row;
      std::memcpy(c.put ? outside : inside, c.put ? inside : outside, size);
    }
    if (!c.put) return;
    for (i64 k = all.begin; k < all.end; ++k)
      if (!c.there[static_cast<std::size_t>(k)]) std::memset(c.place(k), 0, size);
  }

  void run() {
    if (bytes == 0 || T * N == 0) return;
    const i64 all = bytes * (put ? T * N : count());
    const double work = kByte * static_cast<double>(all);
    const TeamChoice choice(work, work);
    run_team(choice.threads(), &member, this);
  }
};

nb::object pack_rows(nb::handle padded, nb::handle rows) {
  PyArrayObject* from = checked(padded, 3);
  const i64 T = PyArray_DIM(from, 0), N = PyArray_DIM(from, 1), F = PyArray_DIM(from, 2);
  Places places = checked_places(rows, size_product(T, N));
  const i64 shape[2] = {static_cast<i64>(places.size()), F};
  nb::object made = new_array(2, shape, reinterpret_cast<PyObject*>(PyArray_DESCR(from)));
  const i64 bytes = F * PyArray_ITEMSIZE(from);
  Copy copy{.places = std::move(places),
            .T = T,
            .N = N,
            .bytes = bytes,
            .padded = PyArray_BYTES(from),
            .packed = PyArray_BYTES(as_array(made.ptr())),
            .step = PyArray_STRIDE(from, 0),
            .sequence = PyArray_STRIDE(from, 1),
            .row = bytes,
            .put = false,
            .there = {}};
  const WithoutGil released;
  copy.run();
  return made;
}

nb::object unpack_rows(nb::handle packed, nb::handle rows, i64 T, i64 N) {
  PyArrayObject* from = checked(packed, 2);
  if (T < 0 || N < 0) throw std::invalid_argument("rows: impossible sizes");
  Places places = checked_places(rows, size_product(T, N));
  if (static_cast<i64>(places.size()) != PyArray_DIM(from, 0))
    throw std::invalid_argument("rows: expected one for each row");
  const i64 F = PyArray_DIM(from, 1), shape[3] = {T, N, F};
  nb::object made = new_array(3, shape, reinterpret_cast<PyObject*>(PyArray_DESCR(from)));
  const i64 bytes = F * PyArray_ITEMSIZE(from);
  Copy copy{.places = std::move(places),
            .T = T,
            .N = N,
            .bytes = bytes,
            .padded = PyArray_BYTES(as_array(made.ptr())),
            .packed = PyArray_BYTES(from),
            .step = N * bytes,
            .sequence = bytes,
            .row = PyArray_STRIDE(from, 0),
            .put = true,
            .there = std::vector<char>(static_cast<std::size_t>(T * N))};
  for (const i64 place : copy.places) copy.there[static_cast<std::size_t>(place)] = 1;
  const WithoutGil released;
  copy.run();
  return made;
}

}  // namespace

void bind_padding(nb::module_& m) {
  m.def("pack_rows", &pack_rows);
  m.def("unpack_rows", &unpack_rows);
}

}  // namespace zstate
