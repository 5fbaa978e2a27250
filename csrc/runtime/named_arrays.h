// What an engine's arrays are called outside of it: by the functional interface's names.
#pragma once

#include <cstddef>
#include <string_view>

#include "engine/engine.h"

namespace zstate {

template <class Arrays>
struct Member {
  const char* name;
  Array Arrays::* array;
};

constexpr Member<ForwardArrays> kForwardInputs[] = {
    {"source", &ForwardArrays::source},
    {"recurrent_weight", &ForwardArrays::recurrent_weight},
    {"input_weight", &ForwardArrays::input_weight},
    {"bias", &ForwardArrays::bias},
    {"init_state", &ForwardArrays::init_state},
    {"init_cell", &ForwardArrays::init_cell},
    {"mask", &ForwardArrays::mask},
    {"peephole", &ForwardArrays::peephole},
    {"secondary_bias", &ForwardArrays::secondary_bias},
};
constexpr Member<ForwardArrays> kForwardResults[] = {
    {"state", &ForwardArrays::state},
    {"cell", &ForwardArrays::cell},
    {"training_state", &ForwardArrays::training_state},
};
constexpr Member<BackwardArrays> kBackwardInputs[] = {
    {"source", &BackwardArrays::source},
    {"recurrent_weight", &BackwardArrays::recurrent_weight},
    {"source_gradient", &BackwardArrays::source_gradient},
    {"z_state", &BackwardArrays::training_state},
    {"cell_output_fwd", &BackwardArrays::cell_fwd},
    {"output_fwd", &BackwardArrays::state_fwd},
    {"state_gradient", &BackwardArrays::state_gradient},
    {"cell_gradient", &BackwardArrays::cell_gradient},
    {"input_weight", &BackwardArrays::input_weight},
    {"bias", &BackwardArrays::bias},
    {"init_state", &BackwardArrays::init_state},
    {"init_cell", &BackwardArrays::init_cell},
    {"mask", &BackwardArrays::mask},
    {"peephole", &BackwardArrays::peephole},
    {"secondary_bias", &BackwardArrays::secondary_bias},
};
constexpr Member<BackwardArrays> kBackwardResults[] = {
    {"source", &BackwardArrays::d_source},      {"recurrent_weight", &BackwardArrays::d_recurrent},
    {"input_weight", &BackwardArrays::d_input}, {"bias", &BackwardArrays::d_bias},
    {"peephole", &BackwardArrays::d_peephole},  {"init_state", &BackwardArrays::d_state},
    {"init_cell", &BackwardArrays::d_cell},     {"secondary_bias", &BackwardArrays::d_secondary},
};

// The place of the array of that name, or -1.
template <class Arrays, std::size_t Count>
constexpr int place_of(const Member<Arrays> (&members)[Count], std::string_view name) {
  for (std::size_t i = 0; i < Count; ++i)
    if (name == members[i].name) return static_cast<int>(i);
  return -1;
}

}  // namespace zstate
