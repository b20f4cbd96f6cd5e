// The expert map of vllm-ascend and MindIE.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FORMATS_ASCEND_FORMAT_H_
#define EPLB_CLIENT_FORMATS_ASCEND_FORMAT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "client/formats/format_table.h"

namespace eplb {

// {"moe_layer_count":L,"layer_list":[{"layer_id":0,"device_count":G,"device_list":[
//   {"device_id":0,"device_expert":[experts in slot order]}]}]}
// Layers and devices stand in the order of their ids, from 0; with S % G != 0 the first devices
// hold one more. errors: begin with `path`, name layer and device.
absl::StatusOr<PlacementParts> ParseAscendPlacement(const std::string& path,
                                                    std::string_view bytes);
absl::StatusOr<std::string> WriteAscendPlacement(const Placement& placement,
                                                 const WriteOptions& options);

}  // namespace eplb

#endif  // EPLB_CLIENT_FORMATS_ASCEND_FORMAT_H_
