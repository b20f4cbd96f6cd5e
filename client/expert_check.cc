// Client::CheckExperts: moves every layer's experts by one slot and back, and compares their
// outputs.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/client_impl.h"
#include "client/slot_outputs.h"
#include "placement/digest.h"

namespace eplb {

absl::Status Client::Impl::CheckExperts(const ExpertProbe& probe, void* stream) {
  if (disabled_) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(ended_);
  if (executor_ == nullptr) {
    return FailedPrecondition("CheckExperts was called before RegisterExperts");
  }
  EPLB_RETURN_IF_ERROR(CheckNotCarried("CheckExperts"));
  EPLB_RETURN_IF_ERROR(StopAheadTogether("the experts were checked before the next vote"));
  EPLB_RETURN_IF_ERROR(CheckStream(stream));
  stream_ = stream;
  for (int32_t layer = 0; layer < topology_.num_layers(); ++layer) {
    EPLB_RETURN_IF_ERROR(CheckLayer(LayerId{layer}, probe));
  }
  return absl::OkStatus();
}

absl::Status Client::Impl::CheckLayer(LayerId layer, const ExpertProbe& probe) {
  const Placement& here = *running_.placement;
  EPLB_ASSIGN_OR_RETURN(const Placement rotated, RotateLayer(here, layer));
  SlotOutputs outputs;
  absl::Status failure;  // told to all ranks at the end: until then they move rows together
  Probe(probe, layer, outputs.before, failure);
  EPLB_RETURN_IF_ERROR(MoveForCheck(layer, here, rotated));
  Probe(probe, layer, outputs.moved, failure);
  if (const absl::Status back = MoveForCheck(layer, rotated, here); !back.ok()) {
    return EndAsMoved(absl::StrCat(back.message(), ", back to where they belong"));
  }
  Probe(probe, layer, outputs.back, failure);
  if (!failure.ok()) outputs.error = failure.ToString();
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                        all_gather_(EncodeOutputs(outputs)));
  EPLB_RETURN_IF_ERROR(failure);
  if (static_cast<int32_t>(answers.size()) != options_.world_size) {
    return FailedPrecondition("check: the all-gather gave ", answers.size(),
                              " answers, world_size is ", options_.world_size);
  }
  std::vector<SlotOutputs> ranks;
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    absl::StatusOr<SlotOutputs> said = DecodeOutputs(answers[rank]);
    if (!said.ok()) {
      return FailedPrecondition(
          "check: rank ", rank,
          " called another collective, or runs another version: ", said.status().message());
    }
    ranks.push_back(*std::move(said));
  }
  return CompareOutputs(
      {.here = here,
       .rotated = rotated,
       .layer = layer,
       .grid = grid_,
       .pipeline_stage = pipeline_stage_of_layer_[static_cast<size_t>(layer.value)]},
      ranks);
}

void Client::Impl::Probe(const ExpertProbe& probe, LayerId layer, std::vector<uint64_t>& outputs,
                         absl::Status& failure) const {
  if (!Holds(layer.value)) return;
  const PlacementView& placement = tables_.view();
  outputs.assign(static_cast<size_t>(placement.num_local_slots), 0);
  const std::span<const int32_t> experts = placement.physical_to_logical_map.subspan(
      static_cast<size_t>(layer.value) * static_cast<size_t>(placement.num_slots) +
      static_cast<size_t>(placement.first_local_slot));
  for (int32_t slot = 0; slot < placement.num_local_slots && failure.ok(); ++slot) {
    if (experts[static_cast<size_t>(slot)] < 0) continue;
    const absl::StatusOr<uint64_t> output = probe(layer.value, slot);
    failure = output.status();
    outputs[static_cast<size_t>(slot)] = output.value_or(0);
  }
}

absl::Status Client::Impl::MoveForCheck(LayerId layer, const Placement& from, const Placement& to) {
  EPLB_ASSIGN_OR_RETURN(const MigrationPlan plan, PlanMigration(from, to, {&layer, 1}, migration_));
  EPLB_RETURN_IF_ERROR(
      StageOnAllRanks(plan, absl::StrCat("check: the rows of layer ", layer.value)));
  if (const absl::Status switched = Switch({&layer, 1}, to); !switched.ok()) {
    return End(next_step_ - 1,
               DataLoss("check: the rows of layer ", layer.value,
                        " could not be put into their slots: ", switched.message()),
               /*target=*/nullptr);
  }
  Show({.version = running_.version,
        .digest = DigestOf(to),
        .placement = std::make_shared<const Placement>(to)});
  const absl::Status rebuilt = RebuildDerived(derived_, plan, topology_, gpu());
  return rebuilt.ok() ? absl::OkStatus() : End(next_step_ - 1, rebuilt, /*target=*/nullptr);
}

}  // namespace eplb
