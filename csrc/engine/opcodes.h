// The instructions of a cell's programs, and the places that these read and write: each list once, by name.
// Python looks the numbers up by these names.
#pragma once

// name, how many values it takes
#define ZS_OPCODES(X)                                            \
  X(end, 0)                                                      \
  X(copy, 1)                                                     \
  X(negative, 1)                                                 \
  X(none, 1)                                                     \
  X(relu, 1)                                                     \
  X(tanh, 1)                                                     \
  X(sigmoid, 1)                                                  \
  X(hard_sigmoid, 1)                                             \
  X(softplus, 1)                                                 \
  X(log_sigmoid, 1)                                              \
  X(exp, 1)                                                      \
  X(log, 1)                                                      \
  X(sqrt, 1)                                                     \
  X(abs, 1)                                                      \
  X(slope_none, 1)                                               \
  X(slope_relu, 1)                                               \
  X(slope_tanh, 1)                                               \
  X(slope_sigmoid, 1)                                            \
  X(slope_hard_sigmoid, 1)                                       \
  X(slope_softplus, 1)                                           \
  X(slope_log_sigmoid, 1)                                        \
  X(add, 2)                                                      \
  X(subtract, 2)                                                 \
  X(multiply, 2)                                                 \
  X(divide, 2)                                                   \
  X(maximum, 2)                                                  \
  X(minimum, 2)                                                  \
  X(greater, 2)                                                  \
  X(at_least, 2)                                                 \
  X(where, 3)                                                    \
  /* b, or 0 where a is above 0 */                               \
  X(unless_positive, 2)                                          \
  /* a·b + c, a·b - c, c - a·b */                                \
  X(multiply_add, 3)                                             \
  X(multiply_subtract, 3)                                        \
  X(subtract_product, 3)                                         \
  /* functions of sums */                                        \
  X(add_relu, 2)                                                 \
  X(add_tanh, 2)                                                 \
  X(add_sigmoid, 2)                                              \
  X(add_hard_sigmoid, 2)                                         \
  X(add_add, 3)                                                  \
  X(add_add_relu, 3)                                             \
  X(add_add_tanh, 3)                                             \
  X(add_add_sigmoid, 3)                                          \
  X(add_add_hard_sigmoid, 3)                                     \
  /* a·tanh b, a·b + c·d, and times the slope at the last one */ \
  X(multiply_tanh, 2)                                            \
  X(product_sum, 4)                                              \
  X(multiply_slope_relu, 2)                                      \
  X(multiply_slope_tanh, 2)                                      \
  X(multiply_slope_sigmoid, 2)                                   \
  X(multiply_slope_hard_sigmoid, 2)                              \
  X(multiply_multiply, 3)                                        \
  X(multiply_multiply_slope_relu, 3)                             \
  X(multiply_multiply_slope_tanh, 3)                             \
  X(multiply_multiply_slope_sigmoid, 3)                          \
  X(multiply_multiply_slope_hard_sigmoid, 3)

// What a program's value is read from or written to. g counts gates in the cell's order, s its states, k is
// a number of its own.
#define ZS_PLACES(X)                                               \
  X(x)          /* g: x's part, projected */                       \
  X(bias)       /* g */                                            \
  X(product)    /* k: of the stage's products */                   \
  X(own)        /* k: of the parameters' vectors */                \
  X(mask)       /* of the step */                                  \
  X(next_mask)  /* of the step behind it */                        \
  X(reset)      /* of the step: above 0 where a sequence begins */ \
  X(next_reset) /* of the step behind it */                        \
  X(carried)    /* k: from stage to stage */                       \
  X(reduced)    /* k: what the mean of a later stage is of */      \
  X(mean)       /* k: over the units of a row */                   \
  X(saved)      /* g: the training state */                        \
  X(initial)    /* s: the state before the first step */           \
  /* forward */                                                    \
  X(state)   /* s: the state, kept from step to step */            \
  X(result)  /* s: the state of every step */                      \
  X(operand) /* k: what R multiplies */                            \
  /* backward */                                                   \
  X(after)            /* s: the state of the step */               \
  X(before)           /* s: of the step in front */                \
  X(saved_before)     /* g: of the step in front */                \
  X(outer)            /* s: gradient from outside at every step */ \
  X(last)             /* s: the same of the last step */           \
  X(gate_gradient)    /* g */                                      \
  X(extra)            /* k: products again, or their gradients */  \
  X(own_sum)          /* k: gradient of a parameter's vector */    \
  X(initial_gradient) /* s */                                      \
  X(operand_value)    /* k: what R multiplied, for all steps */

namespace zstate {

enum class Opcode : int {
#define ZS_NAME(name, values) name,
  ZS_OPCODES(ZS_NAME)
#undef ZS_NAME
      count
};

enum class PlaceKind : int {
#define ZS_NAME(name) name,
  ZS_PLACES(ZS_NAME)
#undef ZS_NAME
      count
};

}  // namespace zstate
