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
#include "client/start.h"
#include "placement/digest.h"

namespace eplb {

absl::Status Client::Impl::CheckExperts(const ExpertProbe& probe, void* stream) {
  if (setup_.disabled) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(CheckRegistered("CheckExperts"));
  EPLB_RETURN_IF_ERROR(CheckNotCarried("CheckExperts"));
  EPLB_RETURN_IF_ERROR(StopAheadTogether("the experts were checked before the next vote"));
  EPLB_RETURN_IF_ERROR(CheckStream(stream));
  boundary_.stream = stream;
  for (int32_t layer = 0; layer < setup_.topology.num_layers(); ++layer) {
    EPLB_RETURN_IF_ERROR(CheckLayer(LayerId{layer}, probe));
  }
  shown_.ForgetSplits();  // those of the probe
  return absl::OkStatus();
}

absl::Status Client::Impl::CheckLayer(LayerId layer, const ExpertProbe& probe) {
  const Placement& here = *running().placement;
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
  const StartRound round{.what = "check", .extra = FieldsOf(outputs)};
  EPLB_ASSIGN_OR_RETURN(const std::vector<StartFields> sent, setup_.Exchange(round));
  EPLB_RETURN_IF_ERROR(failure);
  std::vector<SlotOutputs> ranks;
  for (const StartFields& fields : sent) {
    absl::StatusOr<SlotOutputs> read = OutputsFrom(fields);
    if (!read.ok()) {
      return FailedPrecondition("check: rank ", ranks.size(), " sent something else");
    }
    ranks.push_back(*std::move(read));
  }
  return CompareOutputs(
      {.here = here,
       .rotated = rotated,
       .layer = layer,
       .grid = setup_.grid,
       .pipeline_stage = rows_.pipeline_stage_of_layer[static_cast<size_t>(layer.value)]},
      ranks);
}

void Client::Impl::Probe(const ExpertProbe& probe, LayerId layer, std::vector<uint64_t>& outputs,
                         absl::Status& failure) const {
  if (!Holds(layer.value)) return;
  const PlacementView& placement = shown_.view();
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
  EPLB_ASSIGN_OR_RETURN(const MigrationPlan plan,
                        PlanMigration(from, to, {&layer, 1}, rows_.migration));
  EPLB_RETURN_IF_ERROR(
      StageOnAllRanks(plan, absl::StrCat("check: the rows of layer ", layer.value)));
  if (const absl::Status switched = Switch({&layer, 1}, to); !switched.ok()) {
    return End(DataLoss("check: the rows of layer ", layer.value,
                        " could not be put into their slots: ", switched.message()));
  }
  shown_.Show(to);
  const absl::Status rebuilt = RebuildDerived(rows_.derived, plan, setup_.topology, setup_.gpu());
  return rebuilt.ok() ? absl::OkStatus() : End(rebuilt);
}

}  // namespace eplb
