#include "placement/split/source_quotas.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace eplb {
namespace {

size_t Position(int32_t i) { return static_cast<size_t>(i); }

absl::Status Wrong(const SplitBatch& batch, int32_t expert, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", batch.layer.value, ": expert ", expert, " has ", what));
}

absl::Status CheckSizes(const SplitBatch& batch, size_t num_counts, size_t expected, size_t own) {
  const auto num_slots = Position(batch.placement.topology().num_slots());
  if (batch.quotas.size() == num_slots && own == num_slots && num_counts == expected) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "layer ", batch.layer.value, ": ", num_counts, " counts, ", batch.quotas.size(),
      " quotas and ", own, " own ones, expected ", expected, ", ", num_slots, " and ", num_slots));
}

// The tokens of one expert that are still to be given a slot.
struct Rest {
  std::vector<int64_t> tokens;  // [G], by source
  std::vector<int64_t> quotas;  // by slot of the expert
};

// One expert's slots, rising, and what `source` gets of them.
class Transport {
 public:
  Transport(const SplitBatch& batch, int32_t expert, GpuId source, std::span<int64_t> own)
      : topology_(batch.placement.topology()), source_(source), own_(own) {
    const auto slots = batch.placement.ReplicasOf(batch.layer, ExpertId{expert});
    slots_.assign(slots.begin(), slots.end());
    std::sort(slots_.begin(), slots_.end());
    for (const int32_t slot : slots_) rest_.quotas.push_back(batch.quotas[Position(slot)]);
  }

  void SetTokens(std::span<const int64_t> counts, int32_t expert) {
    const auto num_experts = Position(topology_.num_experts());
    rest_.tokens.resize(Position(topology_.num_gpus()));
    for (size_t gpu = 0; gpu < rest_.tokens.size(); ++gpu) {
      rest_.tokens[gpu] = counts[gpu * num_experts + Position(expert)];
    }
  }

  void Run() {
    for (size_t i = 0; i < slots_.size(); ++i) {
      Give(topology_.GpuOf(SlotId{slots_[i]}).value, i);
    }
    size_t first = 0;
    while (first < slots_.size()) {  // slots of a node are neighbours, as its GPUs are
      const NodeId node = NodeOf(first);
      size_t end = first;
      while (end < slots_.size() && NodeOf(end) == node) ++end;
      const int32_t gpus = topology_.num_gpus() / topology_.num_nodes();
      Fill(node.value * gpus, (node.value + 1) * gpus, first, end);
      first = end;
    }
    Fill(0, topology_.num_gpus(), 0, slots_.size());
  }

 private:
  NodeId NodeOf(size_t i) const { return topology_.NodeOf(topology_.GpuOf(SlotId{slots_[i]})); }

  void Give(int32_t gpu, size_t i) {
    const int64_t tokens = std::min(rest_.tokens[Position(gpu)], rest_.quotas[i]);
    rest_.tokens[Position(gpu)] -= tokens;
    rest_.quotas[i] -= tokens;
    if (gpu == source_.value) own_[Position(slots_[i])] += tokens;
  }

  // The north-west corner rule over GPUs begin..end and slots first..last.
  void Fill(int32_t begin, int32_t end, size_t first, size_t last) {
    size_t i = first;
    for (int32_t gpu = begin; gpu < end; ++gpu) {
      while (i < last && rest_.tokens[Position(gpu)] > 0) {
        Give(gpu, i);
        if (rest_.quotas[i] == 0) ++i;
      }
    }
  }

  const Topology& topology_;
  const GpuId source_;
  std::span<int64_t> own_;
  std::vector<int32_t> slots_;
  Rest rest_;
};

// [E], of all sources; row by row, as `counts` lies in memory.
absl::StatusOr<std::vector<int64_t>> TokensOfExperts(const SplitBatch& batch,
                                                     std::span<const int64_t> counts,
                                                     int32_t num_experts) {
  std::vector<int64_t> tokens(Position(num_experts));
  for (size_t row = 0; row < counts.size(); row += tokens.size()) {
    for (size_t expert = 0; expert < tokens.size(); ++expert) {
      const int64_t count = counts[row + expert];
      if (count < 0) {
        return Wrong(batch, static_cast<int32_t>(expert),
                     absl::StrCat(count, " tokens of a source"));
      }
      tokens[expert] += count;
    }
  }
  return tokens;
}

}  // namespace

absl::Status OwnQuotas(const SplitBatch& batch, std::span<const int64_t> counts, GpuId source,
                       std::span<int64_t> own) {
  const Topology& topology = batch.placement.topology();
  const size_t expected = Position(topology.num_gpus()) * Position(topology.num_experts());
  EPLB_RETURN_IF_ERROR(CheckSizes(batch, counts.size(), expected, own.size()));
  if (source.value < 0 || source.value >= topology.num_gpus()) {
    return absl::InvalidArgumentError(
        absl::StrCat("source ", source.value, " is not in 0..", topology.num_gpus() - 1));
  }
  const std::span<const int64_t> mine = counts.subspan(
      Position(source.value) * Position(topology.num_experts()), Position(topology.num_experts()));
  EPLB_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens,
                        TokensOfExperts(batch, counts, topology.num_experts()));
  std::vector<int64_t> result(own.size());
  for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
    const auto slots = batch.placement.ReplicasOf(batch.layer, ExpertId{expert});
    int64_t quotas = 0;
    for (const int32_t slot : slots) quotas += batch.quotas[Position(slot)];
    if (tokens[Position(expert)] != quotas) {
      return Wrong(batch, expert,
                   absl::StrCat(tokens[Position(expert)], " tokens, its quotas sum to ", quotas));
    }
    if (slots.size() == 1) {  // most experts
      result[Position(slots.front())] = mine[Position(expert)];
      continue;
    }
    Transport transport(batch, expert, source, result);
    transport.SetTokens(counts, expert);
    transport.Run();
  }
  std::copy(result.begin(), result.end(), own.begin());
  return absl::OkStatus();
}

absl::Status OwnQuotasByPrefix(const SplitBatch& batch, std::span<const int64_t> before,
                               std::span<const int64_t> mine, std::span<int64_t> own) {
  const auto num_experts = Position(batch.placement.topology().num_experts());
  EPLB_RETURN_IF_ERROR(CheckSizes(batch, before.size(), num_experts, own.size()));
  EPLB_RETURN_IF_ERROR(CheckSizes(batch, mine.size(), num_experts, own.size()));
  std::vector<int64_t> result(own.size());
  for (size_t i = 0; i < num_experts; ++i) {
    const auto expert = static_cast<int32_t>(i);
    int64_t begin = before[i];
    int64_t left = mine[i];
    if (begin < 0 || left < 0) return Wrong(batch, expert, "a negative count");
    for (const int32_t slot : batch.placement.ReplicasOf(batch.layer, ExpertId{expert})) {
      const int64_t quota = batch.quotas[Position(slot)];
      const int64_t skipped = std::min(begin, quota);
      begin -= skipped;
      const int64_t taken = std::min(left, quota - skipped);
      left -= taken;
      result[Position(slot)] = taken;
    }
    if (left > 0 || begin > 0) {
      return Wrong(
          batch, expert,
          absl::StrCat(before[i] + mine[i], " tokens up to this rank, more than its quotas"));
    }
  }
  std::copy(result.begin(), result.end(), own.begin());
  return absl::OkStatus();
}

}  // namespace eplb
