// The paths that a call can take through the engine, chosen by shape, type, lengths, threads or repetition.
//
// Each choice marks the path it took. Tests clear the marks, make random calls that are checked against the
// reference, and read the marks: a path that no checked call takes fails the tests. Marks are in every build,
// because one that is already set costs a single load.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "runtime/inline.h"

namespace zstate {

#define ZS_PATHS(X)                     \
  /* weights and input */               \
  X(forward_packs_weights)              \
  X(forward_reads_weights_in_place)     \
  X(backward_packs_weights)             \
  X(backward_reads_weights_in_place)    \
  X(weights_exceed_cache)               \
  X(input_added_per_tile)               \
  X(projects_into_training_state)       \
  X(projects_into_buffer)               \
  X(source_used_as_gates)               \
  X(source_converted_to_gates)          \
  X(gates_prefetched)                   \
  X(several_chunks)                     \
  /* the scan */                        \
  X(equal_lengths)                      \
  X(different_lengths)                  \
  X(single_row)                         \
  X(split_solo)                         \
  X(split_units)                        \
  X(split_batch)                        \
  X(split_directions)                   \
  X(directions_in_turn)                 \
  X(panels_prefetched)                  \
  X(gates_in_fewer_registers)           \
  X(results_are_operands)               \
  X(several_stages)                     \
  X(means_of_rows)                      \
  X(products_in_several_parts)          \
  X(whole_heads)                        \
  X(head_after_head)                    \
  /* products */                        \
  X(rows_shared_by_rows)                \
  X(rows_shared_by_panels)              \
  X(rows_in_several_depths)             \
  X(product_prefetched)                 \
  X(tile_in_even_rows)                  \
  X(tile_in_scattered_rows)             \
  X(tile_of_narrow_panel)               \
  X(outer_in_several_depths)            \
  X(product_of_straight_operands)       \
  X(product_of_transposed_right)        \
  X(product_of_transposed_left)         \
  X(product_swapped)                    \
  /* gradients */                       \
  X(gradient_of_gates_is_of_source)     \
  X(gradient_of_gates_copied_to_source) \
  X(gradient_of_source_in_one)          \
  X(gradient_of_source_in_chunks)       \
  X(products_again)                     \
  X(gradient_of_products_apart)         \
  X(gradient_of_own_parameters)         \
  X(no_history)                         \
  X(gradients_converted)                \
  /* calls, memory, threads */          \
  X(first_call)                         \
  X(known_call)                         \
  X(known_call_on_tensors)              \
  X(input_copied)                       \
  X(block_new)                          \
  X(block_kept)                         \
  X(one_thread)                         \
  X(team_of_pool)                       \
  X(team_of_openmp)                     \
  X(team_is_busy)

enum class Path : int {
#define ZS_NAME(name) name,
  ZS_PATHS(ZS_NAME)
#undef ZS_NAME
      count
};

extern std::atomic<bool> g_taken[static_cast<int>(Path::count)];

ZS_INLINE void mark(Path path) {
  std::atomic<bool>& taken = g_taken[static_cast<int>(path)];
  if (!taken.load(std::memory_order_relaxed)) taken.store(true, std::memory_order_relaxed);
}

// The names of all paths, or of those taken since forget_paths().
std::vector<std::string> path_names(bool taken_only);
void forget_paths();

}  // namespace zstate
