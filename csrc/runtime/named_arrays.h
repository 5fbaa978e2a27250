// What an engine's arrays are called outside of it: "bias", or "initial.1" for the second of several.
#pragma once

#include <cstddef>
#include <string_view>

#include "engine/engine.h"

namespace zstate {

inline constexpr int kMostListed = 8;
static_assert(kMostListed == kMostStates && kMostListed == kMostOwn);

template <class Arrays>
struct Member {
  const char* name;
  Array Arrays::* array;
  Array (Arrays::*list)[kMostListed] = nullptr;
};

constexpr Member<ForwardArrays> kForwardInputs[] = {
    {"source", &ForwardArrays::source},
    {"recurrent_weight", &ForwardArrays::recurrent_weight},
    {"input_weight", &ForwardArrays::input_weight},
    {"bias", &ForwardArrays::bias},
    {"mask", &ForwardArrays::mask},
    {"resets", &ForwardArrays::resets},
    {"initial", nullptr, &ForwardArrays::initial},
    {"own", nullptr, &ForwardArrays::own},
};
constexpr Member<ForwardArrays> kForwardResults[] = {
    {"training_state", &ForwardArrays::training_state},
    {"result", nullptr, &ForwardArrays::result},
};
constexpr Member<BackwardArrays> kBackwardInputs[] = {
    {"source", &BackwardArrays::source},
    {"recurrent_weight", &BackwardArrays::recurrent_weight},
    {"input_weight", &BackwardArrays::input_weight},
    {"bias", &BackwardArrays::bias},
    {"mask", &BackwardArrays::mask},
    {"resets", &BackwardArrays::resets},
    {"training_state", &BackwardArrays::training_state},
    {"initial", nullptr, &BackwardArrays::initial},
    {"own", nullptr, &BackwardArrays::own},
    {"after", nullptr, &BackwardArrays::after},
    {"outer", nullptr, &BackwardArrays::outer},
    {"last", nullptr, &BackwardArrays::last},
};
constexpr Member<BackwardArrays> kBackwardResults[] = {
    {"source", &BackwardArrays::d_source},
    {"recurrent_weight", &BackwardArrays::d_recurrent},
    {"input_weight", &BackwardArrays::d_input},
    {"bias", &BackwardArrays::d_bias},
    {"initial", nullptr, &BackwardArrays::d_initial},
    {"own", nullptr, &BackwardArrays::d_own},
};

// The place of the array of that name, or -1.
template <class Arrays, std::size_t Count>
constexpr int place_of(const Member<Arrays> (&members)[Count], std::string_view name) {
  const std::size_t dot = name.find('.');
  const std::string_view first = name.substr(0, dot);
  int number = 0;
  if (dot != std::string_view::npos) {
    if (dot + 2 != name.size()) return -1;
    number = name[dot + 1] - '0';
    if (number < 0 || number >= kMostListed) return -1;
  }
  for (std::size_t i = 0; i < Count; ++i)
    if (first == members[i].name && (members[i].list != nullptr) == (dot != std::string_view::npos))
      return static_cast<int>(i) * kMostListed + number;
  return -1;
}
template <class Arrays, std::size_t Count>
Array& array_at(Arrays& arrays, const Member<Arrays> (&members)[Count], int place) {
  const Member<Arrays>& member = members[place / kMostListed];
  return member.list ? (arrays.*member.list)[place % kMostListed] : arrays.*member.array;
}

// Whether it is one of the states between calls, [N,X], which may have an axis of one in front.
constexpr bool is_between_calls(std::string_view place) {
  return place.starts_with("initial.") || place.starts_with("last.");
}

}  // namespace zstate
