#include "placement/echo/echo_locality.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace eplb {
namespace {

constexpr int kMaxRounds = 4;

class Exchange {
 public:
  Exchange(const EchoPlanner& planner, std::span<const int64_t> sources, EchoPlan& plan)
      : homes_(planner.homes()),
        sources_(sources),
        plan_(plan),
        gpus_per_domain_(planner.gpus_per_domain()),
        load_(static_cast<size_t>(homes_.topology().num_gpus())) {
    for (size_t slot = 0; slot < plan.home_tokens.size(); ++slot) {
      load_[static_cast<size_t>(
          homes_.topology().GpuOf(SlotId{static_cast<int32_t>(slot)}).value)] +=
          plan.home_tokens[slot];
    }
    for (size_t spare = 0; spare < plan.source.size(); ++spare) {
      LoadOf(spare) += plan.spare_tokens[spare];
    }
  }

  int64_t Run() {
    int64_t kept = 0;
    for (int round = 0; round < kMaxRounds; ++round) {
      const int64_t before = kept;
      for (size_t a = 0; a < plan_.source.size(); ++a) {
        if (plan_.source[a] < 0) continue;
        for (size_t b = 0; b < plan_.source.size(); ++b) kept += TryExchange(a, b);
      }
      if (kept == before) break;
    }
    PackSpares();
    return kept;
  }

 private:
  size_t GpuOf(size_t spare) const { return spare / static_cast<size_t>(plan_.spare_slots); }
  int64_t& LoadOf(size_t spare) { return load_[GpuOf(spare)]; }

  // -1: the spare slot is empty.
  int32_t ExpertIn(size_t spare) const {
    const int32_t source = plan_.source[spare];
    return source < 0 ? -1 : homes_.ExpertIn(plan_.layer, SlotId{source}).value;
  }

  // Tokens that stay on the GPU of `at` when it gets what is in `spare`.
  int64_t Kept(size_t spare, size_t at) const {
    const int32_t expert = ExpertIn(spare);
    if (expert < 0) return 0;
    const size_t experts = static_cast<size_t>(homes_.topology().num_experts());
    return std::min(plan_.spare_tokens[spare],
                    sources_[GpuOf(at) * experts + static_cast<size_t>(expert)]);
  }

  // Whether the GPU of `at` would hold the expert of `spare` twice once the copy in `at` has left.
  bool HoldsAlready(size_t spare, size_t at) const {
    const int32_t expert = ExpertIn(spare);
    if (expert < 0) return false;
    const GpuId gpu{static_cast<int32_t>(GpuOf(at))};
    const int32_t first = homes_.topology().FirstSlotOf(gpu).value;
    for (int32_t slot = first; slot < first + homes_.topology().SlotsOf(gpu); ++slot) {
      if (homes_.ExpertIn(plan_.layer, SlotId{slot}).value == expert) return true;
    }
    const size_t spares = static_cast<size_t>(plan_.spare_slots);
    for (size_t other = GpuOf(at) * spares; other < (GpuOf(at) + 1) * spares; ++other) {
      if (other != at && ExpertIn(other) == expert) return true;
    }
    return false;
  }

  // Exchanges what is in two spare slots, if that helps; returns how many tokens more stay.
  int64_t TryExchange(size_t a, size_t b) {
    if (GpuOf(a) == GpuOf(b) || plan_.source[a] < 0) return 0;
    const auto domain = static_cast<size_t>(gpus_per_domain_);
    if (GpuOf(a) / domain != GpuOf(b) / domain) return 0;
    if (!homes_.Holds(GpuId{static_cast<int32_t>(GpuOf(b))})) return 0;
    const int64_t gain = Kept(a, b) + Kept(b, a) - Kept(a, a) - Kept(b, b);
    if (gain <= 0) return 0;
    const int64_t shift = plan_.spare_tokens[a] - plan_.spare_tokens[b];
    if (LoadOf(a) - shift > plan_.peak.peak || LoadOf(b) + shift > plan_.peak.peak) return 0;
    if (HoldsAlready(a, b) || HoldsAlready(b, a)) return 0;
    LoadOf(a) -= shift;
    LoadOf(b) += shift;
    std::swap(plan_.source[a], plan_.source[b]);
    std::swap(plan_.spare_tokens[a], plan_.spare_tokens[b]);
    return gain;
  }

  // The first spare slots of a GPU are those in use, as the planner leaves them; and the peak is
  // that of the loads, which may have fallen.
  void PackSpares() {
    for (size_t gpu = 0; gpu < load_.size(); ++gpu) {
      const size_t first = gpu * static_cast<size_t>(plan_.spare_slots);
      size_t next = first;
      for (size_t spare = first; spare < first + static_cast<size_t>(plan_.spare_slots); ++spare) {
        if (plan_.source[spare] < 0) continue;
        std::swap(plan_.source[spare], plan_.source[next]);
        std::swap(plan_.spare_tokens[spare], plan_.spare_tokens[next]);
        ++next;
      }
    }
    plan_.peak.peak = *std::max_element(load_.begin(), load_.end());
  }

  const Placement& homes_;
  std::span<const int64_t> sources_;
  EchoPlan& plan_;
  int32_t gpus_per_domain_;
  std::vector<int64_t> load_;  // [G], with the echo
};

absl::Status CheckSources(const EchoPlanner& planner, std::span<const int64_t> sources,
                          const EchoPlan& plan) {
  const Topology& topology = planner.homes().topology();
  const auto gpus = static_cast<size_t>(topology.num_gpus());
  const auto experts = static_cast<size_t>(topology.num_experts());
  if (sources.size() != gpus * experts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokens of ", sources.size(), " sources and experts, expected ", gpus, " x ", experts));
  }
  if (plan.spare_slots != planner.spare_slots() ||
      plan.home_tokens.size() != static_cast<size_t>(topology.num_slots()) ||
      plan.source.size() != gpus * static_cast<size_t>(plan.spare_slots)) {
    return absl::InvalidArgumentError(absl::StrCat("a plan of ", plan.home_tokens.size(),
                                                   " slots and ", plan.source.size(),
                                                   " spare slots is not one of this planner"));
  }
  std::vector<int64_t> left(experts);
  const auto expert_in = [&](size_t slot) {
    return planner.homes().ExpertIn(plan.layer, SlotId{static_cast<int32_t>(slot)}).value;
  };
  for (size_t slot = 0; slot < plan.home_tokens.size(); ++slot) {
    if (expert_in(slot) >= 0) left[static_cast<size_t>(expert_in(slot))] += plan.home_tokens[slot];
  }
  for (size_t spare = 0; spare < plan.source.size(); ++spare) {
    if (plan.source[spare] < 0) continue;
    const auto slot = static_cast<size_t>(plan.source[spare]);
    left[static_cast<size_t>(expert_in(slot))] += plan.spare_tokens[spare];
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] < 0 || sources[i] > left[i % experts]) {
      return absl::InvalidArgumentError(
          absl::StrCat("source ", i / experts, " has ", sources[i], " tokens of expert ",
                       i % experts, ", expected 0 or more and all to sum to the plan's"));
    }
    left[i % experts] -= sources[i];
  }
  const auto missing = std::find_if(left.begin(), left.end(), [](int64_t n) { return n != 0; });
  if (missing == left.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the sources have ", *missing,
                                                 " tokens of expert ", missing - left.begin(),
                                                 " fewer than the plan"));
}

}  // namespace

absl::StatusOr<int64_t> KeepAtSource(const EchoPlanner& planner, std::span<const int64_t> sources,
                                     EchoPlan& plan) {
  EPLB_RETURN_IF_ERROR(CheckSources(planner, sources, plan));
  return Exchange(planner, sources, plan).Run();
}

}  // namespace eplb
