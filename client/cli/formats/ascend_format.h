// The expert map of vllm-ascend, MindIE and verl, and verl's record of a load.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_FORMATS_ASCEND_FORMAT_H_
#define EPLB_CLIENT_CLI_FORMATS_ASCEND_FORMAT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "base/json_value.h"
#include "client/cli/formats/format_table.h"
#include "client/cli/formats/load_window.h"

namespace eplb {

// {"moe_layer_count":L,"layer_list":[{"layer_id":0,"device_count":G,"device_list":[
//   {"device_id":0,"device_expert":[experts in slot order]}]}]}
// Layers and devices are in the order of their ids, from 0; with S % G != 0 the first devices
// hold one more. Counts and ids may be missing, as in verl's files. errors: begin with `path`, name
// layer and device.
absl::StatusOr<PlacementParts> ParseAscendPlacement(const std::string& path,
                                                    std::string_view bytes);
absl::StatusOr<std::string> WriteAscendPlacement(const Placement& placement,
                                                 const WriteOptions& options);

// True for an object with aggregated_load.
bool IsAscendLoad(const wire::JsonValue& value);

// {"aggregated_load":{"0":{"0":1,"1":5}}}: tokens by layer and expert. Experts without an entry got
// none, which is noted; LoadFile::layers has the layers' keys. errors: without path.
absl::StatusOr<LoadFile> AscendLoad(const wire::JsonValue& value);
absl::StatusOr<LoadFile> ParseAscendLoad(const std::string& path, std::string_view bytes);

}  // namespace eplb

#endif  // EPLB_CLIENT_CLI_FORMATS_ASCEND_FORMAT_H_
