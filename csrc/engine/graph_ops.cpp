// The other operations of a graph, for one instruction set, compiled like engine.cpp.
#include "engine/graph_ops.h"

#include "engine/adam.h"
#include "engine/entropy.h"
#include "engine/row_ops.h"

namespace ZS_NAMESPACE {
namespace {

// In the type of its arrays. `cost`: what an element takes, in multiplications.
template <template <class> class Op, class Arguments>
void run_as(const Arguments& p, i64 elements, double cost) {
  with_real(p.type, [&]<class R>() {
    Op<R> op(p);
    const double work = static_cast<double>(elements) * cost;
    run_operation(op, work, work);
  });
}

void cross_entropy(const zstate::CrossEntropy& p) { run_as<CrossEntropyOp>(p, p.rows * p.classes, 16); }
void cross_entropy_gradient(const zstate::CrossEntropyGradient& p) {
  run_as<CrossEntropyGradientOp>(p, p.rows * p.classes, 8);
}
void adam(const zstate::Adam& p) { run_as<AdamOp>(p, p.count, 16); }
void take_rows(const zstate::TakeRows& p) { run_as<TakeRowsOp>(p, p.count * p.width, 4); }
void add_rows(const zstate::AddRows& p) { run_as<AddRowsOp>(p, p.count * p.width, 4); }

}  // namespace

extern const zstate::GraphOps kGraphOps;
const zstate::GraphOps kGraphOps = {cross_entropy, cross_entropy_gradient, adam, take_rows, add_rows};

}  // namespace ZS_NAMESPACE
