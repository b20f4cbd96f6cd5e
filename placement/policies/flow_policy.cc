#include "placement/policies/flow_policy.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/align.h"
#include "placement/policies/balanced_policy.h"
#include "placement/policies/incremental_policy.h"
#include "placement/search/node_affinity.h"
#include "placement/search/outlets.h"
#include "placement/search/repair.h"
#include "placement/search/split_choice.h"
#include "placement/search/split_peaks.h"

namespace eplb {
namespace {

// tests/bench/auto_table.py judges the constants.

// Copying all slots of a layer must take this part of the mean load from the least maximum.
constexpr double kPriceOfSplitCopies = 0.02;

using ExpertRow = std::span<const int32_t>;

ExpertRow ExpertsOf(const IndexMatrix& matrix, Eigen::Index row) {
  return {matrix.data() + row * matrix.cols(), static_cast<size_t>(matrix.cols())};
}

// A part of a layer that is searched on its own: some GPUs, and the experts that only they hold.
struct SplitPart {
  Domain domain;
  std::vector<int32_t> slots;    // slots of the domain, in the layer
  std::vector<int32_t> experts;  // experts of the domain, in the layer
  std::vector<int32_t> place;    // [E], place of an expert in `experts`; -1: in another part
  std::vector<std::vector<double>> batches;  // loads of the domain's experts
  std::vector<int32_t> incumbent;            // experts of the domain by slot, -1: nothing
  bool ring = false;                         // outlets are looked for

  std::vector<int32_t> Read(ExpertRow layer) const {
    std::vector<int32_t> layout;
    for (const int32_t slot : slots) {
      const int32_t expert = layer[static_cast<size_t>(slot)];
      layout.push_back(expert < 0 ? -1 : place[static_cast<size_t>(expert)]);
    }
    return layout;
  }
  std::vector<double> LoadOf(const RealMatrix& load, Eigen::Index layer) const {
    std::vector<double> tokens;
    for (const int32_t expert : experts) tokens.push_back(load(layer, expert));
    return tokens;
  }
  void AddExpert(int32_t expert) {
    place[static_cast<size_t>(expert)] = static_cast<int32_t>(experts.size());
    experts.push_back(expert);
  }
  // The incumbent needs no repair.
  bool IsWhole() const {
    std::vector<bool> held(experts.size(), false);
    for (const int32_t expert : incumbent) {
      if (expert < 0) return false;
      held[static_cast<size_t>(expert)] = true;
    }
    return std::ranges::find(held, false) == held.end();
  }
};

// Cuts layers into parts.
class Layers {
 public:
  Layers(const PolicyInput& input, const Placement& previous, Hierarchy hierarchy)
      : topology_(input.topology),
        previous_(previous.physical_to_logical_map()),
        hierarchy_(hierarchy),
        speeds_(input.speeds == nullptr ? GpuSpeeds::Equal(topology_.num_gpus()) : *input.speeds),
        load_(input.load.ToDouble()) {
    for (const Load& window : input.recent) batches_.push_back(window.ToDouble());
    if (batches_.empty()) batches_.push_back(load_);
  }

  // Without a strict hierarchy one part, with it one a node. None where the incumbent breaks the
  // hierarchy.
  std::vector<SplitPart> PartsOf(int32_t layer) const {
    const ExpertRow incumbent = ExpertsOf(previous_, layer);
    std::vector<SplitPart> parts;
    std::vector<int32_t> node_of_group(static_cast<size_t>(topology_.num_groups()), 0);
    if (hierarchy_ != Hierarchy::kNone) {
      const auto affinities = NodeAffinityOf(topology_, hierarchy_, incumbent);
      if (!affinities.has_value()) return parts;
      if (hierarchy_ == Hierarchy::kStrict) node_of_group = *affinities;
    }
    const int32_t count = hierarchy_ == Hierarchy::kStrict ? topology_.num_nodes() : 1;
    for (int32_t i = 0; i < count; ++i) parts.push_back(GpusOf(i, count));
    for (int32_t expert = 0; expert < topology_.num_experts(); ++expert) {
      parts[count == 1 ? 0 : static_cast<size_t>(node_of_group[GroupOf(expert)])].AddExpert(expert);
    }
    for (SplitPart& part : parts) SetLoads(incumbent, layer, part);
    return parts;
  }

 private:
  size_t GroupOf(int32_t expert) const {
    return static_cast<size_t>(expert / (topology_.num_experts() / topology_.num_groups()));
  }

  // The usable GPUs of the i-th of `count` parts.
  SplitPart GpusOf(int32_t i, int32_t count) const {
    const int32_t per_part = topology_.num_gpus() / count;
    const int32_t first = i * per_part;
    SplitPart part{.domain = DomainOf(topology_, speeds_, first, first + per_part)};
    for (int32_t gpu = first; gpu < first + per_part; ++gpu) {
      if (!speeds_.Usable(GpuId{gpu})) continue;
      const int32_t slot = topology_.FirstSlotOf(GpuId{gpu}).value;
      for (int32_t j = 0; j < topology_.SlotsOf(GpuId{gpu}); ++j) part.slots.push_back(slot + j);
    }
    part.place.assign(static_cast<size_t>(topology_.num_experts()), -1);
    return part;
  }

  void SetLoads(ExpertRow incumbent, int32_t layer, SplitPart& part) const {
    part.domain.load = part.LoadOf(load_, layer);
    for (const RealMatrix& batch : batches_) part.batches.push_back(part.LoadOf(batch, layer));
    part.incumbent = part.Read(incumbent);
    part.ring = hierarchy_ != Hierarchy::kSoft && AllowsOutletRing(part.domain);
  }

  const Topology& topology_;
  const IndexMatrix& previous_;
  Hierarchy hierarchy_;
  GpuSpeeds speeds_;
  RealMatrix load_;
  std::vector<RealMatrix> batches_;
};

class FlowPolicy final : public Policy {
 public:
  explicit FlowPolicy(const PolicyOptions& options)
      : options_(options),
        incremental_(MakeIncrementalPolicy(options)),
        balanced_(MakeBalancedPolicy(options)) {}

  std::string_view name() const override { return "flow"; }

  absl::StatusOr<Placement> Solve(const PolicyInput& input) const override {
    if (input.split == SplitMode::kEqual) return incremental_->Solve(input);
    const Policy& other = input.previous == nullptr ? *balanced_ : *incremental_;
    if (input.scenarios.size() > 1) return other.Solve(input);
    const Topology& topology = input.topology;
    const Hierarchy hierarchy = options_.hierarchy.value_or(DefaultHierarchy(topology));
    EPLB_RETURN_IF_ERROR(Check(input, hierarchy));
    const Placement previous =
        input.previous == nullptr ? Placement::Static(topology) : *input.previous;
    const Layers layers(input, previous, hierarchy);
    IndexMatrix slots = IndexMatrix::Constant(topology.num_layers(), topology.num_slots(), -1);
    std::optional<Placement> others;
    for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
      EPLB_RETURN_IF_ERROR(CheckWanted(input));
      std::vector<SplitPart> parts = layers.PartsOf(layer);
      if (FollowRings(input, parts, slots.row(layer))) continue;
      if (!others.has_value()) {
        EPLB_ASSIGN_OR_RETURN(others, other.Solve(input));
      }
      slots.row(layer) = others->physical_to_logical_map().row(layer);
      if (parts.size() == 1) ChooseOther(input, parts.front(), slots.row(layer));
    }
    EPLB_RETURN_IF_ERROR(CheckWanted(input));
    EPLB_ASSIGN_OR_RETURN(const Placement next, Placement::FromSlots(topology, slots));
    EPLB_ASSIGN_OR_RETURN(const Placement placement, Align(previous, next));
    return WithPrimariesOnAffineNode(placement, hierarchy);
  }

 private:
  using SlotsOfLayer = Eigen::Ref<Eigen::Array<int32_t, 1, Eigen::Dynamic, Eigen::RowMajor>>;

  static absl::Status Check(const PolicyInput& input, Hierarchy hierarchy) {
    EPLB_RETURN_IF_ERROR(CheckWanted(input));
    EPLB_RETURN_IF_ERROR(CheckShapes(input));
    EPLB_RETURN_IF_ERROR(CheckHierarchy(input.topology, hierarchy));
    if (input.topology.num_gpus() <= SplitPeaks::kMaxGpus) return absl::OkStatus();
    return InvalidInput("an EP group of ", input.topology.num_gpus(),
                        " GPUs, batches are split over at most ", SplitPeaks::kMaxGpus);
  }

  // False where a part has no ring, or cannot be repaired; nothing is written then.
  bool FollowRings(const PolicyInput& input, std::vector<SplitPart>& parts,
                   const SlotsOfLayer& slots) const {
    for (SplitPart& part : parts) {
      if (!part.ring || !Repair(part.domain, part.incumbent)) return false;
    }
    for (const SplitPart& part : parts) Write(part, Choose(input, part, {}), slots);
    return !parts.empty();
  }

  // slots: those of `incremental`; back to the incumbent where they are no better.
  void ChooseOther(const PolicyInput& input, const SplitPart& part, SlotsOfLayer slots) const {
    if (!part.IsWhole()) return;
    const std::vector<int32_t> other = part.Read({slots.data(), static_cast<size_t>(slots.size())});
    Write(part, Choose(input, part, other), slots);
  }

  static void Write(const SplitPart& part, const std::vector<int32_t>& layout, SlotsOfLayer slots) {
    for (size_t i = 0; i < layout.size(); ++i) {
      slots(part.slots[i]) = part.experts[static_cast<size_t>(layout[i])];
    }
  }

  std::vector<int32_t> Choose(const PolicyInput& input, const SplitPart& part,
                              std::span<const int32_t> other) const {
    return ChooseForSplit(
        part.domain,
        {.incumbent = part.incumbent,
         .other = other,
         .batches = part.batches,
         .copies_per_gpu = options_.max_moves_per_gpu.value_or(part.domain.num_experts()),
         .price_of_all_slots = input.previous == nullptr ? 0 : kPriceOfSplitCopies,
         .most_swaps = ByEffort(options_.effort, 4, 16, 64),
         .abandoned = input.abandoned});
  }

  PolicyOptions options_;
  std::unique_ptr<Policy> incremental_;
  std::unique_ptr<Policy> balanced_;
};

}  // namespace

std::unique_ptr<Policy> MakeFlowPolicy(const PolicyOptions& options) {
  return std::make_unique<FlowPolicy>(options);
}

}  // namespace eplb
