// The placement formats that `eplbctl convert` knows, one row each.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_FORMATS_FORMAT_TABLE_H_
#define EPLB_CLIENT_FILES_FORMATS_FORMAT_TABLE_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "client/files/formats/placement_parts.h"
#include "placement/placement.h"

namespace eplb {

struct WriteOptions {
  std::string path;  // its ending chooses among the files of `deepseek`
  std::optional<int32_t> first_layer;
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

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_FORMATS_FORMAT_TABLE_H_
