#include "cuda/checksum.h"

#include <bit>
#include <cstring>

#include "cuda/kernels/checksum_body.h"

namespace eplb::cuda {
namespace {

static_assert(std::endian::native == std::endian::little, "lanes are little-endian");

constexpr size_t kLane = kChecksumLaneBytes;

uint64_t LoadLane(const std::byte* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, kLane);
  return word;
}

}  // namespace

uint64_t ChecksumOnHost(std::span<const std::byte> bytes) {
  const size_t num_lanes = bytes.size() / kLane;
  // Two sums, so that one lane's multiplications do not wait for the other's.
  uint64_t even = ChecksumLength(bytes.size());
  uint64_t odd = 0;
  size_t lane = 0;
  for (; lane + 1 < num_lanes; lane += 2) {
    even += ChecksumLane(LoadLane(bytes.data() + lane * kLane), lane);
    odd += ChecksumLane(LoadLane(bytes.data() + (lane + 1) * kLane), lane + 1);
  }
  if (lane < num_lanes) even += ChecksumLane(LoadLane(bytes.data() + lane * kLane), lane);
  if (const size_t tail = bytes.size() % kLane; tail != 0) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + num_lanes * kLane, tail);
    odd += ChecksumLane(word, num_lanes);
  }
  return even + odd;
}

}  // namespace eplb::cuda
