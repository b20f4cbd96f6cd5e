#include "client/echo.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "client/client_impl.h"

namespace eplb {
namespace {

// The same GPUs with their spare slots behind their home slots.
absl::StatusOr<Topology> WithSpareSlots(const Topology& homes, int32_t spare_slots) {
  return Topology::Make({.num_layers = homes.num_layers(),
                         .num_experts = homes.num_experts(),
                         .num_slots = homes.num_slots() + homes.num_gpus() * spare_slots,
                         .num_gpus = homes.num_gpus(),
                         .num_nodes = homes.num_nodes(),
                         .num_groups = homes.num_groups()});
}

// The plan's replicas by their spare slots, in the numbers of `slots`.
std::vector<ReplicaPair> PairsOf(const EchoPlan& plan, const Topology& homes,
                                 const Topology& slots) {
  std::vector<ReplicaPair> pairs;
  std::map<int32_t, int32_t> replicas_of_home;
  for (int32_t spare = 0; spare < std::ssize(plan.source); ++spare) {
    const int32_t source = plan.source[static_cast<size_t>(spare)];
    if (source < 0) continue;
    const GpuId from = homes.GpuOf(SlotId{source});
    const GpuId to{spare / plan.spare_slots};
    const int32_t local = source - homes.FirstSlotOf(from).value;
    const int32_t local_spare = homes.SlotsOf(to) + spare % plan.spare_slots;
    pairs.push_back({.layer = plan.layer,
                     .primary = SlotId{slots.FirstSlotOf(from).value + local},
                     .replica = SlotId{slots.FirstSlotOf(to).value + local_spare},
                     .index = ++replicas_of_home[source]});
  }
  return pairs;
}

// Without a replica: the homes have all tokens again.
void TakeBack(EchoPlan& plan) {
  for (size_t spare = 0; spare < plan.source.size(); ++spare) {
    if (plan.source[spare] < 0) continue;
    plan.home_tokens[static_cast<size_t>(plan.source[spare])] += plan.spare_tokens[spare];
    plan.source[spare] = -1;
    plan.spare_tokens[spare] = 0;
  }
  plan.peak.peak = plan.peak.before;
  plan.peak.num_replicas = 0;
}

// Ranks with other plans number their rows otherwise, and so refuse each other's.
std::string NameOfCall(const char* name, const Echo& echo) {
  return absl::StrCat(name, " ", echo.version, " ", echo.plan.spare_slots, " ",
                      absl::StrJoin(echo.plan.source, ","));
}

}  // namespace

absl::StatusOr<Echo> Client::Impl::PlanEcho(int32_t layer, std::span<const int64_t> counts,
                                            const EchoOptions& options) const {
  EPLB_ASSIGN_OR_RETURN(EchoPlanner planner, EchoPlanner::Make(*running_.placement, options));
  Echo echo{.version = running_.version, .plan = {}};
  EPLB_RETURN_IF_ERROR(planner.Plan(LayerId{layer}, counts, echo.plan));
  if (disabled_) TakeBack(echo.plan);
  return echo;
}

absl::Status Client::Impl::CheckEcho(const char* name, const Echo& echo,
                                     std::span<const ReplicaTensor> tensors) const {
  const EchoPlan& plan = echo.plan;
  if (echo.version != running_.version) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": the plan was made under placement version ", echo.version,
                     ", version ", running_.version, " is in force; plan again after a switch"));
  }
  const auto expected = static_cast<size_t>(topology_.num_gpus()) *
                        static_cast<size_t>(std::max(0, plan.spare_slots));
  if (plan.spare_slots < 1 || plan.source.size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": the plan has ", plan.source.size(), " spare slots, ", plan.spare_slots,
        " on each GPU; expected a plan of PlanEcho for ", topology_.num_gpus(), " GPUs"));
  }
  for (size_t spare = 0; spare < plan.source.size(); ++spare) {
    if (plan.source[spare] >= -1 && plan.source[spare] < topology_.num_slots()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": spare slot ", spare, " has a copy of slot ", plan.source[spare],
                     ", expected one of 0..", topology_.num_slots() - 1));
  }
  for (const ReplicaTensor& tensor : tensors) {
    if (tensor.rows.layer == plan.layer) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, ": tensor \"", tensor.rows.name,
                                                   "\" is of layer ", tensor.rows.layer.value,
                                                   ", the plan of layer ", plan.layer.value));
  }
  return absl::OkStatus();
}

absl::Status Client::Impl::CarryEcho(const char* name, const Echo& echo,
                                     std::span<const ReplicaRows> rows, ReplicaFlow flow,
                                     void* stream) {
  if (disabled_) {
    if (echo.plan.peak.num_replicas == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": with EPLB_DISABLE=1 nothing is carried between ranks"));
  }
  const std::vector<ReplicaTensor> tensors = TensorsOf(rows);
  EPLB_RETURN_IF_ERROR(CheckEcho(name, echo, tensors));
  EPLB_ASSIGN_OR_RETURN(const Topology slots, WithSpareSlots(topology_, echo.plan.spare_slots));
  EPLB_RETURN_IF_ERROR(CheckReplicaCall(name, tensors, flow, stream, slots));
  const EpGroupCall call = MakeEpGroupCall(NameOfCall(name, echo).c_str(), tensors, stream);
  EPLB_ASSIGN_OR_RETURN(const ReplicaPosts posts,
                        PlanPairPosts(slots, PairsOf(echo.plan, topology_, slots), gpu(), tensors,
                                      flow, StagingBytes(), call.first_row));
  return EndIfFailed(name, CarryReplicaRows(posts, flow, call, slots));
}

}  // namespace eplb
