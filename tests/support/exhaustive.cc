#include "tests/support/exhaustive.h"

#include <algorithm>
#include <limits>

namespace eplb {
namespace {

// All words of `length` letters over 0..num_letters-1, in rising order.
std::vector<std::vector<int32_t>> AllWords(int32_t num_letters, int32_t length) {
  std::vector<std::vector<int32_t>> words = {{}};
  for (int32_t position = 0; position < length; ++position) {
    std::vector<std::vector<int32_t>> longer;
    for (const std::vector<int32_t>& word : words) {
      for (int32_t letter = 0; letter < num_letters; ++letter) {
        longer.push_back(word);
        longer.back().push_back(letter);
      }
    }
    words = std::move(longer);
  }
  return words;
}

}  // namespace

std::vector<std::vector<int32_t>> AllPlacements(const SmallWorld& world) {
  std::vector<std::vector<int32_t>> words =
      AllWords(world.num_experts, world.num_gpus * world.slots_per_gpu);
  std::erase_if(words, [&](const std::vector<int32_t>& word) {
    for (int32_t expert = 0; expert < world.num_experts; ++expert) {
      if (std::find(word.begin(), word.end(), expert) == word.end()) return true;
    }
    return false;
  });
  return words;
}

double MaxGpuLoad(const SmallWorld& world, std::span<const int32_t> physical_to_logical,
                  std::span<const int64_t> load) {
  std::vector<double> replicas(load.size());
  for (const int32_t expert : physical_to_logical) replicas[expert] += 1;
  double max = 0;
  for (int32_t gpu = 0; gpu < world.num_gpus; ++gpu) {
    double sum = 0;
    for (int32_t i = 0; i < world.slots_per_gpu; ++i) {
      const int32_t expert = physical_to_logical[gpu * world.slots_per_gpu + i];
      sum += static_cast<double>(load[expert]) / replicas[expert];
    }
    max = std::max(max, sum);
  }
  return max;
}

double BestMaxGpuLoad(const SmallWorld& world, const std::vector<std::vector<int32_t>>& placements,
                      std::span<const int64_t> load) {
  double best = std::numeric_limits<double>::infinity();
  for (const std::vector<int32_t>& placement : placements) {
    best = std::min(best, MaxGpuLoad(world, placement, load));
  }
  return best;
}

std::vector<std::vector<int64_t>> AllLoads(const SmallWorld& world,
                                           std::span<const int64_t> values) {
  std::vector<std::vector<int64_t>> loads;
  for (const std::vector<int32_t>& word :
       AllWords(static_cast<int32_t>(values.size()), world.num_experts)) {
    loads.emplace_back();
    for (const int32_t letter : word) loads.back().push_back(values[letter]);
  }
  return loads;
}

}  // namespace eplb
