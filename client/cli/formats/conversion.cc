#include "client/cli/formats/conversion.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "client/cli/formats/layer_numbers.h"
#include "client/cli/formats/torch_file.h"

namespace eplb {
namespace {

std::string Name(const PlacementFormat& format) { return std::string(format.name); }

// -1 in the slots of an unusable GPU is a mistake in the file of a system that does not know it.
absl::Status CheckEmptySlots(const PlacementFormat& format, const Placement& placement) {
  const IndexMatrix& slots = placement.physical_to_logical_map();
  for (Eigen::Index i = 0; i < slots.size() && !format.holds_unusable_slots; ++i) {
    if (slots.data()[i] >= 0) continue;
    return InvalidInput("layer ", i / slots.cols(), " slot ", i % slots.cols(),
                        " holds no expert, and ", Name(format), " has no word for that");
  }
  return absl::OkStatus();
}

// Neither file can hold such a placement: a number of GPUs that does not fit is likely a typo.
absl::Status CheckHolds(const PlacementFormat& format, const Placement& placement) {
  const Topology& topology = placement.topology();
  if (format.holds_unequal_gpus || topology.equal_slots_per_gpu()) {
    return CheckEmptySlots(format, placement);
  }
  return InvalidInput(topology.num_slots(), " slots on ", topology.num_gpus(), " GPUs: in ",
                      Name(format), " all GPUs hold the same number of slots");
}

// Refuses a placement that the target cannot hold. Only --gpus can add the number of GPUs.
absl::Status CheckTarget(const PlacementFormat& to, const ShapeNumbers& frame,
                         const Placement& placement) {
  if (to.holds_gpus && !frame.num_gpus.has_value()) {
    return InvalidInput(Name(to), " needs --gpus: the source does not contain the number of GPUs");
  }
  return CheckHolds(to, placement);
}

bool NumbersLayers(const PlacementFormat& format) {
  return format.holds_layer_numbers || format.counts_model_layers;
}

absl::Status CheckLayerChoice(const PlacementFormat& from, const PlacementFormat& to,
                              const LayerChoice& choice) {
  if (!choice.given()) return absl::OkStatus();
  const char* flag = choice.first.has_value() ? "--first-layer" : "--layers";
  if (!NumbersLayers(from) && !NumbersLayers(to)) {
    return InvalidInput(flag, " has no meaning from ", Name(from), " to ", Name(to),
                        ": both count MoE layers from 0; it is for sglang and trtllm");
  }
  const int32_t first = choice.first.value_or(0);
  if (first >= 0 && first <= kMaxLayerNumber) return absl::OkStatus();
  return InvalidInput(flag, " is ", first, ", expected 0..", kMaxLayerNumber);
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

// The facts that a file does not carry, and the flags that supply them when the file is read.
struct Lost {
  std::vector<std::string> names;
  std::vector<std::string> flags;

  void Add(const char* name, const char* flag, const std::optional<int32_t>& number) {
    if (!number.has_value()) return;
    names.emplace_back(name);
    // A reader assumes 1, except for GPUs.
    if (*number != 1 || names.back() == kGpus) flags.push_back(absl::StrCat(flag, " ", *number));
  }

  void Add(const LayerNumbers& layers) {
    if (layers.empty()) return;
    names.emplace_back("layer numbers");
    flags.push_back(ChoiceOf(layers).Flag());
  }

  static constexpr char kGpus[] = "GPUs";
};

// Notes the facts of the source that the target does not hold.
void NoteLosses(const PlacementFormat& to, const WriteOptions& write, const PlacementParts& parts,
                const Placement& placement, std::vector<std::string>& notes) {
  const ShapeNumbers& frame = parts.frame;
  const int64_t reordered = to.holds_ranks(write) ? 0 : CountReordered(placement);
  if (reordered > 0) {
    notes.push_back(absl::StrCat(Name(to), " files carry no replica ranks: those of ", reordered,
                                 " slots are lost, the lowest slot of an expert is its primary"));
  }
  if (write.shares != nullptr && !to.holds_shares) notes.emplace_back("replica_share is dropped");
  Lost lost;
  if (!to.holds_gpus) lost.Add(Lost::kGpus, "--gpus", frame.num_gpus);
  if (!to.holds_nodes_and_groups) {
    lost.Add("nodes", "--nodes", frame.num_nodes);
    lost.Add("expert groups", "--groups", frame.num_groups);
  }
  if (!NumbersLayers(to)) lost.Add(parts.layers);
  if (lost.names.empty()) return;
  std::string last = lost.names.back();
  lost.names.pop_back();
  if (!lost.names.empty()) last = absl::StrCat(absl::StrJoin(lost.names, ", "), " or ", last);
  notes.push_back(absl::StrCat(Name(to), " files carry no ", last));
  if (lost.flags.empty()) return;
  absl::StrAppend(&notes.back(), "; give ", absl::StrJoin(lost.flags, " "), " to convert back");
}

// Notes the facts of the target that neither the source nor a flag supplies.
void NoteAssumptions(const PlacementFormat& to, const WriteOptions& write,
                     const PlacementParts& parts, const ShapeNumbers& frame,
                     const Placement& placement, std::vector<std::string>& notes) {
  if (!parts.ranks.has_value() && to.holds_ranks(write) && HasReplicas(placement)) {
    notes.emplace_back(
        "the source has no replica ranks: the lowest slot of an expert is its primary");
  }
  if (!to.holds_nodes_and_groups) return;
  if (!frame.num_nodes.has_value()) {
    notes.emplace_back(
        "the source does not contain the number of nodes: 1 is assumed, --nodes gives another");
  }
  if (!frame.num_groups.has_value()) {
    notes.emplace_back(
        "the source does not contain the number of expert groups: 1 is assumed, --groups gives "
        "another");
  }
}

// Rows of a file with one for every model layer: those of the choice are kept.
absl::Status ChooseModelLayers(const PlacementFormat& to, const LayerChoice& choice,
                               PlacementParts& parts) {
  if (!choice.given() && to.counts_model_layers) return absl::OkStatus();
  const std::string note = NoteOnDenseRows(DenseRows(parts.slots), choice, "experts lie in order");
  if (!note.empty()) parts.notes.push_back(note);
  if (!choice.given()) return absl::OkStatus();
  const LayerNumbers all = Consecutive(0, parts.slots.rows());
  EPLB_ASSIGN_OR_RETURN(const std::vector<Eigen::Index> rows, ChooseRows(all, choice));
  parts.slots = IndexMatrix(parts.slots(rows, Eigen::all));
  for (const Eigen::Index row : rows) parts.layers.push_back(all[static_cast<size_t>(row)]);
  return absl::OkStatus();
}

// Rows of a file that numbers its layers.
absl::Status ChooseNumberedLayers(const LayerChoice& choice, PlacementParts& parts) {
  if (choice.first.has_value() && *choice.first != parts.layers.front()) {
    return InvalidInput("the file has ", parts.layers.front(), ", --first-layer is ",
                        *choice.first);
  }
  if (choice.list.empty()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const std::vector<Eigen::Index> rows, ChooseRows(parts.layers, choice));
  parts.slots = IndexMatrix(parts.slots(rows, Eigen::all));
  parts.layers = choice.list;
  return absl::OkStatus();
}

// The numbers that the choice gives to the rows of a file that has none.
absl::StatusOr<LayerNumbers> NameLayers(const PlacementFormat& to, const LayerChoice& choice,
                                        PlacementParts& parts) {
  const auto count = parts.slots.rows();
  if (choice.first.has_value()) return Consecutive(*choice.first, count);
  if (choice.given() && std::ssize(choice.list) != count) {
    return InvalidInput("has ", count, " layers, ", choice.Flag(), " names ", choice.list.size());
  }
  if (!choice.given() && to.counts_model_layers) {
    parts.notes.push_back(absl::StrCat(
        Name(to), " has a row for every model layer, and MoE layer 0 is written as row 0; give ",
        "--first-layer when dense layers precede it (3 for DeepSeek-V3), or 0; --layers when dense "
        "layers are between MoE layers"));
  }
  return choice.list;
}

// The model's number of each row that is left in `parts`; empty: not known.
absl::StatusOr<LayerNumbers> TakeLayers(const PlacementFormat& from, const PlacementFormat& to,
                                        const LayerChoice& choice, PlacementParts& parts) {
  if (!from.counts_model_layers && parts.layers.empty()) return NameLayers(to, choice, parts);
  if (!from.counts_model_layers) {
    EPLB_RETURN_IF_ERROR(ChooseNumberedLayers(choice, parts));
    return parts.layers;
  }
  EPLB_RETURN_IF_ERROR(ChooseModelLayers(to, choice, parts));
  // A choice of the command line needs no hint to convert the file back.
  return std::exchange(parts.layers, {});
}

}  // namespace

absl::StatusOr<Conversion> ConvertPlacementFile(const ConversionOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const PlacementFormat from, FindPlacementFormat(options.from));
  EPLB_ASSIGN_OR_RETURN(const PlacementFormat to, FindPlacementFormat(options.to));
  EPLB_RETURN_IF_ERROR(CheckLayerChoice(from, to, options.flags.layers));
  EPLB_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(options.in));
  if (IsTorchFile(bytes) && from.name != "sglang") {
    return InvalidInput(options.in, ": is a file of torch.save, whose maps are those of sglang");
  }
  EPLB_ASSIGN_OR_RETURN(PlacementParts parts, from.parse(options.in, bytes));
  EPLB_ASSIGN_OR_RETURN(const ShapeNumbers frame,
                        InFile(options.in, MergeShapes(parts.frame, options.flags)));
  EPLB_ASSIGN_OR_RETURN(LayerNumbers layers,
                        InFile(options.in, TakeLayers(from, to, options.flags.layers, parts)));
  EPLB_ASSIGN_OR_RETURN(const Placement placement, InFile(options.in, MakePlacement(parts, frame)));
  EPLB_RETURN_IF_ERROR(InFile(options.in, CheckHolds(from, placement)));
  EPLB_RETURN_IF_ERROR(InFile(options.in, CheckTarget(to, frame, placement)));

  const WriteOptions write{.path = options.out,
                           .layers = std::move(layers),
                           .shares = parts.shares.has_value() ? &*parts.shares : nullptr};
  Conversion conversion;
  EPLB_ASSIGN_OR_RETURN(conversion.bytes, to.write(placement, write));
  conversion.notes = parts.notes;
  NoteLosses(to, write, parts, placement, conversion.notes);
  NoteAssumptions(to, write, parts, frame, placement, conversion.notes);
  return conversion;
}

}  // namespace eplb
