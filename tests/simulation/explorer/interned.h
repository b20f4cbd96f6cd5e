// Values that are told apart by their bytes, numbered in the order in which they are met.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace eplb::explorer {

template <class Value>
class Interned {
 public:
  uint32_t Add(std::string bytes, Value value) {
    const auto [found, is_new] =
        ids_.try_emplace(std::move(bytes), static_cast<uint32_t>(values_.size()));
    if (is_new) values_.push_back(std::move(value));
    return found->second;
  }
  const Value& operator[](uint32_t id) const { return values_[id]; }
  size_t size() const { return values_.size(); }

 private:
  absl::flat_hash_map<std::string, uint32_t> ids_;
  std::deque<Value> values_;  // a reference stays while others are added
};

}  // namespace eplb::explorer
