#include "client/slot_outputs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

constexpr char kPage[] = " (docs/registering-tensors.md)";

absl::StatusOr<std::vector<uint64_t>> ReadOutputs(const StartFields& fields, const char* name) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, FindField(fields, name));
  std::vector<uint64_t> outputs;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(word, &outputs.emplace_back())) {
      return InvalidInput("\"", word, "\" is not an output");
    }
  }
  return outputs;
}

// Judges one EP group, whose ranks are ep_group * G and following.
class EpGroupResult {
 public:
  EpGroupResult(const CheckedLayer& checked, int32_t ep_group, std::span<const SlotOutputs> ranks)
      : here_(checked.here),
        rotated_(checked.rotated),
        layer_(checked.layer),
        grid_(checked.grid),
        ep_group_(ep_group),
        ranks_(ranks) {}

  absl::Status Find() const {
    const auto experts = static_cast<size_t>(here_.topology().num_experts());
    std::vector<std::optional<uint64_t>> known(experts);
    std::vector<SlotId> first(experts);
    for (const SlotId slot : Used()) {
      const auto expert = static_cast<size_t>(here_.ExpertIn(layer_, slot).value);
      const uint64_t output = At(slot, &SlotOutputs::before);
      if (!known[expert].has_value()) {
        known[expert] = output;
        first[expert] = slot;
      } else if (known[expert] != output) {
        return InvalidInput(Expert(expert), "'s replicas in ", Named(first[expert]), " and ",
                            Named(slot), " give different outputs before anything moves", kPage);
      }
    }
    for (const SlotId slot : Used()) {
      const auto expert = static_cast<size_t>(rotated_.ExpertIn(layer_, slot).value);
      if (At(slot, &SlotOutputs::moved) == known[expert]) continue;
      return Changed(expert,
                     absl::StrCat("moved from ", Named(first[expert]), " to ", Named(slot)));
    }
    for (const SlotId slot : Used()) {
      const auto expert = static_cast<size_t>(here_.ExpertIn(layer_, slot).value);
      if (At(slot, &SlotOutputs::back) == known[expert]) continue;
      return Changed(expert, absl::StrCat("moved away from ", Named(slot), " and back"));
    }
    const bool all_equal =
        std::ranges::all_of(known, [&](const auto& output) { return output == known[0]; });
    if (!all_equal || experts == 1) return absl::OkStatus();
    return FailedPrecondition("check: layer ", layer_.value,
                              ": all experts give the same output, so nothing can be found; check "
                              "once their weights differ",
                              kPage);
  }

 private:
  std::vector<SlotId> Used() const {
    std::vector<SlotId> used;
    for (int32_t slot = 0; slot < here_.topology().num_slots(); ++slot) {
      if (here_.ExpertIn(layer_, SlotId{slot}).value >= 0) used.push_back(SlotId{slot});
    }
    return used;
  }
  int32_t RankOf(SlotId slot) const {
    return grid_.RankOf(ep_group_, here_.topology().GpuOf(slot)).value;
  }
  uint64_t At(SlotId slot, std::vector<uint64_t> SlotOutputs::*when) const {
    const int32_t first = here_.topology().FirstSlotOf(here_.topology().GpuOf(slot)).value;
    return (ranks_[static_cast<size_t>(RankOf(slot))].*
            when)[static_cast<size_t>(slot.value - first)];
  }
  std::string Expert(size_t expert) const {
    return absl::StrCat("check: layer ", layer_.value, ": expert ", expert);
  }
  std::string Named(SlotId slot) const {
    return absl::StrCat("slot ", slot.value, " of rank ", RankOf(slot));
  }
  absl::Status Changed(size_t expert, const std::string& how) const {
    return InvalidInput(Expert(expert), " gives another output when it is ", how,
                        ": it computes with a tensor that is neither registered nor rebuilt",
                        kPage);
  }

  const Placement& here_;
  const Placement& rotated_;
  const LayerId layer_;
  const RankGrid& grid_;
  const int32_t ep_group_;
  const std::span<const SlotOutputs> ranks_;
};

}  // namespace

absl::StatusOr<Placement> RotateLayer(const Placement& placement, LayerId layer) {
  LayerPlacement rotated = placement.Layer(layer);
  std::vector<size_t> used;
  for (size_t slot = 0; slot < rotated.physical_to_logical.size(); ++slot) {
    if (rotated.physical_to_logical[slot] >= 0) used.push_back(slot);
  }
  for (size_t i = 1; i < used.size(); ++i) {
    std::swap(rotated.physical_to_logical[used[0]], rotated.physical_to_logical[used[i]]);
    std::swap(rotated.replica_rank[used[0]], rotated.replica_rank[used[i]]);
  }
  return placement.WithLayers({&rotated, 1});
}

StartFields FieldsOf(const SlotOutputs& outputs) {
  return {{"failure", outputs.error},
          {"before", absl::StrJoin(outputs.before, " ")},
          {"moved", absl::StrJoin(outputs.moved, " ")},
          {"back", absl::StrJoin(outputs.back, " ")}};
}

absl::StatusOr<SlotOutputs> OutputsFrom(const StartFields& fields) {
  SlotOutputs outputs;
  EPLB_ASSIGN_OR_RETURN(outputs.error, FindField(fields, "failure"));
  EPLB_ASSIGN_OR_RETURN(outputs.before, ReadOutputs(fields, "before"));
  EPLB_ASSIGN_OR_RETURN(outputs.moved, ReadOutputs(fields, "moved"));
  EPLB_ASSIGN_OR_RETURN(outputs.back, ReadOutputs(fields, "back"));
  return outputs;
}

absl::Status CompareOutputs(const CheckedLayer& checked, std::span<const SlotOutputs> ranks) {
  const Topology& topology = checked.here.topology();
  const RankGrid& grid = checked.grid;
  const auto holds = [&](RankId rank) {
    return grid.PipelineStageOf(rank) == checked.pipeline_stage;
  };
  for (int32_t rank = 0; rank < grid.world_size(); ++rank) {
    if (!holds(RankId{rank})) continue;
    const SlotOutputs& said = ranks[static_cast<size_t>(rank)];
    const std::string where = absl::StrCat("check: layer ", checked.layer.value, ": ");
    if (!said.error.empty()) {
      return FailedPrecondition(where, "the probe failed on rank ", rank, ": ", said.error);
    }
    const auto slots = static_cast<size_t>(topology.SlotsOf(grid.GpuOf(RankId{rank})));
    for (const std::vector<uint64_t>* outputs : {&said.before, &said.moved, &said.back}) {
      if (outputs->size() == slots) continue;
      return Internal(where, "rank ", rank, " spoke of ", outputs->size(), " slots, it has ",
                      slots);
    }
  }
  for (int32_t ep_group = 0; ep_group < grid.num_ep_groups(); ++ep_group) {
    if (!holds(grid.RankOf(ep_group, GpuId{0}))) continue;
    EPLB_RETURN_IF_ERROR(EpGroupResult(checked, ep_group, ranks).Find());
  }
  return absl::OkStatus();
}

}  // namespace eplb
