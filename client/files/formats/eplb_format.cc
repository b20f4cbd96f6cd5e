#include "client/files/formats/eplb_format.h"

#include <utility>

#include "client/files/read_file.h"
#include "placement/status_macros.h"
#include "proto/wire/placement_json.h"

namespace eplb {
namespace {

absl::StatusOr<PlacementParts> ParseEplb(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(wire::PlacementWithShares read, wire::PlacementWithSharesFromJson(bytes));
  const Topology& topology = read.placement.topology();
  return PlacementParts{.slots = read.placement.physical_to_logical_map(),
                        .ranks = read.placement.replica_rank(),
                        .num_experts = topology.num_experts(),
                        .frame = {.num_gpus = topology.num_gpus(),
                                  .num_nodes = topology.num_nodes(),
                                  .num_groups = topology.num_groups()},
                        .shares = std::move(read.replica_share),
                        .notes = {}};
}

}  // namespace

absl::StatusOr<PlacementParts> ParseEplbPlacement(const std::string& path, std::string_view bytes) {
  absl::StatusOr<PlacementParts> parts = ParseEplb(bytes);
  if (!parts.ok()) return InFile(path, parts.status());
  return parts;
}

absl::StatusOr<std::string> WriteEplbPlacement(const Placement& placement,
                                               const WriteOptions& options) {
  return wire::PlacementToJson(placement, options.shares) + "\n";
}

}  // namespace eplb
