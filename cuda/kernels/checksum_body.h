// The body of the row checksum: what one 8-byte lane adds to the sum.
#pragma once

#include <cstdint>

#include "cuda/kernels/aligned_access.h"

namespace eplb::cuda {

inline constexpr int64_t kChecksumLaneBytes = 8;

// A bijection of 64 bits in which every input bit moves about half of the output bits.
// source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", SplitMix64.
EPLB_HOST_DEVICE inline uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Mix64 at half of its cost on a GPU, whose registers have 32 bits: a shift by 32 is free there,
// one by another number takes two instructions. The first shift is by 29. A shift by 32 would
// cancel a change that both halves share, such as one faulty line of a bus in two floats, in one
// half. Then only one round would mix it. A bijection, too.
EPLB_HOST_DEVICE inline uint64_t FastMix64(uint64_t x) {
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 32) * 0x94d049bb133111eb;
  return x ^ x >> 32;
}

// `word` is lane `index` of the row, little-endian, the row's tail padded with zero bytes. Lanes
// are added modulo 2^64, so any order and any grid give the same sum, but a lane elsewhere does
// not: no two indices have the same multiple of an odd number. Any change of one lane changes the
// sum. Ranks compare these sums while they run, and all run one version; none is stored.
EPLB_HOST_DEVICE inline uint64_t ChecksumLane(uint64_t word, uint64_t index) {
  return FastMix64(word ^ index * 0x9e3779b97f4a7c15);
}

// Part of a row's length, added once, so that rows that differ only in zeros at the tail differ.
EPLB_HOST_DEVICE inline uint64_t ChecksumLength(uint64_t num_bytes) {
  return Mix64(~num_bytes);  // ~: also no bytes add something
}

}  // namespace eplb::cuda
