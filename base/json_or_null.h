// A value that may be absent, as JSON: null if there is none.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

namespace eplb {

template <class Value>
nlohmann::ordered_json JsonOrNull(const std::optional<Value>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace eplb
