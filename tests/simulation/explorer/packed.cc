#include "tests/simulation/explorer/packed.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace eplb::explorer {
namespace {

constexpr int kCoreBits = 26;
constexpr int kStoredBits = 14;
constexpr int kCellBits = 21;
constexpr int kNumbersAt = kCoreBits + kStoredBits;
constexpr int kLeftAt = kNumbersAt + 2;  // behind the chunks
constexpr uint64_t kLeftBits = 10;

constexpr uint64_t Mask(uint64_t bits) { return (uint64_t{1} << bits) - 1; }

bool Fits(uint64_t size, int bits) { return size <= uint64_t{1} << bits; }

}  // namespace

Packed Pack(const World& world) {
  const Bounds& left = world.left;
  const auto cells = [](const std::array<uint32_t, kRanks>& ids) {
    return uint64_t{ids[0]} | uint64_t{ids[1]} << kCellBits | uint64_t{ids[2]} << (2 * kCellBits);
  };
  const auto numbers = static_cast<uint64_t>(
      left.chunks | left.cancels << 2 | left.runs << 3 | left.crashes << 4 | left.unknown << 5 |
      left.transfers << 6 | left.faults << 7 | left.beside << 9 | left.losses << 10 |
      left.replaced << 11 | (world.hung ? 1 : 0) << 12 | world.committed << 13);
  return {uint64_t{world.core} | uint64_t{world.stored} << kCoreBits | numbers << kNumbersAt,
          cells(world.cells[0]), cells(world.cells[1])};
}

World Unpack(const Packed& packed, const Bounds& bounds) {
  World world;
  world.core = packed[0] & Mask(kCoreBits);
  world.stored = packed[0] >> kCoreBits & Mask(kStoredBits);
  const auto numbers = packed[0] >> kNumbersAt;
  world.left = {.chunks = static_cast<int>(numbers & 3),
                .cancels = static_cast<int>(numbers >> 2 & 1),
                .runs = static_cast<int>(numbers >> 3 & 1),
                .beside = static_cast<int>(numbers >> 9 & 1),
                .crashes = static_cast<int>(numbers >> 4 & 1),
                .losses = static_cast<int>(numbers >> 10 & 1),
                .unknown = static_cast<int>(numbers >> 5 & 1),
                .transfers = static_cast<int>(numbers >> 6 & 1),
                .faults = static_cast<int>(numbers >> 7 & 3),
                .replaced = static_cast<int>(numbers >> 11 & 1),
                .cuts = bounds.cuts,
                .disorder = bounds.disorder};
  world.hung = (numbers >> 12 & 1) != 0;
  world.committed = static_cast<int64_t>(numbers >> 13);
  for (int run = 0; run < kRuns; ++run) {
    for (int rank = 0; rank < kRanks; ++rank) {
      world.cells[run][rank] = packed[1 + run] >> (kCellBits * rank) & Mask(kCellBits);
    }
  }
  return world;
}

uint64_t LeftBitsOf(const Packed& packed) { return packed[0] >> kLeftAt & Mask(kLeftBits); }

std::string WhyNotPacked(const Model& model) {
  const auto too_many = [](const char* what, uint64_t size, int bits) {
    return absl::StrCat("the explorer has no room for ", size, " states of ", what, ", but for ",
                        uint64_t{1} << bits);
  };
  if (!Fits(model.cores().size(), kCoreBits)) {
    return too_many("the core", model.cores().size(), kCoreBits);
  }
  if (!Fits(model.num_stores(), kStoredBits)) {
    return too_many("the store", model.num_stores(), kStoredBits);
  }
  if (!Fits(model.ranks().size(), kCellBits)) {
    return too_many("a rank", model.ranks().size(), kCellBits);
  }
  return "";
}

std::string WhyNotPacked(const World& start) {
  const World again = Unpack(Pack(start), start.left);
  const auto numbers = [](const Bounds& left) {
    return std::array{left.chunks, left.cancels, left.runs,      left.beside, left.crashes,
                      left.losses, left.unknown, left.transfers, left.faults, left.replaced};
  };
  return numbers(again.left) == numbers(start.left)
             ? ""
             : "bounds are at most 3 chunks, 3 faults, and 1 of everything else";
}

}  // namespace eplb::explorer
