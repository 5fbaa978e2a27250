// The two operations on arrays of one type, and how heads are shared out.
#pragma once

#include "engine/backward.h"
#include "engine/forward.h"

namespace ZS_NAMESPACE {

// Lets arrays begin with what belongs to one head.
template <class S>
struct OfHead {
  i64 units, rows;  // of all heads before it; of their blocks of R
  OfHead(const Problem& p, i64 head) : units(head * p.H), rows(head * p.G * p.H) {}

  static void move(Array& a, i64 by) {
    if (a) a.data = static_cast<S*>(a.data) + by;
  }
  void of_units(Array& a) const { move(a, units * (a ? a.strides[a.rank - 1] : 0)); }  // a mask may repeat
  template <std::size_t Count>
  void of_units(Array (&list)[Count]) const {
    for (Array& a : list) of_units(a);
  }
  void of_weight(Array& a) const { move(a, a ? rows * a.strides[a.rank - 2] : 0); }

  ForwardArrays operator()(ForwardArrays a) const {
    of_weight(a.recurrent_weight);
    for (Array* each : {&a.source, &a.bias, &a.mask, &a.training_state}) of_units(*each);
    of_units(a.initial), of_units(a.own), of_units(a.result);
    return a;
  }
  BackwardArrays operator()(BackwardArrays a) const {
    for (Array* each : {&a.recurrent_weight, &a.d_recurrent}) of_weight(*each);
    for (Array* each : {&a.source, &a.mask, &a.training_state, &a.d_source, &a.d_bias}) of_units(*each);
    for (auto* each : {&a.initial, &a.after, &a.outer, &a.last, &a.d_initial}) of_units(*each);
    of_units(a.own), of_units(a.d_own);
    return a;
  }
};

// Some heads, each computed by one member alone: no member waits for another.
template <template <class> class Op, class S, class Arrays>
struct WholeHeads {
  const Problem& p;
  const Arrays& arrays;
  i64 count;       // of heads, the first ones
  i64 head_bytes;  // scratch memory of one
  int threads = 1;
  char* scratch = nullptr;

  void lay_out(Arena& arena) { scratch = arena.take<char>(threads, head_bytes); }
  void run(const Team& team) const {
    const Range mine = share(team, count);
    for (i64 head = mine.begin; head < mine.end && !team.stopped(); ++head) {
      const Arrays own = OfHead<S>(p, head)(arrays);
      Op<S> op(p, own);
      Arena arena(scratch + team.rank * head_bytes);
      op.lay_out(arena);
      op.run(team.alone());
    }
    team.barrier();
  }
};

// As many whole heads for every member, then the rest one after the other; all of them so where the cache
// that members share may hold the weights of one head but not of several.
template <template <class> class Op, class S, class Arrays>
void run_heads(const Problem& p, const Arrays& arrays) {
  const i64 members = zstate::get_num_threads();
  Op<S> measured(p, arrays);  // the first head
  i64 head = 0;
  if (members > 1 && p.heads >= members && members * measured.weight_bytes < kSharedCacheBytes) {
    mark(Path::whole_heads);
    head = p.heads - p.heads % members;
    Arena measure(nullptr);
    measured.lay_out(measure);
    WholeHeads<Op, S, Arrays> whole{p, arrays, head, round_up(measure.used(), 128)};
    const double work = static_cast<double>(head) * measured.work();
    run_operation(whole, work, work);
  }
  for (; head < p.heads; ++head) {
    mark(Path::head_after_head);
    const Arrays own = OfHead<S>(p, head)(arrays);
    Op<S> op(p, own);
    run_operation(op, op.work(), op.shared_work());
  }
}

template <template <class> class Op, class S, class Arrays>
void run(const Problem& p, const Arrays& arrays) {
  if (p.heads > 1) return run_heads<Op, S>(p, arrays);
  Op<S> op(p, arrays);
  run_operation(op, op.work(), op.shared_work());
}

template <class S>
using ForwardOp = Forward<S>;
template <class S>
void run_forward(const Problem& p, const ForwardArrays& arrays) {
  run<ForwardOp, S>(p, arrays);
}
template <class S>
void run_backward(const Problem& p, const BackwardArrays& arrays) {
  if (p.rows() == 0) return backward_without_rows<S>(p, arrays);
  run<Backward, S>(p, arrays);
}

// The 16-bit types are compiled apart (half_types.cpp), so that two cores share the work of a build.
#define ZS_FOR_TYPE(keyword, S)                                               \
  keyword template void run_forward<S>(const Problem&, const ForwardArrays&); \
  keyword template void run_backward<S>(const Problem&, const BackwardArrays&);
ZS_FOR_TYPE(extern, Bfloat16)
ZS_FOR_TYPE(extern, Float16)

}  // namespace ZS_NAMESPACE
