#include "placement/migration_plan.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/edge_colouring.h"

namespace eplb {
namespace {

// Collects the transfers of all layers, then gives the free ones a source.
class Planner {
 public:
  Planner(const Placement& current, const Placement& target, const MigrationOptions& options)
      : current_(current),
        target_(target),
        topology_(target.topology()),
        options_(options),
        queued_(static_cast<size_t>(topology_.num_gpus())),
        newest_(static_cast<size_t>(topology_.num_experts())) {}

  void AddLayer(LayerId layer) {
    for (int32_t gpu = 0; gpu < topology_.num_gpus(); ++gpu) AddGpu(layer, GpuId{gpu});
  }

  // Sources that leave no choice are queued first, so that the free ones know where the queues are
  // long.
  std::vector<Transfer> ChooseSources() && {
    std::vector<Transfer*> free;
    for (Transfer& transfer : needed_) {
      if (transfer.source.value == kUndecided && !TakeOwnCopy(transfer)) {
        free.push_back(&transfer);
      } else if (!transfer.is_local()) {
        ++queued_[static_cast<size_t>(transfer.source.value)];
      }
    }
    for (Transfer* transfer : free) TakeShortestQueue(*transfer);
    return std::move(needed_);
  }

 private:
  static constexpr int32_t kUndecided = -1;

  void AddGpu(LayerId layer, GpuId gpu) {
    const int32_t first = topology_.FirstSlotOf(gpu).value;
    ++destination_;
    for (int32_t value = first; value < first + topology_.SlotsOf(gpu); ++value) {
      const SlotId slot{value};
      const ExpertId expert = target_.ExpertIn(layer, slot);
      if (expert.value < 0) continue;  // nothing arrives at an unusable GPU
      const bool weights = current_.ExpertIn(layer, slot) != expert;
      const bool state = NeedsState(layer, expert, slot, weights);
      if (!weights && !state) continue;
      Transfer& transfer = Needed(layer, expert, gpu);
      if (weights) transfer.weight_slots.push_back(slot);
      if (!state) continue;
      transfer.state_slots.push_back(slot);
      if (options_.state_residency == StateResidency::kWithPrimary) {
        transfer.source_slot = current_.PrimaryOf(layer, expert);
        transfer.source = topology_.GpuOf(transfer.source_slot);
      }
    }
  }

  bool NeedsState(LayerId layer, ExpertId expert, SlotId slot, bool weights_arrive) const {
    if (options_.state_bytes == 0) return false;
    if (options_.state_residency == StateResidency::kEveryReplica) return weights_arrive;
    return target_.PrimaryOf(layer, expert) == slot && current_.PrimaryOf(layer, expert) != slot;
  }

  // The transfer of (layer, expert, destination), made when missing.
  Transfer& Needed(LayerId layer, ExpertId expert, GpuId destination) {
    Newest& newest = newest_[static_cast<size_t>(expert.value)];
    if (newest.destination == destination_) return needed_[newest.index];
    newest = {.destination = destination_, .index = needed_.size()};
    Transfer transfer;
    transfer.layer = layer;
    transfer.expert = expert;
    transfer.destination = destination;
    transfer.source = GpuId{kUndecided};
    return needed_.emplace_back(std::move(transfer));
  }

  bool TakeOwnCopy(Transfer& transfer) {
    return TakeBest(transfer, [&](GpuId gpu) { return gpu == transfer.destination ? 0 : kNever; });
  }

  void TakeShortestQueue(Transfer& transfer) {
    const NodeId node = topology_.NodeOf(transfer.destination);
    TakeBest(transfer, [&](GpuId gpu) {
      const int64_t other_node = topology_.NodeOf(gpu) == node ? 0 : 1;
      return (other_node << 32) + queued_[static_cast<size_t>(gpu.value)];
    });
    ++queued_[static_cast<size_t>(transfer.source.value)];
  }

  static constexpr int64_t kNever = int64_t{1} << 62;

  // Takes the replica with the least rank(GPU), then the lowest slot (so the lowest GPU); false
  // when every rank is kNever.
  template <class Rank>
  bool TakeBest(Transfer& transfer, Rank rank) {
    std::pair<int64_t, int32_t> best{kNever, 0};
    for (const int32_t slot : current_.ReplicasOf(transfer.layer, transfer.expert)) {
      best = std::min(best, {rank(topology_.GpuOf(SlotId{slot})), slot});
    }
    if (best.first == kNever) return false;
    transfer.source_slot = SlotId{best.second};
    transfer.source = topology_.GpuOf(transfer.source_slot);
    return true;
  }

  const Placement& current_;
  const Placement& target_;
  const Topology& topology_;
  const MigrationOptions& options_;
  std::vector<Transfer> needed_;
  std::vector<int64_t> queued_;  // [G], sends so far
  // [E]: the newest transfer of each expert, and which (layer, GPU) it goes to.
  struct Newest {
    int64_t destination = 0;
    size_t index = 0;
  };
  std::vector<Newest> newest_;
  int64_t destination_ = 0;  // number of the (layer, GPU) at work, counted from 1
};

absl::StatusOr<std::vector<LayerId>> CheckedLayers(const Topology& topology,
                                                   std::span<const LayerId> layers) {
  std::vector<LayerId> result(layers.begin(), layers.end());
  for (int32_t layer = 0; layers.empty() && layer < topology.num_layers(); ++layer) {
    result.push_back(LayerId{layer});
  }
  for (size_t i = 0; i < result.size(); ++i) {
    if (result[i].value < 0 || result[i].value >= topology.num_layers()) {
      return InvalidInput("layer ", result[i].value, " is outside 0..", topology.num_layers() - 1);
    }
    if (i > 0 && result[i] <= result[i - 1]) {
      return InvalidInput("layers must rise, layer ", result[i].value, " follows layer ",
                          result[i - 1].value);
    }
  }
  return result;
}

absl::Status AssignRounds(const Topology& topology, MigrationPlan& plan) {
  std::vector<BipartiteEdge> edges;
  edges.reserve(plan.transfers.size());
  for (const Transfer& transfer : plan.transfers) {
    edges.push_back({transfer.source.value, transfer.destination.value});
  }
  EPLB_ASSIGN_OR_RETURN(const EdgeColouring colouring,
                        ColourEdges(edges, topology.num_gpus(), topology.num_gpus()));
  for (size_t i = 0; i < edges.size(); ++i) plan.transfers[i].round = colouring.colours[i];
  std::ranges::sort(plan.transfers, [](const Transfer& a, const Transfer& b) {
    return std::tie(a.round, a.source, a.destination, a.layer, a.expert) <
           std::tie(b.round, b.source, b.destination, b.layer, b.expert);
  });
  return absl::OkStatus();
}

// REQUIRES: transfers of a layer stand together, as ChooseSources leaves them.
int32_t MaxIncoming(const Topology& topology, const std::vector<Transfer>& needed) {
  std::vector<int32_t> incoming(static_cast<size_t>(topology.num_gpus()));
  int32_t most = 0;
  for (size_t i = 0; i < needed.size(); ++i) {
    if (i > 0 && needed[i].layer != needed[i - 1].layer) {
      std::ranges::fill(incoming, 0);
    }
    most = std::max(most, ++incoming[static_cast<size_t>(needed[i].destination.value)]);
  }
  return most;
}

absl::Status CountBytes(const Topology& topology, const MigrationOptions& options,
                        MigrationPlan& plan) {
  for (const Transfer& transfer : plan.transfers) {
    const int64_t weight = transfer.weight_slots.empty() ? 0 : options.weight_bytes;
    const int64_t state = transfer.state_slots.empty() ? 0 : options.state_bytes;
    if (__builtin_add_overflow(plan.link_bytes, weight, &plan.link_bytes) ||
        __builtin_add_overflow(plan.link_bytes, state, &plan.link_bytes)) {
      return InvalidInput("weight_bytes ", options.weight_bytes, " and state_bytes ",
                          options.state_bytes, " sum to more than 2^63-1 over ",
                          plan.transfers.size(), " transfers");
    }
    const bool crosses = topology.NodeOf(transfer.source) != topology.NodeOf(transfer.destination);
    plan.cross_node_transfers += crosses ? 1 : 0;
  }
  return absl::OkStatus();
}

template <class Integer>
void Append(std::string& encoding, Integer number) {
  encoding.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void Append(std::string& encoding, const std::vector<Transfer>& transfers) {
  Append(encoding, static_cast<int64_t>(transfers.size()));
  for (const Transfer& transfer : transfers) {
    for (const int32_t number :
         {transfer.layer.value, transfer.expert.value, transfer.source.value,
          transfer.destination.value, transfer.source_slot.value, transfer.round}) {
      Append(encoding, number);
    }
    for (const std::vector<SlotId>* slots : {&transfer.weight_slots, &transfer.state_slots}) {
      Append(encoding, static_cast<int32_t>(slots->size()));
      for (const SlotId slot : *slots) Append(encoding, slot.value);
    }
  }
}

// Little-endian numbers, every list behind its length, so that no two inputs share an encoding.
// digest.cc asserts the byte order.
std::string EncodingHead(const Placement& current, const Placement& target,
                         const std::vector<LayerId>& layers, const MigrationOptions& options) {
  std::string encoding = "eplb.migration_plan.v1";
  for (const Placement* placement : {&current, &target}) {
    const Digest digest = DigestOf(*placement);
    encoding.append(digest.bytes.begin(), digest.bytes.end());
  }
  Append(encoding, static_cast<int64_t>(layers.size()));
  for (const LayerId layer : layers) Append(encoding, layer.value);
  Append(encoding, options.weight_bytes);
  Append(encoding, options.state_bytes);
  Append(encoding, static_cast<int32_t>(options.state_residency));
  return encoding;
}

// Everything but rounds and the hash; transfers by layer, then destination. layers: as they were
// given, or all.
absl::StatusOr<MigrationPlan> PlanLayers(const Placement& current, const Placement& target,
                                         std::span<const LayerId> layers,
                                         const MigrationOptions& options) {
  const Topology& topology = target.topology();
  EPLB_RETURN_IF_ERROR(CheckSameTopology("current", current.topology(), "target", topology));
  if (options.weight_bytes < 0 || options.state_bytes < 0) {
    return InvalidInput("weight_bytes is ", options.weight_bytes, " and state_bytes is ",
                        options.state_bytes, ", both must be >= 0");
  }
  Planner planner(current, target, options);
  for (const LayerId layer : layers) planner.AddLayer(layer);
  std::vector<Transfer> needed = std::move(planner).ChooseSources();

  MigrationPlan plan;
  plan.max_incoming_per_gpu_and_layer = MaxIncoming(topology, needed);
  for (Transfer& transfer : needed) {
    (transfer.is_local() ? plan.local : plan.transfers).push_back(std::move(transfer));
  }
  std::ranges::sort(plan.local, [](const Transfer& a, const Transfer& b) {
    return std::tie(a.destination, a.layer, a.expert) < std::tie(b.destination, b.layer, b.expert);
  });
  EPLB_RETURN_IF_ERROR(CountBytes(topology, options, plan));
  return plan;
}

}  // namespace

absl::StatusOr<MigrationPlan> PlanTransfers(const Placement& current, const Placement& target,
                                            std::span<const LayerId> layers,
                                            const MigrationOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<LayerId> checked,
                        CheckedLayers(target.topology(), layers));
  return PlanLayers(current, target, checked, options);
}

absl::StatusOr<MigrationPlan> PlanMigration(const Placement& current, const Placement& target,
                                            std::span<const LayerId> layers,
                                            const MigrationOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<LayerId> checked,
                        CheckedLayers(target.topology(), layers));
  EPLB_ASSIGN_OR_RETURN(MigrationPlan plan, PlanLayers(current, target, checked, options));
  EPLB_RETURN_IF_ERROR(AssignRounds(target.topology(), plan));
  std::string encoding = EncodingHead(current, target, checked, options);
  Append(encoding, plan.transfers);
  Append(encoding, plan.local);
  plan.hash = Sha256(encoding);
  return plan;
}

absl::StatusOr<MoveSummary> SummariseMoves(const Placement& previous, const Placement& next) {
  const Topology& topology = next.topology();
  EPLB_RETURN_IF_ERROR(CheckSameTopology("previous", previous.topology(), "next", topology));
  const MigrationOptions options;
  Planner planner(previous, next, options);
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) planner.AddLayer(LayerId{layer});
  MoveSummary summary;
  summary.slots_changed =
      (previous.physical_to_logical_map() != next.physical_to_logical_map()).count();
  IndexMatrix incoming = IndexMatrix::Zero(topology.num_layers(), topology.num_gpus());
  for (const Transfer& transfer : std::move(planner).ChooseSources()) {
    if (transfer.is_local()) continue;
    ++summary.transfers;
    ++incoming(transfer.layer.value, transfer.destination.value);
    const bool crosses = topology.NodeOf(transfer.source) != topology.NodeOf(transfer.destination);
    summary.cross_node += crosses ? 1 : 0;
  }
  for (const auto layer : incoming.rowwise()) {
    summary.layer_max_per_gpu.push_back(layer.maxCoeff());
  }
  summary.max_per_gpu = incoming.maxCoeff();
  return summary;
}

}  // namespace eplb
