#include "placement/search/survival.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/align.h"
#include "placement/search/descent.h"
#include "placement/search/domain_in_layer.h"
#include "placement/search/domain_solver.h"
#include "placement/search/node_affinity.h"
#include "placement/search/scenario_loads.h"
#include "placement/search/scenario_solver.h"
#include "placement/search/scenario_walk.h"

namespace eplb {
namespace {

constexpr double kScoreRounding = 1e-12;

int32_t SiteOf(const Topology& topology, Site site, GpuId gpu) {
  return site == Site::kNode ? topology.NodeOf(gpu).value : gpu.value;
}

// Covers the layers of one placement, one after the other.
class LayerCover {
 public:
  LayerCover(const PolicyInput& input, const GpuSpeeds& speeds, const SurvivalOptions& options)
      : input_(input),
        options_(options),
        whole_(WholeLayer(input.topology, speeds, options.hierarchy, options.allow_duplicates)),
        load_(NormalisedLayers(input.load)),
        scenarios_(input),
        solver_(whole_.domain),
        limits_(LimitsOf(options.effort, whole_.domain, input.topology.num_layers())) {
    limits_.abandoned = input.abandoned;
    for (const int32_t slot : whole_.first_slot) {
      const GpuId gpu = input.topology.GpuOf(SlotId{slot});
      whole_.domain.site_of_gpu.push_back(SiteOf(input.topology, options.site, gpu));
    }
  }

  // slots: a layer [S] that keeps the hierarchy; otherwise it stays as it is.
  void Cover(int32_t layer, std::span<int32_t> slots) {
    if (!ReadHomes(input_.topology, options_.hierarchy, slots, whole_.domain)) return;
    const ScenarioLoads loads = scenarios_.Layer(layer);
    const auto row = load_.row(layer);
    whole_.domain.load =
        loads.size() > 1 ? loads.Mean() : std::vector<double>(row.begin(), row.end());
    by_load_ = ByFallingLoad(whole_.domain.load);
    std::optional<ScenarioWalk> walk;
    if (loads.size() > 1) walk.emplace(whole_.domain, loads);
    const std::vector<int32_t> planned = whole_.Read(slots);
    least_ = Score(planned, walk) - options_.most_cost - kScoreRounding;
    whole_.Write(Choose(planned, walk), slots);
  }

 private:
  using Layout = std::vector<int32_t>;  // experts by slot of the domain

  // The layout with the most of the hottest experts covered that keeps to the cost.
  Layout Choose(const Layout& planned, std::optional<ScenarioWalk>& walk) {
    Arrangement arrangement(whole_.domain);
    arrangement.Assign(planned);
    int32_t low = 0;
    while (low < std::ssize(by_load_) && arrangement.IsOnTwoSites(by_load_[AsIndex(low)])) ++low;
    std::optional<Layout> found = Try(planned, static_cast<int32_t>(by_load_.size()), walk);
    if (found.has_value()) return *std::move(found);
    Layout best = planned;
    for (int32_t high = last_covered_ + 1; high - low > 1;) {
      const int32_t hottest = (low + high) / 2;
      found = Try(planned, hottest, walk);
      (found.has_value() ? low : high) = hottest;
      if (found.has_value()) best = *std::move(found);
    }
    return best;
  }

  // Covers what can be covered of the hottest experts. None if that costs too much.
  std::optional<Layout> Try(const Layout& planned, int32_t hottest,
                            std::optional<ScenarioWalk>& walk) {
    std::vector<bool>& covered = whole_.domain.on_two_sites;
    covered.assign(by_load_.size(), false);
    Arrangement arrangement(whole_.domain);
    arrangement.Assign(planned);
    for (int32_t i = 0; i < hottest; ++i) {
      const int32_t expert = by_load_[AsIndex(i)];
      if (!CoverExpert(expert, arrangement)) continue;
      covered[AsIndex(expert)] = true;
      last_covered_ = i;
    }
    const Layout layout = Improve(arrangement, walk);
    return Score(layout, walk) >= least_ ? std::optional(layout) : std::nullopt;
  }

  // Moves a replica of the expert to a second site, or replaces the replica that is missed least
  // there. Otherwise another expert moves first, so that a slot becomes free on a second site.
  bool CoverExpert(int32_t expert, Arrangement& arrangement) {
    return arrangement.IsOnTwoSites(expert) || CoverByMove(expert, /*own=*/true, arrangement) ||
           CoverByReplica(expert, arrangement) || CoverByMove(expert, /*own=*/false, arrangement);
  }

  bool IsElsewhere(int32_t slot, int32_t expert, const Arrangement& arrangement) const {
    const int32_t only = arrangement.gpu_of(arrangement.FirstOf(expert));
    return whole_.domain.SiteOf(arrangement.gpu_of(slot)) != whole_.domain.SiteOf(only);
  }

  bool CoverByReplica(int32_t expert, Arrangement& arrangement) {
    int32_t best = Arrangement::kEmpty;
    std::pair<double, double> least;
    for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
      if (!IsElsewhere(slot, expert, arrangement) || !arrangement.MayReplace(slot, expert)) {
        continue;
      }
      const int32_t other = arrangement.expert_in(slot);
      const double unit = whole_.domain.load[AsIndex(other)] / (arrangement.count(other) - 1);
      const std::pair missed(unit, trial_.PeakAfter(arrangement, slot, expert));
      if (best != Arrangement::kEmpty && missed >= least) continue;
      best = slot;
      least = missed;
    }
    if (best != Arrangement::kEmpty) arrangement.Replace(best, expert);
    return best != Arrangement::kEmpty;
  }

  // Another expert moves to a replica that can be spared, and leaves its slot. own: a replica of
  // the expert itself.
  bool CoverByMove(int32_t expert, bool own, Arrangement& arrangement) {
    for (int32_t spare = 0; spare < arrangement.num_slots(); ++spare) {
      const int32_t spared = arrangement.expert_in(spare);
      if ((spared == expert) != own || !arrangement.MaySpare(spare)) continue;
      for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
        const int32_t moving = arrangement.expert_in(slot);
        if (!IsElsewhere(slot, expert, arrangement) || !arrangement.MayReplace(spare, moving)) {
          continue;
        }
        arrangement.Replace(spare, moving);
        if (arrangement.MayReplace(slot, expert)) {
          arrangement.Replace(slot, expert);
          return true;
        }
        arrangement.Replace(spare, spared);
      }
    }
    return false;
  }

  Layout Improve(const Arrangement& arrangement, std::optional<ScenarioWalk>& walk) {
    Layout start(arrangement.experts().begin(), arrangement.experts().end());
    if (input_.previous != nullptr && Score(start, walk) >= least_) return start;
    if (walk.has_value()) {
      walk->Start(start);
      const Topology& topology = input_.topology;
      walk->Walk(WalkLimitsOf(options_.effort, topology.num_slots(), topology.num_layers()).descend,
                 false, input_.abandoned);
      const auto experts = walk->arrangement().experts();
      return {experts.begin(), experts.end()};
    }
    solver_.Begin(limits_);
    solver_.Offer(start);
    if (input_.previous != nullptr) solver_.set_enough(MeanLoad(arrangement) / least_);
    const auto experts = solver_.Improve().experts();
    return {experts.begin(), experts.end()};
  }

  static double MeanLoad(const Arrangement& arrangement) {
    double sum = 0;
    for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) sum += arrangement.load(gpu);
    return sum / arrangement.num_gpus();
  }

  // Balancedness; 1 / objective for several loads.
  double Score(const Layout& layout, std::optional<ScenarioWalk>& walk) const {
    if (walk.has_value()) {
      walk->Start(layout);
      return 1 / walk->Objective();
    }
    Arrangement arrangement(whole_.domain);
    arrangement.Assign(layout);
    const double peak = arrangement.MaxLoad();
    return peak > 0 ? MeanLoad(arrangement) / peak : 1;
  }

  const PolicyInput& input_;
  const SurvivalOptions options_;
  DomainInLayer whole_;
  RealMatrix load_;  // [L, E]
  ScenarioLayers scenarios_;
  DomainSolver solver_;
  SearchLimits limits_;
  ReplacementTrial trial_;
  // State of the layer that is being covered.
  std::vector<int32_t> by_load_;  // [E], the hottest expert first
  double least_ = 0;              // score that is permitted
  int32_t last_covered_ = 0;      // place in by_load_, of the last trial
};

}  // namespace

absl::StatusOr<Placement> CoverLosses(const PolicyInput& input, const Placement& planned,
                                      const SurvivalOptions& options) {
  const Topology& topology = input.topology;
  EPLB_RETURN_IF_ERROR(CheckShapes(input));
  EPLB_RETURN_IF_ERROR(CheckSameTopology("planned", planned.topology(), "next", topology));
  if (options.site == Site::kNode && topology.num_nodes() < 2) {
    return InvalidInput("the loss of a node cannot be survived on one node");
  }
  if (options.site == Site::kNode && options.hierarchy == Hierarchy::kStrict) {
    return InvalidInput(
        "the loss of a node cannot be survived under hierarchy strict, which keeps every replica "
        "of an expert on one node");
  }
  const GpuSpeeds speeds =
      input.speeds == nullptr ? GpuSpeeds::Equal(topology.num_gpus()) : *input.speeds;
  LayerCover cover(input, speeds, options);
  IndexMatrix slots = planned.physical_to_logical_map();
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    EPLB_RETURN_IF_ERROR(CheckWanted(input));
    cover.Cover(layer, {&slots(layer, 0), AsIndex(topology.num_slots())});
  }
  EPLB_RETURN_IF_ERROR(CheckWanted(input));
  EPLB_ASSIGN_OR_RETURN(Placement placement, Placement::FromSlots(topology, slots));
  if (input.previous != nullptr) {
    EPLB_ASSIGN_OR_RETURN(placement, Align(*input.previous, placement));
  }
  return WithPrimariesOnAffineNode(placement, options.hierarchy);
}

std::vector<std::vector<int32_t>> ExpertsOnOneSite(const Load& load, const Placement& placement,
                                                   Site site) {
  const Topology& topology = placement.topology();
  const RealMatrix tokens = load.ToDouble();
  std::vector<std::vector<int32_t>> layers;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const auto row = tokens.row(layer);
    std::vector<int32_t> experts = ByFallingLoad(std::vector<double>(row.begin(), row.end()));
    std::erase_if(experts, [&](int32_t expert) {
      const auto replicas = placement.ReplicasOf(LayerId{layer}, ExpertId{expert});
      const auto at = [&](int32_t slot) {
        return SiteOf(topology, site, topology.GpuOf(SlotId{slot}));
      };
      return std::ranges::any_of(replicas,
                                 [&](int32_t slot) { return at(slot) != at(replicas[0]); });
    });
    layers.push_back(std::move(experts));
  }
  return layers;
}

}  // namespace eplb
