#include "tests/support/reference_deepseek.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace eplb::testing {
namespace {

bool ComesBefore(float a, float b) { return (std::isnan(a) && !std::isnan(b)) || a > b; }

// Every step-th value from `first` on.
std::vector<float> Strand(const std::vector<float>& values, size_t first, size_t step) {
  std::vector<float> strand;
  for (size_t i = first; i < values.size(); i += step) strand.push_back(values[i]);
  return strand;
}

// One strand through the cascade. levels[k] holds what was flushed out of levels[k-1]; the number
// of values seen, written in base `block`, says by its trailing zeros how many levels are flushed.
float CascadeOfStrand(const std::vector<float>& strand) {
  size_t log2 = 1;
  while ((size_t{1} << log2) < strand.size()) ++log2;
  size_t block = 16;
  for (size_t power = 4; power < log2 / 4; ++power) block *= 2;
  float levels[4] = {0, 0, 0, 0};
  for (size_t seen = 1; seen <= strand.size(); ++seen) {
    levels[0] += strand[seen - 1];
    size_t rest = seen;
    for (int level = 0; level < 3 && rest % block == 0; ++level) {
      levels[level + 1] += levels[level];
      levels[level] = 0;
      rest /= block;
    }
  }
  return ((levels[0] + levels[1]) + levels[2]) + levels[3];
}

struct Packing {
  std::vector<int> pack;
  std::vector<int> rank;
};

Packing Pack(const std::vector<float>& loads, int packs, bool stable) {
  const int items = static_cast<int>(loads.size());
  const int per_pack = items / packs;
  Packing result{std::vector<int>(loads.size()), std::vector<int>(loads.size(), 0)};
  if (per_pack == 1) {
    for (int i = 0; i < items; ++i) result.pack[i] = i;
    return result;
  }
  std::vector<std::vector<int>> contents(packs);
  std::vector<float> weights(packs, 0.0F);
  for (const int item : ReferenceOrder(loads, stable)) {
    std::vector<int> open;
    for (int pack = 0; pack < packs; ++pack) {
      if (static_cast<int>(contents[pack].size()) < per_pack) open.push_back(pack);
    }
    int chosen = open.front();
    for (const int pack : open) {
      if (weights[pack] < weights[chosen]) chosen = pack;
    }
    result.pack[item] = chosen;
    result.rank[item] = static_cast<int>(contents[chosen].size());
    contents[chosen].push_back(item);
    weights[chosen] += loads[item];
  }
  return result;
}

struct Replica {
  int expert;
  int rank;
};

std::vector<Replica> Replicate(const std::vector<float>& weight, int slots) {
  std::vector<Replica> replicas;
  replicas.reserve(slots);
  std::vector<int> count(weight.size(), 1);
  for (int expert = 0; expert < static_cast<int>(weight.size()); ++expert) {
    replicas.push_back({expert, 0});
  }
  while (static_cast<int>(replicas.size()) < slots) {
    std::vector<float> shares;
    for (size_t i = 0; i < weight.size(); ++i) {
      shares.push_back(weight[i] / static_cast<float>(count[i]));
    }
    int best = 0;
    for (int i = 1; i < static_cast<int>(shares.size()); ++i) {
      if (ComesBefore(shares[i], shares[best])) best = i;
    }
    replicas.push_back({best, count[best]++});
  }
  return replicas;
}

// Experts in the order of nodes: expert groups packed on nodes, each group's experts in sequence.
std::vector<int> NodeOrder(const std::vector<float>& weight, const ReferenceShape& shape,
                           bool stable) {
  const int group_size = static_cast<int>(weight.size()) / shape.groups;
  std::vector<float> sums;
  for (int group = 0; group < shape.groups; ++group) {
    const auto first = weight.begin() + ptrdiff_t{group} * group_size;
    sums.push_back(ReferenceSum(std::vector<float>(first, first + group_size)));
  }
  const Packing packing = Pack(sums, shape.nodes, stable);
  std::vector<int> order;
  for (int node = 0; node < shape.nodes; ++node) {
    for (int rank = 0; rank < shape.groups / shape.nodes; ++rank) {
      for (int group = 0; group < shape.groups; ++group) {
        if (packing.pack[group] != node || packing.rank[group] != rank) continue;
        for (int i = 0; i < group_size; ++i) order.push_back(group * group_size + i);
      }
    }
  }
  return order;
}

bool Refused(int experts, const ReferenceShape& s) {
  return experts % s.groups != 0 || s.gpus % s.nodes != 0 || s.slots % s.gpus != 0 ||
         s.slots < experts;
}

}  // namespace

std::vector<int> ReferenceOrder(const std::vector<float>& values, bool stable) {
  std::vector<std::pair<float, int>> pairs;
  for (size_t i = 0; i < values.size(); ++i) pairs.emplace_back(values[i], static_cast<int>(i));
  const auto before = [](const auto& a, const auto& b) { return ComesBefore(a.first, b.first); };
  if (!stable) std::sort(pairs.begin(), pairs.end(), before);
  std::vector<int> order;
  if (!stable) {
    for (const auto& pair : pairs) order.push_back(pair.second);
    return order;
  }
  while (!pairs.empty()) {  // take the first of the largest, again and again
    const auto first = std::min_element(pairs.begin(), pairs.end(), before);
    order.push_back(first->second);
    pairs.erase(first);
  }
  return order;
}

float ReferenceSum(const std::vector<float>& row) {
  const size_t n = row.size();
  if (n < 8) {
    float sums[4] = {0, 0, 0, 0};
    for (size_t i = 0; i < n; ++i) sums[i < n / 4 * 4 ? i % 4 : 0] += row[i];
    return ((sums[0] + sums[1]) + sums[2]) + sums[3];
  }
  const std::vector<float> blocks(row.begin(), row.begin() + static_cast<ptrdiff_t>(n / 32 * 32));
  const std::vector<float> vectors(row.begin() + static_cast<ptrdiff_t>(n / 32 * 32),
                                   row.begin() + static_cast<ptrdiff_t>(n / 8 * 8));
  float sum = 0;
  for (size_t i = n / 8 * 8; i < n; ++i) sum += row[i];
  for (size_t lane = 0; lane < 8; ++lane) {
    float accumulators[4];
    for (size_t k = 0; k < 4; ++k) {
      accumulators[k] = CascadeOfStrand(Strand(blocks, 8 * k + lane, 32));
    }
    for (const float value : Strand(vectors, lane, 8)) accumulators[0] += value;
    sum += ((accumulators[0] + accumulators[1]) + accumulators[2]) + accumulators[3];
  }
  return sum;
}

std::optional<ReferenceLayer> ReferenceRebalance(const std::vector<float>& weight,
                                                 ReferenceShape shape, bool stable) {
  const int experts = static_cast<int>(weight.size());
  if (shape.groups % shape.nodes != 0) shape.groups = shape.nodes = 1;
  if (Refused(experts, shape)) return std::nullopt;
  const std::vector<int> node_order = NodeOrder(weight, shape, stable);
  const int node_experts = experts / shape.nodes;
  const int node_slots = shape.slots / shape.nodes;
  ReferenceLayer layer{std::vector<int>(shape.slots), std::vector<int>(shape.slots),
                       std::vector<int>(weight.size(), 0)};
  for (int node = 0; node < shape.nodes; ++node) {
    const auto first = node_order.begin() + ptrdiff_t{node} * node_experts;
    const std::vector<int> held(first, first + node_experts);
    std::vector<float> held_weight;
    held_weight.reserve(held.size());
    for (const int expert : held) held_weight.push_back(weight[expert]);
    const std::vector<Replica> replicas = Replicate(held_weight, node_slots);
    for (const Replica& replica : replicas) ++layer.counts[held[replica.expert]];
    std::vector<float> loads;
    loads.reserve(replicas.size());
    for (const Replica& replica : replicas) {
      const int expert = held[replica.expert];
      loads.push_back(weight[expert] / static_cast<float>(layer.counts[expert]));
    }
    const Packing packing = Pack(loads, shape.gpus / shape.nodes, stable);
    for (int i = 0; i < node_slots; ++i) {
      const int slot =
          node * node_slots + packing.pack[i] * (shape.slots / shape.gpus) + packing.rank[i];
      layer.physical_to_logical[slot] = held[replicas[i].expert];
      layer.replica_rank[slot] = replicas[i].rank;
    }
  }
  return layer;
}

}  // namespace eplb::testing
