// The arrays of DeepSeek's EPLB: the maps that rebalance_experts returns, and the load it takes.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_FORMATS_DEEPSEEK_FORMAT_H_
#define EPLB_CLIENT_CLI_FORMATS_DEEPSEEK_FORMAT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/formats/format_table.h"
#include "client/cli/formats/load_window.h"

namespace eplb {

// Told from the content: .npy and CSV are physical_to_logical_map [L,S] alone; .npz and a JSON
// object hold it, logical_to_physical_map [L,E,X] (X may be wider than needed, -1 at the tail) and
// logical_replica_count [L,E]. The three must agree. errors: begin with `path`.
absl::StatusOr<PlacementParts> ParseDeepseekPlacement(const std::string& path,
                                                      std::string_view bytes);

// The ending of options.path chooses: .npz and .json the three arrays, .npy and .csv
// physical_to_logical_map alone. errors: InvalidArgument for another ending.
absl::StatusOr<std::string> WriteDeepseekPlacement(const Placement& placement,
                                                   const WriteOptions& options);
bool DeepseekHoldsRanks(const WriteOptions& options);

// A load [L,E]: .npy, .npz (one array, or the one named load or weight), JSON matrix or CSV; a .npy
// of three dimensions is windows. errors: begin with `path`.
absl::StatusOr<std::vector<LoadWindow>> ParseDeepseekLoad(const std::string& path,
                                                          std::string_view bytes);

}  // namespace eplb

#endif  // EPLB_CLIENT_CLI_FORMATS_DEEPSEEK_FORMAT_H_
