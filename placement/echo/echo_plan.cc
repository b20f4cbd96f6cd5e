#include "placement/echo/echo_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace eplb {
namespace {

int32_t DomainsOf(const Placement& homes, const EchoOptions& options) {
  return options.num_domains == 0 ? homes.topology().num_nodes() : options.num_domains;
}

absl::Status CheckEchoOptions(const Placement& homes, const EchoOptions& options) {
  if (options.spare_slots < 1 || options.spare_slots > EchoPlanner::kMaxSpareSlots) {
    return absl::InvalidArgumentError(absl::StrCat("spare_slots is ", options.spare_slots,
                                                   ", expected 1..", EchoPlanner::kMaxSpareSlots));
  }
  if (!(options.tolerance >= 0 && options.tolerance <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tolerance is ", options.tolerance, ", expected 0..1"));
  }
  const int32_t num_gpus = homes.topology().num_gpus();
  const int32_t num_domains = DomainsOf(homes, options);
  if (num_domains < 1 || num_gpus % num_domains != 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_domains is ", num_domains,
                                                   ", expected a divisor of ", num_gpus, " GPUs"));
  }
  return absl::OkStatus();
}

}  // namespace

bool operator==(const EchoPlan& a, const EchoPlan& b) {
  return a.layer == b.layer && a.spare_slots == b.spare_slots && a.peak == b.peak &&
         a.home_tokens == b.home_tokens && a.source == b.source && a.spare_tokens == b.spare_tokens;
}

absl::StatusOr<EchoPlanner> EchoPlanner::Make(const Placement& homes, const EchoOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckEchoOptions(homes, options));
  return EchoPlanner(homes, options);
}

EchoPlanner::EchoPlanner(const Placement& homes, const EchoOptions& options)
    : homes_(&homes),
      spare_slots_(options.spare_slots),
      gpus_per_domain_(homes.topology().num_gpus() / DomainsOf(homes, options)),
      tolerance_(static_cast<int64_t>(
          std::floor(options.tolerance * static_cast<double>(kEchoToleranceUnit)))) {
  const Topology& topology = homes.topology();
  const auto num_gpus = static_cast<size_t>(topology.num_gpus());
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    first_slot_.push_back(topology.FirstSlotOf(GpuId{gpu}).value);
  }
  first_slot_.push_back(topology.num_slots());
  load_.resize(num_gpus);
  order_.resize(num_gpus);
  receivers_.resize(num_gpus);
  given_.resize(static_cast<size_t>(topology.num_slots()));
  num_used_.resize(num_gpus);
}

absl::Status EchoPlanner::CheckTokens(LayerId layer, const char* what,
                                      std::span<const int64_t> tokens, size_t expected) const {
  if (layer.value < 0 || layer.value >= homes_->topology().num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer.value, " is not in 0..", homes_->topology().num_layers() - 1));
  }
  if (tokens.size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer.value, ": tokens of ", tokens.size(), " ", what, "s, expected ", expected));
  }
  int64_t sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] > kMaxEchoTokens - sum) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer.value, ": ", what, " ", i, " has ", tokens[i],
                       " tokens, expected 0 or more and a sum of at most ", kMaxEchoTokens));
    }
    sum += tokens[i];
  }
  return absl::OkStatus();
}

absl::Status EchoPlanner::Plan(LayerId layer, std::span<const int64_t> counts, EchoPlan& plan) {
  const auto num_experts = static_cast<size_t>(homes_->topology().num_experts());
  EPLB_RETURN_IF_ERROR(CheckTokens(layer, "expert", counts, num_experts));
  plan.home_tokens.assign(given_.size(), 0);
  for (size_t expert = 0; expert < num_experts; ++expert) {
    const auto slots = homes_->ReplicasOf(layer, ExpertId{static_cast<int32_t>(expert)});
    const auto replicas = static_cast<int32_t>(slots.size());
    for (int32_t rank = 0; rank < replicas; ++rank) {
      plan.home_tokens[static_cast<size_t>(slots[static_cast<size_t>(rank)])] =
          EqualEchoShare(counts[expert], replicas, rank);
    }
  }
  Solve(layer, plan);
  return absl::OkStatus();
}

absl::Status EchoPlanner::PlanFromQuotas(LayerId layer, std::span<const int64_t> quotas,
                                         EchoPlan& plan) {
  EPLB_RETURN_IF_ERROR(CheckTokens(layer, "slot", quotas, given_.size()));
  for (size_t slot = 0; slot < quotas.size(); ++slot) {
    const SlotId id{static_cast<int32_t>(slot)};
    if (quotas[slot] == 0 || homes_->ExpertIn(layer, id).value >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer.value, ": slot ", slot, " has ",
                                                   quotas[slot], " tokens, but no expert"));
  }
  plan.home_tokens.assign(quotas.begin(), quotas.end());
  Solve(layer, plan);
  return absl::OkStatus();
}

void EchoPlanner::Solve(LayerId layer, EchoPlan& plan) {
  const Topology& topology = homes_->topology();
  const auto num_spares = num_used_.size() * static_cast<size_t>(spare_slots_);
  plan.layer = layer;
  plan.spare_slots = spare_slots_;
  plan.source.resize(num_spares);
  plan.spare_tokens.resize(num_spares);
  const EchoLayer tables{.num_gpus = topology.num_gpus(),
                         .gpus_per_domain = gpus_per_domain_,
                         .spares_per_gpu = spare_slots_,
                         .first_slot = first_slot_.data(),
                         .slot_expert = &homes_->physical_to_logical_map()(layer.value, 0)};
  const EchoTokens tokens{.home = plan.home_tokens.data(),
                          .source = plan.source.data(),
                          .spare = plan.spare_tokens.data()};
  const EchoScratch scratch{.load = load_.data(),
                            .order = order_.data(),
                            .receivers = receivers_.data(),
                            .given = given_.data(),
                            .num_used = num_used_.data()};
  plan.peak = EchoBody<EchoThread>(tables, tokens, scratch, EchoThread()).Solve(tolerance_);
}

EchoPrice PriceEcho(const EchoPlan& plan, const Topology& homes, int64_t bytes_per_expert,
                    double bytes_per_second) {
  std::vector<int64_t> sent(static_cast<size_t>(homes.num_gpus()));
  std::vector<int64_t> received(sent.size());
  EchoPrice price;
  for (size_t spare = 0; spare < plan.source.size(); ++spare) {
    if (plan.source[spare] < 0) continue;
    price.bytes += bytes_per_expert;
    sent[static_cast<size_t>(homes.GpuOf(SlotId{plan.source[spare]}).value)] += bytes_per_expert;
    received[spare / static_cast<size_t>(plan.spare_slots)] += bytes_per_expert;
  }
  for (size_t gpu = 0; gpu < sent.size(); ++gpu) {
    const int64_t bytes = std::max(sent[gpu], received[gpu]);
    if (bytes <= price.busiest_bytes) continue;
    price.busiest_bytes = bytes;
    price.busiest_gpu = static_cast<int32_t>(gpu);
  }
  price.seconds = static_cast<double>(price.busiest_bytes) / bytes_per_second;
  return price;
}

}  // namespace eplb
