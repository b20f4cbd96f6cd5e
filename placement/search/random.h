// Random numbers of a search, the same on every machine and for every compiler.
#pragma once

#include <cstdint>

namespace eplb {

// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). Threads:
// one at a time.
class SearchRandom {
 public:
  explicit SearchRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15U;
    uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
    return mixed ^ (mixed >> 31);
  }

  // 0 .. limit - 1. REQUIRES: limit >= 1. Not exactly uniform, which no search notices.
  int32_t Below(int32_t limit) {
    return static_cast<int32_t>(((Next() >> 32) * static_cast<uint64_t>(limit)) >> 32);
  }

  // 0 .. 1, without 1.
  double Part() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

}  // namespace eplb
