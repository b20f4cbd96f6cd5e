#include "client/files/formats/conversion.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "client/files/formats/format_table.h"
#include "client/files/formats/torch_dump.h"
#include "client/files/read_file.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

std::string Name(const PlacementFormat& format) { return std::string(format.name); }

// -1 in the slots of an unusable GPU is a mistake in the file of a system that does not know it.
absl::Status CheckEmptySlots(const PlacementFormat& format, const Placement& placement) {
  const IndexMatrix& slots = placement.physical_to_logical_map();
  for (Eigen::Index i = 0; i < slots.size() && !format.holds_unusable_slots; ++i) {
    if (slots.data()[i] >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("layer ", i / slots.cols(), " slot ",
                                                   i % slots.cols(), " holds no expert, and ",
                                                   Name(format), " has no word for that"));
  }
  return absl::OkStatus();
}

// What the target cannot hold at all; --gpus is what only the command line can add.
absl::Status CheckTarget(const PlacementFormat& to, const FrameNumbers& frame,
                         const Placement& placement) {
  const Topology& topology = placement.topology();
  if (to.holds_gpus && !frame.num_gpus.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(to), " needs --gpus: the source does not say how many GPUs there are"));
  }
  if (!to.holds_unequal_gpus && !topology.equal_slots_per_gpu()) {
    return absl::InvalidArgumentError(absl::StrCat(topology.num_slots(), " slots on ",
                                                   topology.num_gpus(), " GPUs: in ", Name(to),
                                                   " all GPUs hold the same number of slots"));
  }
  return CheckEmptySlots(to, placement);
}

// Slots whose rank is not their place among the slots of their expert.
int64_t CountReordered(const Placement& placement) {
  const absl::StatusOr<Placement> rising =
      Placement::FromSlots(placement.topology(), placement.physical_to_logical_map());
  if (!rising.ok()) return 0;
  const auto held = placement.physical_to_logical_map() >= 0;
  return (held && rising->replica_rank() != placement.replica_rank()).count();
}

bool HasReplicas(const Placement& placement) { return placement.max_replicas() > 1; }

void AppendNumber(std::string& text, const char* name, const std::optional<int32_t>& number) {
  if (number.has_value()) absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ", *number);
}

// Said of what the source has and the target does not hold.
void NoteLosses(const PlacementFormat& to, const WriteOptions& write, const FrameNumbers& frame,
                const Placement& placement, std::vector<std::string>& notes) {
  const int64_t reordered = to.holds_ranks(write) ? 0 : CountReordered(placement);
  if (reordered > 0) {
    notes.push_back(absl::StrCat("holds no replica ranks: those of ", reordered,
                                 " slots are lost, the lowest slot of an expert is its primary"));
  }
  std::string lost;
  if (!to.holds_gpus) AppendNumber(lost, "num_gpus", frame.num_gpus);
  if (!to.holds_nodes_and_groups) {
    AppendNumber(lost, "num_nodes", frame.num_nodes);
    AppendNumber(lost, "num_groups", frame.num_groups);
  }
  if (!to.holds_layer_numbers) AppendNumber(lost, "first layer", frame.first_layer);
  if (write.shares != nullptr && !to.holds_shares) notes.emplace_back("replica_share is dropped");
  if (!lost.empty()) notes.push_back(absl::StrCat("does not say ", lost));
}

// Said of what the target holds and nobody gave.
void NoteAssumptions(const PlacementFormat& to, const WriteOptions& write,
                     const PlacementParts& parts, const FrameNumbers& frame,
                     const Placement& placement, std::vector<std::string>& notes) {
  if (!parts.ranks.has_value() && to.holds_ranks(write) && HasReplicas(placement)) {
    notes.emplace_back(
        "the source has no replica ranks: the lowest slot of an expert is its primary");
  }
  if (!to.holds_nodes_and_groups) return;
  if (!frame.num_nodes.has_value()) notes.emplace_back("nodes unknown, 1 assumed (--nodes)");
  if (!frame.num_groups.has_value()) {
    notes.emplace_back("expert groups unknown, 1 assumed (--groups)");
  }
}

}  // namespace

absl::StatusOr<Conversion> ConvertPlacementFile(const ConversionOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const PlacementFormat from, FindPlacementFormat(options.from));
  EPLB_ASSIGN_OR_RETURN(const PlacementFormat to, FindPlacementFormat(options.to));
  EPLB_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(options.in));
  if (IsTorchDump(bytes)) return InFile(options.in, TorchDumpError());
  EPLB_ASSIGN_OR_RETURN(const PlacementParts parts, from.parse(options.in, bytes));
  const absl::StatusOr<FrameNumbers> frame = MergeFrames(parts.frame, options.flags);
  if (!frame.ok()) return InFile(options.in, frame.status());
  const absl::StatusOr<Placement> placement = MakePlacement(parts, *frame);
  if (!placement.ok()) return InFile(options.in, placement.status());
  absl::Status holds = CheckEmptySlots(from, *placement);
  if (holds.ok()) holds = CheckTarget(to, *frame, *placement);
  if (!holds.ok()) return InFile(options.in, holds);

  const WriteOptions write{.path = options.out,
                           .first_layer = frame->first_layer,
                           .shares = parts.shares.has_value() ? &*parts.shares : nullptr};
  Conversion conversion;
  EPLB_ASSIGN_OR_RETURN(conversion.bytes, to.write(*placement, write));
  for (const std::string& dropped : parts.dropped) {
    conversion.notes.push_back(dropped + " is dropped");
  }
  NoteLosses(to, write, parts.frame, *placement, conversion.notes);
  NoteAssumptions(to, write, parts, *frame, *placement, conversion.notes);
  return conversion;
}

}  // namespace eplb
