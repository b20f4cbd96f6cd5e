#include "placement/policies/torch_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

namespace eplb {
namespace {

constexpr size_t kLanes = 8;          // floats of one AVX2 vector
constexpr size_t kAccumulators = 4;   // vectors added side by side
constexpr size_t kCascadeLevels = 4;  // of the cascade
constexpr size_t kBlock = kLanes * kAccumulators;

using Block = std::array<float, kBlock>;

void Add(Block& to, const float* from) {
  for (size_t i = 0; i < kBlock; ++i) to[i] += from[i];
}

// Sums num_blocks consecutive blocks element by element. Every 2^power blocks level 0 is emptied
// into level 1, every 2^(2 power) blocks level 1 into level 2, and so on, so that small addends
// meet small sums.
Block CascadeSum(const float* row, size_t num_blocks) {
  const size_t ceil_log2 =
      num_blocks <= 2 ? 1 : static_cast<size_t>(std::bit_width(num_blocks - 1));
  const size_t power = std::max<size_t>(4, ceil_log2 / kCascadeLevels);
  const size_t mask = (size_t{1} << power) - 1;
  std::array<Block, kCascadeLevels> levels{};
  for (size_t i = 0; i < num_blocks;) {
    Add(levels[0], row + i * kBlock);
    ++i;
    if ((i & mask) != 0) continue;
    for (size_t level = 1; level < kCascadeLevels; ++level) {
      Add(levels[level], levels[level - 1].data());
      levels[level - 1].fill(0);
      if ((i & (mask << (level * power))) != 0) break;
    }
  }
  for (size_t level = 1; level < kCascadeLevels; ++level) Add(levels[0], levels[level].data());
  return levels[0];
}

// Rows shorter than a vector: four scalar accumulators, the rest goes to the first.
float ShortSum(std::span<const float> row) {
  std::array<float, kAccumulators> sums{};
  const size_t even = row.size() / kAccumulators * kAccumulators;
  for (size_t i = 0; i < even; ++i) sums[i % kAccumulators] += row[i];
  for (size_t i = even; i < row.size(); ++i) sums[0] += row[i];
  return ((sums[0] + sums[1]) + sums[2]) + sums[3];
}

}  // namespace

float TorchSum(std::span<const float> row) {
  if (row.size() < kLanes) return ShortSum(row);
  const size_t num_blocks = row.size() / kBlock;
  Block sums = CascadeSum(row.data(), num_blocks);
  // Whole vectors after the last block go to the first accumulator, lane by lane.
  const size_t whole = row.size() / kLanes * kLanes;
  for (size_t i = num_blocks * kBlock; i < whole; ++i) sums[i % kLanes] += row[i];
  for (size_t i = kLanes; i < kBlock; ++i) sums[i % kLanes] += sums[i];
  float sum = 0;
  for (size_t i = whole; i < row.size(); ++i) sum += row[i];
  for (size_t lane = 0; lane < kLanes; ++lane) sum += sums[lane];
  return sum;
}

}  // namespace eplb
