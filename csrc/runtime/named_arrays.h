// What an engine's arrays are called outside of it: "bias", or "initial.1" for the second of several.
#pragma once

#include <cstddef>
#include <string_view>

#include "engine/engine.h"

namespace zstate {

inline constexpr int kMostListed = kMostOwn > kMostStates ? kMostOwn : kMostStates;

template <class Arrays>
struct Member {
  const char* name;
  Array Arrays::* array;
  Array (Arrays::*states)[kMostStates] = nullptr;
  Array (Arrays::*own)[kMostOwn] = nullptr;

  constexpr bool is_list() const { return states || own; }
  constexpr int size() const { return states ? kMostStates : own ? kMostOwn : 1; }
  Array& at(Arrays& arrays, int number) const {
    return states ? (arrays.*states)[number] : own ? (arrays.*own)[number] : arrays.*array;
  }
};

constexpr Member<ForwardArrays> kForwardInputs[] = {
    {"source", &ForwardArrays::source},
    {"recurrent_weight", &ForwardArrays::recurrent_weight},
    {"input_weight", &ForwardArrays::input_weight},
    {"bias", &ForwardArrays::bias},
    {"mask", &ForwardArrays::mask},
    {"resets", &ForwardArrays::resets},
    {"initial", nullptr, &ForwardArrays::initial},
    {"own", nullptr, nullptr, &ForwardArrays::own},
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
    {"own", nullptr, nullptr, &BackwardArrays::own},
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
    {"own", nullptr, nullptr, &BackwardArrays::d_own},
};

// The place of the array of that name, or -1.
template <class Arrays, std::size_t Count>
constexpr int place_of(const Member<Arrays> (&members)[Count], std::string_view name) {
  const std::size_t dot = name.find('.');
  const std::string_view first = name.substr(0, dot);
  const bool numbered = dot != std::string_view::npos;
  int number = 0;
  for (std::size_t i = dot + 1; numbered && i < name.size(); ++i) {
    if (name[i] < '0' || name[i] > '9' || number > kMostListed) return -1;
    number = 10 * number + (name[i] - '0');
  }
  if (numbered && dot + 1 == name.size()) return -1;
  for (std::size_t i = 0; i < Count; ++i)
    if (first == members[i].name && members[i].is_list() == numbered && number < members[i].size())
      return static_cast<int>(i) * kMostListed + number;
  return -1;
}
template <class Arrays, std::size_t Count>
Array& array_at(Arrays& arrays, const Member<Arrays> (&members)[Count], int place) {
  return members[place / kMostListed].at(arrays, place % kMostListed);
}

// Whether it is one of the states between calls, [N,X], which may have an axis of one in front.
constexpr bool is_between_calls(std::string_view place) {
  return place.starts_with("initial.") || place.starts_with("last.");
}

}  // namespace zstate
