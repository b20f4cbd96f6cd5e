// The placement formats that `eplbctl convert` knows, one row each, and the format of a given file.
// threads: safe, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cli/formats/layer_numbers.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

// Numbers that a file or the command line may give.
struct ShapeNumbers {
  std::optional<int32_t> num_gpus;
  std::optional<int32_t> num_nodes;
  std::optional<int32_t> num_groups;
  LayerChoice layers;  // only the command line gives it
};

struct PlacementParts {
  IndexMatrix slots;                        // physical_to_logical_map [L, S], not checked
  std::optional<IndexMatrix> ranks = {};    // replica ranks [L, S], if the format has them
  std::optional<int32_t> num_experts = {};  // absent: the largest id + 1
  ShapeNumbers frame = {};
  LayerNumbers layers = {};               // the model's number of each row, if the format has it
  std::optional<RealMatrix> shares = {};  // replica_share [L, S], right for these slots
  std::vector<std::string> notes = {};    // losses, a sentence each
};

// Returns the numbers of both. errors: InvalidArgument, naming the flag, if they contradict each
// other.
absl::StatusOr<ShapeNumbers> MergeShapes(const ShapeNumbers& file, const ShapeNumbers& flags);

// Numbers that are not given are 1. errors: InvalidArgument, naming layer and slot, as Placement
// and Topology.
absl::StatusOr<Placement> MakePlacement(const PlacementParts& parts, const ShapeNumbers& frame);

struct WriteOptions {
  std::string path;                    // its ending chooses among the files of `deepseek`
  LayerNumbers layers = {};            // the model's number of each row; empty: not known
  const RealMatrix* shares = nullptr;  // replica_share, may be none
};

struct PlacementFormat {
  std::string_view name;
  // errors begin with `path`; InvalidArgument says what is wrong and where.
  absl::StatusOr<PlacementParts> (*parse)(const std::string& path, std::string_view bytes);
  absl::StatusOr<std::string> (*write)(const Placement& placement, const WriteOptions& options);
  bool (*holds_ranks)(const WriteOptions& options);  // the order of an expert's replicas
  bool holds_gpus = false;
  bool holds_nodes_and_groups = false;
  bool holds_layer_numbers = false;   // the model's; else MoE layers are counted from 0
  bool counts_model_layers = false;   // a row for every layer of the model, dense ones in front
  bool holds_unequal_gpus = false;    // GPUs that differ by a slot
  bool holds_unusable_slots = false;  // slots that hold -1
  bool holds_shares = false;          // replica_share
};

std::span<const PlacementFormat> PlacementFormats();

// errors: InvalidArgument with the names that there are.
absl::StatusOr<PlacementFormat> FindPlacementFormat(std::string_view name);

// The format whose magic, keys or rows the file has. errors: InvalidArgument, beginning with
// `path`, for a file of none of them.
absl::StatusOr<PlacementFormat> DetectPlacementFormat(const std::string& path,
                                                      std::string_view bytes);

// For readers of our own placements alone: returns `error`, or if the file at `path` is a placement
// of another system, an error that names the system and the command that converts it.
absl::Status NameForeignPlacement(const std::string& path, const absl::Status& error);

}  // namespace eplb
