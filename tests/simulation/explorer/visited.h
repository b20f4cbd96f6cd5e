// The set of states that were met, each kept whole: no state is taken for another one.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace eplb::explorer {

using Packed = std::array<uint64_t, 3>;

// memory: 24 bytes a state and 4 to 8 of table.
class Visited {
 public:
  Visited() : table_(uint64_t{1} << 16, kEmpty) {}

  // The state's index, from 0 in the order of adding, and whether it is new.
  std::pair<uint32_t, bool> Add(const Packed& state) {
    uint64_t at = Hash(state) & (table_.size() - 1);
    while (table_[at] != kEmpty) {
      if (Equal(states_[table_[at]], state)) return {table_[at], false};
      at = (at + 1) & (table_.size() - 1);
    }
    const auto index = static_cast<uint32_t>(states_.size());
    table_[at] = index;
    states_.push_back(state);
    if (states_.size() * 4 > table_.size() * 3) Grow();
    return {index, true};
  }

  const Packed& operator[](uint32_t index) const { return states_[index]; }
  size_t size() const { return states_.size(); }

 private:
  static constexpr uint32_t kEmpty = 0xffffffff;

  static bool Equal(const Packed& a, const Packed& b) {
    return ((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2])) == 0;
  }

  static uint64_t Hash(const Packed& state) {
    const uint64_t hash = state[0] * 0x9e3779b97f4a7c15 ^
                          std::rotl(state[1] * 0xbf58476d1ce4e5b9, 21) ^
                          std::rotl(state[2] * 0x94d049bb133111eb, 43);
    const uint64_t mixed = (hash ^ hash >> 32) * 0xd6e8feb86659fd93;
    return mixed ^ mixed >> 29;
  }

  void Grow() {
    std::vector<uint32_t> table(table_.size() * 2, kEmpty);
    for (uint32_t index = 0; index < states_.size(); ++index) {
      uint64_t at = Hash(states_[index]) & (table.size() - 1);
      while (table[at] != kEmpty) at = (at + 1) & (table.size() - 1);
      table[at] = index;
    }
    table_ = std::move(table);
  }

  std::vector<Packed> states_;
  std::vector<uint32_t> table_;  // indexes, by hash
};

}  // namespace eplb::explorer
