// Placement files, and the placements.jsonl that a run writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/digest.h"
#include "placement/placement.h"
#include "proto/wire/placement_json.h"

namespace eplb {

// One line of placements.jsonl: {"step":S,"version":V,"digest":"hex","decided_first_step":A,
// "decided_last_step":B,"decision":N,"policy":"..","asked_by":"..","reason":"..",
// "placement":{eplb.placement.v1}}. The six keys about the decision are optional when reading.
struct LoggedPlacement {
  int64_t step = 0;  // the first step that ran under it
  int64_t version = 0;
  Digest digest;
  Placement placement;
  int64_t decided_first_step = 0;  // steps that the decision covers; 0..-1 at the start
  int64_t decided_last_step = -1;
  int64_t decision = 0;       // number of the decision, which its chunks share; 0: not known
  std::string policy = {};    // policy that decided; "rollback" if an operator named the placement
  std::string asked_by = {};  // operator who asked for the placement; empty: the daemon's policy
  std::string reason = {};    // one sentence
};

// errors: InvalidArgument beginning with the path and naming the place; NotFound if there is no
// such file.
absl::StatusOr<Placement> ReadPlacementFile(const std::string& path);
// Reads a placement and the replicas' shares, if the file has them.
absl::StatusOr<wire::PlacementWithShares> ReadPlacementWithShares(const std::string& path);
// Checks that steps and versions rise and that every digest is that of its placement; errors name
// the line.
absl::StatusOr<std::vector<LoggedPlacement>> ReadPlacementsLog(const std::string& path);
// Returns one line without a newline.
std::string PlacementsLogLine(const LoggedPlacement& entry);

}  // namespace eplb
