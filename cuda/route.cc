#include "cuda/route.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb::cuda {
namespace {

constexpr uint32_t kLastThreshold = std::numeric_limits<uint32_t>::max();
constexpr double kDraws = 4294967296.0;  // 2^32

absl::Status CheckShares(const RouteLayer& layer) {
  const std::span<const double> shares = layer.replica_share;
  if (shares.empty()) return absl::OkStatus();
  if (shares.size() != layer.physical_to_logical.size()) {
    return InvalidInput("layer has ", layer.physical_to_logical.size(), " slots and ",
                        shares.size(), " shares");
  }
  for (size_t slot = 0; slot < shares.size(); ++slot) {
    if (!std::isfinite(shares[slot]) || shares[slot] < 0) {
      return InvalidInput("share of slot ", slot, " is ", shares[slot],
                          ", expected >= 0 and finite");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLayer(const RouteLayer& layer) {
  const auto num_slots = static_cast<int64_t>(layer.physical_to_logical.size());
  if (layer.num_experts < 1) {
    return InvalidInput("route table of ", layer.num_experts, " experts, expected >= 1");
  }
  if (layer.first_local_slot < 0 || layer.num_local_slots < 0 ||
      int64_t{layer.first_local_slot} + layer.num_local_slots > num_slots) {
    return InvalidInput(layer.num_local_slots, " local slots from slot ", layer.first_local_slot,
                        " on are not all among ", num_slots, " slots");
  }
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    const int32_t expert = layer.physical_to_logical[static_cast<size_t>(slot)];
    if (expert < -1 || expert >= layer.num_experts) {
      return InvalidInput("slot ", slot, " holds expert ", expert, ", expected -1..",
                          layer.num_experts - 1);
    }
  }
  return CheckShares(layer);
}

double ShareOf(const RouteLayer& layer, int32_t slot) {
  return layer.replica_share.empty() ? 1 : layer.replica_share[static_cast<size_t>(slot)];
}

std::vector<std::vector<int32_t>> ReplicasByExpert(const RouteLayer& layer) {
  std::vector<std::vector<int32_t>> replicas(static_cast<size_t>(layer.num_experts));
  for (size_t slot = 0; slot < layer.physical_to_logical.size(); ++slot) {
    const int32_t expert = layer.physical_to_logical[slot];
    if (expert >= 0) replicas[static_cast<size_t>(expert)].push_back(static_cast<int32_t>(slot));
  }
  return replicas;
}

// Returns the replicas of an expert that its tokens may use, by the rule of MakeRouteTable.
std::vector<int32_t> CandidatesAmong(const RouteLayer& layer, std::vector<int32_t> replicas) {
  const auto has_share = [&](int32_t slot) { return ShareOf(layer, slot) > 0; };
  const auto is_local = [&](int32_t slot) {
    return slot >= layer.first_local_slot && slot - layer.first_local_slot < layer.num_local_slots;
  };
  if (std::ranges::any_of(replicas, has_share)) {
    std::erase_if(replicas, [&](int32_t slot) { return !has_share(slot); });
  }
  if (std::ranges::any_of(replicas, is_local)) {
    std::erase_if(replicas, [&](int32_t slot) { return !is_local(slot); });
  }
  return replicas;
}

// thresholds: [candidates]. Rounded up: with equal shares a draw falls as draw * n / 2^32 says.
void WriteThresholds(const RouteLayer& layer, std::span<const int32_t> candidates,
                     std::span<uint32_t> thresholds) {
  std::vector<double> shares(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) shares[i] = ShareOf(layer, candidates[i]);
  if (std::equal(shares.begin() + 1, shares.end(), shares.begin())) {
    std::ranges::fill(shares, 1);  // sums are exact then; also where all are 0
  }
  // A sum of the largest doubles is infinite.
  const double largest = *std::ranges::max_element(shares);
  double sum = 0;
  for (double& share : shares) sum += share /= largest;
  double up_to_here = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    up_to_here += shares[i];
    const double threshold = std::ceil(kDraws * up_to_here / sum);
    thresholds[i] = threshold < kDraws ? static_cast<uint32_t>(threshold) : kLastThreshold;
  }
}

template <class ExpertId>
void RouteAll(const RouteArgs& args) {
  const TokenDivider divider = MakeTokenDivider(args.choices.top_k);
  const TableInMemory table(args);
  for (uint32_t index = 0; index < NumChoices(args.choices); ++index) {
    const int32_t bin = RouteChoice<ExpertId>(args, divider, table, index);
    if (args.choices.counts == nullptr || bin > OutOfRangeBin(args.choices)) continue;
    ++*CountCell(args.choices, bin);
  }
}

}  // namespace

RouteTable HostRouteTable::View() const {
  return {.candidates = candidates.data(),
          .first_candidate = first_candidate.data(),
          .thresholds = thresholds.data(),
          .num_slots = static_cast<int32_t>(candidates.size())};
}

absl::StatusOr<HostRouteTable> MakeRouteTable(const RouteLayer& layer) {
  EPLB_RETURN_IF_ERROR(CheckLayer(layer));
  const size_t num_slots = layer.physical_to_logical.size();
  HostRouteTable table{.candidates = std::vector<int32_t>(num_slots, kNoSlot),
                       .first_candidate = {0},
                       .thresholds = std::vector<uint32_t>(num_slots, kLastThreshold)};
  size_t end = 0;  // end of the candidates so far
  for (std::vector<int32_t>& replicas : ReplicasByExpert(layer)) {
    if (replicas.empty()) {
      return InvalidInput("expert ", table.first_candidate.size() - 1, " is in no slot");
    }
    const std::vector<int32_t> candidates = CandidatesAmong(layer, std::move(replicas));
    std::copy(candidates.begin(), candidates.end(), &table.candidates[end]);
    WriteThresholds(layer, candidates, std::span(table.thresholds).subspan(end, candidates.size()));
    end += candidates.size();
    table.first_candidate.push_back(static_cast<int32_t>(end));
  }
  return table;
}

absl::Status CheckRouteArgs(const RouteArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckChoices(args.choices));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  if (args.table.candidates == nullptr || args.table.first_candidate == nullptr ||
      args.slots == nullptr) {
    return InvalidInput("route of ", args.choices.num_tokens,
                        " tokens needs candidates, first_candidate and slots, one of them is null");
  }
  if (args.table.num_slots < 1) {
    return InvalidInput("route by a table of ", args.table.num_slots, " slots, expected >= 1");
  }
  if ((args.choices.counts == nullptr) != (args.choices.out_of_range == nullptr)) {
    return InvalidInput("route has one of counts and out_of_range, expected both or neither");
  }
  return absl::OkStatus();
}

int32_t PackedTableBytes(int32_t num_experts, int32_t num_slots) {
  const int64_t bytes = 2 * int64_t{HistogramBytes(num_experts)} +
                        (int64_t{num_slots} + 1) * static_cast<int64_t>(sizeof(int16_t));
  return bytes <= kMaxSharedBytes && HistogramBytes(num_experts) > 0 ? static_cast<int32_t>(bytes)
                                                                     : 0;
}

absl::Status RouteOnHost(const RouteArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckRouteArgs(args));
  if (args.choices.id_type == ExpertIdType::kInt32) {
    RouteAll<int32_t>(args);
  } else {
    RouteAll<int64_t>(args);
  }
  return absl::OkStatus();
}

}  // namespace eplb::cuda
