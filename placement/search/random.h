// Random numbers of a search: the same on every machine and for every compiler.
// Threads: one at a time.
#ifndef EPLB_PLACEMENT_SEARCH_RANDOM_H_
#define EPLB_PLACEMENT_SEARCH_RANDOM_H_

#include <cstdint>

namespace eplb {

// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
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

 private:
  uint64_t state_;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_RANDOM_H_
