#include "placement/policies/incremental_policy.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "placement/align.h"
#include "placement/policies/balanced_policy.h"
#include "placement/search/arrangement.h"
#include "placement/search/domain_bound.h"
#include "placement/search/domain_in_layer.h"
#include "placement/search/improvement.h"
#include "placement/search/layer_solver.h"
#include "placement/search/node_affinity.h"
#include "placement/search/repair.h"
#include "placement/search/scenario_loads.h"
#include "placement/search/scenario_moves.h"
#include "placement/search/scenario_solver.h"
#include "placement/search/scenario_walk.h"

namespace eplb {
namespace {

// tests/bench/auto_table.py judges the constants: time saved on loads of many kinds.

// A layer closer to its bound than this is left alone.
constexpr double kLeastExcess = 0.02;
// A GPU load of T tokens is known to one part in sqrt(T), and the incumbent was made for a load
// known as badly. The squares of what GPUs are above the bound are this many of their own standard
// deviations above what that explains before they mean something.
constexpr double kSignificance = 6;
// Largest part of its slots that a layer moves at a time, if it is not far off.
constexpr double kMostOfSlots = 0.095;
// Largest part of its slots that such a layer gives to replicas that only the next windows need.
constexpr double kMostToSpread = 0.04;
constexpr double kFarOff = 0.4;
// Beyond this the budget of a GPU ends too, unless it was given. Then the steps of a layer, times
// its slots and GPUs, are at most kMostWork: a few copies may relieve one hot expert, but to
// balance a wide layer anew is the work of `balanced`.
constexpr double kVeryFarOff = 1;
constexpr int64_t kMostWork = int64_t{1} << 23;
// Copying all slots of a layer must lower its smooth maximum by this part of the bound; where the
// layer is further off than kNearPeak, by less in the same measure, for it will soon move again.
constexpr double kPriceOfAllSlots = 0.066;
constexpr double kNearPeak = 0.06;
// Least fraction that an early replica must take from the sum of squared units.
constexpr double kLeastSpread = 0.002;

using SlotRow = std::span<const int32_t>;
using Layout = std::vector<int32_t>;  // experts by slot of a domain

SlotRow RowOf(const IndexMatrix& matrix, Eigen::Index row) {
  return {matrix.data() + row * matrix.cols(), static_cast<size_t>(matrix.cols())};
}

std::vector<double> LoadOf(const RealMatrix& tokens, Eigen::Index layer) {
  const double* const row = tokens.row(layer).data();
  return {row, row + tokens.cols()};
}

// The loads of a PolicyInput as numbers [L, E].
struct Tokens {
  explicit Tokens(const PolicyInput& input)
      : load(input.load.ToDouble()), scenarios(input), abandoned(input.abandoned) {
    for (const Load& window : input.recent) recent.push_back(window.ToDouble());
    const Load& newest = input.recent.empty() ? input.load : input.recent.back();
    are_counts = newest.is_counts();
  }

  // In the newest window, where that is of counts; else 0.
  double PerGpu(Eigen::Index layer, int32_t num_gpus) const {
    const RealMatrix& newest = recent.empty() ? load : recent.back();
    return are_counts ? newest.row(layer).sum() / num_gpus : 0;
  }

  RealMatrix load;
  std::vector<RealMatrix> recent;
  bool are_counts = false;
  ScenarioLayers scenarios;
  const std::atomic<bool>* abandoned;
};

// Scores layouts of one layer and keeps the best. The incumbent is offered first.
class Contest {
 public:
  // windows: loads to score on, each [E].
  Contest(const Domain& domain, std::vector<std::vector<double>> windows)
      : domain_(domain), windows_(std::move(windows)) {
    for (const double speed : domain.speed) total_speed_ += speed;
  }

  // A score is the mean over the windows of the smooth maximum, in parts of the mean load, plus the
  // price of the copies. What has a higher mean of largest loads than the incumbent is out.
  void Offer(SlotRow layout, int32_t copies) {
    const double price = price_of_all_slots_ * copies / static_cast<double>(layout.size());
    const Means means = MeansOf(layout);
    if (best_.empty()) {
      incumbent_peak_ = means.peak;
    } else if (means.smooth_maximum + price >= best_score_ || means.peak > incumbent_peak_) {
      return;
    }
    best_.assign(layout.begin(), layout.end());
    best_score_ = means.smooth_maximum + price;
    best_copies_ = copies;
  }

  // Copying all slots costs this part of the mean load from now on.
  void set_price(double price_of_all_slots) { price_of_all_slots_ = price_of_all_slots; }

  const Layout& best() const { return best_; }
  int32_t best_copies() const { return best_copies_; }

 private:
  struct Means {
    double peak = 0;
    double smooth_maximum = 0;
  };

  Means MeansOf(SlotRow layout) const {
    Means means;
    for (const std::vector<double>& window : windows_) {
      double total = 0;
      for (const double tokens : window) total += tokens;
      if (total <= 0) continue;
      const double scale = total / total_speed_;
      const std::vector<double> loads = LoadsOf(layout, window);
      means.peak += *std::ranges::max_element(loads) / scale;
      means.smooth_maximum += SmoothMaximum(loads, scale) / scale;
    }
    const auto count = static_cast<double>(windows_.size());
    return {.peak = means.peak / count, .smooth_maximum = means.smooth_maximum / count};
  }

  std::vector<double> LoadsOf(SlotRow layout, const std::vector<double>& window) const {
    std::vector<int32_t> counts(window.size());
    for (const int32_t expert : layout) ++counts[static_cast<size_t>(expert)];
    std::vector<double> loads;
    auto slot = layout.begin();
    for (size_t gpu = 0; gpu < domain_.slots.size(); ++gpu) {
      double tokens = 0;
      for (int32_t i = 0; i < domain_.slots[gpu]; ++i, ++slot) {
        tokens += window[static_cast<size_t>(*slot)] / counts[static_cast<size_t>(*slot)];
      }
      loads.push_back(tokens / domain_.speed[gpu]);
    }
    return loads;
  }

  const Domain& domain_;
  std::vector<std::vector<double>> windows_;
  double total_speed_ = 0;
  Layout best_;
  int32_t best_copies_ = 0;
  double best_score_ = 0;
  double price_of_all_slots_ = kPriceOfAllSlots;
  double incumbent_peak_ = 0;
};

// The layer is far enough from its bound to move: more of the GPUs are more above it than the noise
// of `tokens` on a GPU explains; 0: no noise is known. (One GPU alone says little: the largest of
// many is always far above the mean.)
bool IsOff(const Domain& domain, SlotRow layout, double bound, double tokens) {
  Arrangement arrangement(domain);
  arrangement.Assign(layout);
  if (arrangement.MaxLoad() <= bound * (1 + kLeastExcess)) return false;
  if (tokens <= 0) return true;
  double squares = 0;
  double above = 0;
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    const double excess = arrangement.load(gpu) / bound - 1;
    if (excess <= 0) continue;
    squares += excess * excess;
    ++above;
  }
  const double noise = 2 / tokens;
  return squares > noise * (above + kSignificance * std::sqrt(2 * above));
}

bool IsVeryFarOff(const Domain& domain, SlotRow layout, double bound) {
  Arrangement arrangement(domain);
  arrangement.Assign(layout);
  return arrangement.MaxLoad() > bound * (1 + kVeryFarOff);
}

struct OfferedSteps {
  double bound = 0;            // no layout has a smaller largest load
  int32_t copies_per_gpu = 0;  // at most
  int64_t steps = 0;           // at most
  bool spread = false;         // first add the replicas that will be needed
};

// Relieves the incumbent step by step and offers the layout after each step.
void OfferSteps(const Domain& domain, SlotRow incumbent, const OfferedSteps& steps,
                const std::atomic<bool>* abandoned, Contest& contest) {
  Arrangement arrangement(domain);
  arrangement.Assign(incumbent);
  const double excess = arrangement.MaxLoad() / steps.bound - 1;
  const int32_t slots = arrangement.num_slots();
  const double part = excess > kFarOff ? 1 : kMostOfSlots;
  const double price = kPriceOfAllSlots * std::min(1.0, kNearPeak / excess);
  contest.set_price(price);
  ImprovementSteps improvement(
      arrangement, steps.bound,
      {.copies_per_gpu = steps.copies_per_gpu, .copies = static_cast<int32_t>(part * slots)});
  while (steps.spread && !IsAbandoned(abandoned) && improvement.copies() < kMostToSpread * slots &&
         improvement.Spread(kLeastSpread)) {
  }
  for (int64_t step = 0;
       step < steps.steps && !IsAbandoned(abandoned) && improvement.Step(price / slots); ++step) {
    contest.Offer(arrangement.experts(), improvement.copies());
  }
}

class IncrementalPolicy final : public Policy {
 public:
  explicit IncrementalPolicy(const PolicyOptions& options) : options_(options) {}

  std::string_view name() const override { return "incremental"; }

  absl::StatusOr<Placement> Solve(const PolicyInput& input) const override {
    const Topology& topology = input.topology;
    EPLB_RETURN_IF_ERROR(CheckShapes(input));
    const Placement previous =
        input.previous == nullptr ? Placement::Static(topology) : *input.previous;
    const GpuSpeeds speeds =
        input.speeds == nullptr ? GpuSpeeds::Equal(topology.num_gpus()) : *input.speeds;
    const Hierarchy hierarchy = options_.hierarchy.value_or(DefaultHierarchy(topology));
    EPLB_RETURN_IF_ERROR(LayerSolver::Check(topology, speeds, {.hierarchy = hierarchy}));
    DomainInLayer frame = WholeLayer(topology, speeds, hierarchy, options_.allow_duplicates);
    IndexMatrix slots = IndexMatrix::Constant(topology.num_layers(), topology.num_slots(), -1);
    const Tokens tokens(input);
    std::optional<Placement> balanced;  // solved for the first layer that needs it
    for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
      EPLB_RETURN_IF_ERROR(CheckWanted(input));
      frame.domain.load = LoadOf(tokens.load, layer);
      const SlotRow row = RowOf(previous.physical_to_logical_map(), layer);
      const Layout before = frame.Read(row);
      Layout chosen = before;
      const bool repaired =
          ReadHomes(topology, hierarchy, row, frame.domain) && Repair(frame.domain, chosen);
      if (!repaired || options_.max_moves_per_gpu != 0) {
        if (!balanced.has_value()) {
          EPLB_ASSIGN_OR_RETURN(balanced, Balanced(input, previous, speeds, hierarchy));
        }
        const Layout other = frame.Read(RowOf(balanced->physical_to_logical_map(), layer));
        chosen = repaired ? Choose(tokens, frame.domain, layer, before, chosen, other) : other;
      }
      frame.Write(chosen, {&slots(layer, 0), static_cast<size_t>(slots.cols())});
    }
    EPLB_RETURN_IF_ERROR(CheckWanted(input));
    EPLB_ASSIGN_OR_RETURN(const Placement next, Placement::FromSlots(topology, slots));
    EPLB_ASSIGN_OR_RETURN(const Placement placement, Align(previous, next));
    return WithPrimariesOnAffineNode(placement, hierarchy);
  }

 private:
  // The placement of `balanced`, aligned to the previous one.
  absl::StatusOr<Placement> Balanced(const PolicyInput& input, const Placement& previous,
                                     const GpuSpeeds& speeds, Hierarchy hierarchy) const {
    EPLB_ASSIGN_OR_RETURN(const Placement balanced,
                          MakeBalancedPolicy({.hierarchy = hierarchy,
                                              .effort = options_.effort,
                                              .allow_duplicates = options_.allow_duplicates})
                              ->Solve({.load = input.load,
                                       .topology = input.topology,
                                       .speeds = &speeds,
                                       .scenarios = input.scenarios,
                                       .objective = input.objective,
                                       .abandoned = input.abandoned}));
    return Align(previous, balanced);
  }

  // before, incumbent: the layer in place, and the same after its repair.
  Layout Choose(const Tokens& tokens, const Domain& domain, int32_t layer, const Layout& before,
                const Layout& incumbent, const Layout& balanced) const {
    const ScenarioLoads scenarios = tokens.scenarios.Layer(layer);
    if (scenarios.size() > 1) {
      return ChooseFor(scenarios, tokens.abandoned, domain, incumbent, balanced);
    }
    std::vector<std::vector<double>> windows;
    for (const RealMatrix& window : tokens.recent) windows.push_back(LoadOf(window, layer));
    if (windows.empty()) windows.push_back(domain.load);
    Contest contest(domain, std::move(windows));
    contest.Offer(incumbent, 0);
    const double bound = DomainBound(domain);
    if (bound <= 0 || !IsOff(domain, incumbent, bound, tokens.PerGpu(layer, domain.num_gpus()))) {
      return incumbent;
    }
    const int32_t slots = domain.num_slots();
    OfferedSteps steps{.bound = bound,
                       .copies_per_gpu = options_.max_moves_per_gpu.value_or(kDefaultMovesPerGpu),
                       .steps = int64_t{2} * slots,
                       .spread = true};
    if (!options_.max_moves_per_gpu.has_value() && IsVeryFarOff(domain, incumbent, bound)) {
      steps.copies_per_gpu = slots;
      steps.steps = std::min(steps.steps, kMostWork / slots / domain.num_gpus());
    }
    OfferSteps(domain, incumbent, steps, tokens.abandoned, contest);
    if (contest.best_copies() == 0) {
      steps.spread = false;
      OfferSteps(domain, incumbent, steps, tokens.abandoned, contest);
    }
    const LayoutCopies copies = CopiesBetween(domain, before, balanced);
    if (copies.most <= steps.copies_per_gpu) contest.Offer(balanced, copies.sum);
    return contest.best();
  }

  // Several loads: a layer moves when its objective is further above 1 than kLeastExcess.
  Layout ChooseFor(const ScenarioLoads& scenarios, const std::atomic<bool>* abandoned,
                   const Domain& domain, const Layout& incumbent, const Layout& balanced) const {
    ScenarioWalk walk(domain, scenarios);
    walk.Start(incumbent);
    const double excess = walk.Objective() - 1;
    if (excess <= kLeastExcess) return incumbent;
    const int32_t slots = domain.num_slots();
    const int32_t usual = excess > kFarOff ? slots : kDefaultMovesPerGpu;
    return ChooseForScenarios(
        domain, scenarios,
        {.incumbent = incumbent,
         .other = balanced,
         .copies_per_gpu = options_.max_moves_per_gpu.value_or(usual),
         .price_of_all_slots = kPriceOfAllSlots * std::min(1.0, kNearPeak / excess),
         .proposals = WalkLimitsOf(options_.effort, slots, 1).descend,
         .abandoned = abandoned});
  }

  PolicyOptions options_;
};

}  // namespace

std::unique_ptr<Policy> MakeIncrementalPolicy(const PolicyOptions& options) {
  return std::make_unique<IncrementalPolicy>(options);
}

}  // namespace eplb
