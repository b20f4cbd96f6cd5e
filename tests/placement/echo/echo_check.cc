#include "tests/placement/echo/echo_check.h"

#include <algorithm>
#include <set>

namespace eplb::testing {
namespace {

int32_t DomainSize(const Placement& homes, const EchoOptions& options) {
  const Topology& topology = homes.topology();
  return topology.num_gpus() /
         (options.num_domains == 0 ? topology.num_nodes() : options.num_domains);
}

// Of the figures that a plan gives, once its tokens are right.
std::string FaultOfFigures(const Placement& homes, int32_t domain_size,
                           const std::vector<int64_t>& of_gpu, const EchoPlan& plan) {
  if (plan.peak.peak != *std::max_element(of_gpu.begin(), of_gpu.end())) return "another peak";
  if (plan.peak.num_replicas !=
      std::ssize(plan.source) - std::count(plan.source.begin(), plan.source.end(), -1)) {
    return "another number of replicas";
  }
  if (plan.peak.peak > plan.peak.before) return "worse than without echo";
  if (plan.peak.peak < plan.peak.bound) return "below its bound";
  int64_t tokens = 0;
  int64_t usable = 0;
  for (int32_t gpu = 0; gpu < domain_size; ++gpu) {
    const int32_t in_domain = plan.peak.bound_domain * domain_size + gpu;
    tokens += of_gpu[static_cast<size_t>(in_domain)];
    usable += homes.Holds(GpuId{in_domain}) ? 1 : 0;
  }
  if (plan.peak.bound != (tokens + usable - 1) / usable) return "a bound that nothing proves";
  return "";
}

}  // namespace

Placement HomesInOrder(int32_t num_experts, int32_t num_gpus, int32_t num_nodes) {
  return Placement::Static(*Topology::Make({.num_layers = 1,
                                            .num_experts = num_experts,
                                            .num_slots = num_experts,
                                            .num_gpus = num_gpus,
                                            .num_nodes = num_nodes}));
}

std::string FaultOfEcho(const Placement& homes, const EchoOptions& options,
                        const std::vector<int64_t>& counts, const EchoPlan& plan) {
  const Topology& topology = homes.topology();
  const int32_t domain_size = DomainSize(homes, options);
  std::vector<int64_t> of_expert(counts.size());
  std::vector<int64_t> of_gpu(static_cast<size_t>(topology.num_gpus()));
  std::vector<std::set<int32_t>> held(of_gpu.size());
  for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
    const auto gpu = static_cast<size_t>(topology.GpuOf(SlotId{slot}).value);
    const ExpertId expert = homes.ExpertIn(plan.layer, SlotId{slot});
    const int64_t tokens = plan.home_tokens[static_cast<size_t>(slot)];
    if (tokens < 0) return "a home keeps less than nothing";
    if (expert.value < 0) {
      if (tokens != 0) return "a slot without expert has tokens";
      continue;
    }
    const int64_t replicas = homes.ReplicaCount(plan.layer, expert);
    if (tokens > (counts[static_cast<size_t>(expert.value)] + replicas - 1) / replicas) {
      return "a home has more than its share";
    }
    held[gpu].insert(expert.value);
    of_expert[static_cast<size_t>(expert.value)] += tokens;
    of_gpu[gpu] += tokens;
  }
  for (size_t spare = 0; spare < plan.source.size(); ++spare) {
    const auto gpu = static_cast<int32_t>(spare) / options.spare_slots;
    if (plan.source[spare] < 0) {
      if (plan.spare_tokens[spare] != 0) return "an empty spare slot has tokens";
      continue;
    }
    const SlotId home{plan.source[spare]};
    const ExpertId expert = homes.ExpertIn(plan.layer, home);
    if (plan.spare_tokens[spare] < 1) return "a replica has no tokens";
    if (!homes.Holds(GpuId{gpu})) return "a replica is on an unusable GPU";
    if (topology.GpuOf(home).value / domain_size != gpu / domain_size) return "left its domain";
    if (!held[static_cast<size_t>(gpu)].insert(expert.value).second) return "two on a GPU";
    of_expert[static_cast<size_t>(expert.value)] += plan.spare_tokens[spare];
    of_gpu[static_cast<size_t>(gpu)] += plan.spare_tokens[spare];
  }
  if (of_expert != counts) return "quotas do not sum to the counts";
  return FaultOfFigures(homes, domain_size, of_gpu, plan);
}

}  // namespace eplb::testing
