// Rows of all sizes and alignments in two arenas with red zones, and what copying them must give:
// for the host and the device test.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <span>
#include <vector>

#include "cuda/checksum.h"
#include "cuda/kernels/copy_body.h"

namespace eplb::cuda::testing {

inline std::vector<std::byte> RandomBytes(size_t size, std::mt19937_64& random) {
  std::vector<std::byte> bytes(size);
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), size - at));
  }
  return bytes;
}

// memcmp: these tests handle megabytes in debug builds.
inline bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

struct CopyCase {
  static constexpr int64_t kNoDestination = -1;
  struct Row {
    int64_t source = 0;       // offset in the arena
    int64_t destination = 0;  // offset, or kNoDestination
    int64_t num_bytes = 0;
  };

  std::vector<std::byte> sources;
  std::vector<std::byte> destinations;  // before the copy: random, so that red zones are too
  std::vector<Row> rows;

  // The rows where the arenas lie at these addresses, which must be 16-byte aligned.
  std::vector<RowCopy> At(const std::byte* sources_at, std::byte* destinations_at) const {
    std::vector<RowCopy> result;
    result.reserve(rows.size());
    for (const Row& row : rows) {
      result.push_back({.source = sources_at + row.source,
                        .destination = row.destination == kNoDestination
                                           ? nullptr
                                           : destinations_at + row.destination,
                        .num_bytes = row.num_bytes});
    }
    return result;
  }

  std::vector<std::byte> ExpectedDestinations() const {
    std::vector<std::byte> expected = destinations;
    for (const Row& row : rows) {
      if (row.destination == kNoDestination || row.num_bytes == 0) continue;
      std::memcpy(expected.data() + row.destination, sources.data() + row.source,
                  static_cast<size_t>(row.num_bytes));
    }
    return expected;
  }

  std::vector<uint64_t> ExpectedChecksums() const {
    std::vector<uint64_t> expected;
    expected.reserve(rows.size());
    for (const Row& row : rows) {
      expected.push_back(ChecksumOnHost(std::span(sources).subspan(
          static_cast<size_t>(row.source), static_cast<size_t>(row.num_bytes))));
    }
    return expected;
  }
};

// Sizes around a lane, a unit, two units and a tile, and `large`, of many tiles; each aligned, with
// source, destination or both misaligned, also by as much, and without a destination; in random
// order.
inline CopyCase MakeCopyCase(uint64_t seed, int64_t large = int64_t{1} << 20) {
  constexpr int64_t kRedZone = 64;
  struct Misalignment {
    int64_t source;
    int64_t destination;
  };
  constexpr int64_t kNone = CopyCase::kNoDestination;
  // Aligned: vectors. Off by 8 or 4 bytes alike: lanes. Off by equal amounts: vectors after the
  // first bytes, which begin within a lane or between two.
  const std::vector<Misalignment> misalignments{{0, 0},  {1, 0},     {0, 3},     {8, 0},
                                                {4, 8},  {8, 8},     {5, 5},     {12, 12},
                                                {5, 11}, {0, kNone}, {3, kNone}, {9, kNone}};
  std::mt19937_64 random(seed);
  CopyCase result;
  int64_t sources = 0;
  int64_t destinations = kRedZone;
  for (const int64_t size : std::initializer_list<int64_t>{
           0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 1000, 65535, 65536, 65537, large, large + 13}) {
    for (const Misalignment& by : misalignments) {
      const bool has_destination = by.destination != kNone;
      result.rows.push_back({.source = sources + by.source,
                             .destination = has_destination ? destinations + by.destination : kNone,
                             .num_bytes = size});
      const int64_t room = (size + kRedZone) / 16 * 16 + kRedZone;
      sources += room;
      if (has_destination) destinations += room;
    }
  }
  std::shuffle(result.rows.begin(), result.rows.end(), random);
  result.sources = RandomBytes(static_cast<size_t>(sources), random);
  result.destinations = RandomBytes(static_cast<size_t>(destinations), random);
  return result;
}

}  // namespace eplb::cuda::testing
