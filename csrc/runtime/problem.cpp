#include "runtime/problem.h"

#include <stdexcept>

#include "runtime/sizes.h"

namespace zstate {

void check(const Problem& p) {
  if (p.T < 0 || p.N < 0 || p.I < 0 || p.H < 1 || p.heads < 1 || (p.D != 1 && p.D != 2))
    throw std::invalid_argument("impossible sizes");
  size_product(p.T, p.N);  // the engine multiplies these itself
  size_product(p.D, p.G, size_product(p.heads, p.H), size_sum(p.H, p.I));
  if (!p.has_input_weight && p.I != p.D * p.G * p.units())
    throw std::invalid_argument("a projected source has I = D*G*H");
  const bool is_real = p.type == Type::kFloat32 || p.type == Type::kFloat64;
  if (p.heads > 1 && (p.has_input_weight || !is_real || p.cell->means))
    throw std::invalid_argument("heads need a projected source in float32 or float64, and no means");
}

}  // namespace zstate
