// Readers and writers of the files of engines. NAME_format.cc has those of one engine.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "base/json_value.h"
#include "client/cli/formats/arrays.h"
#include "client/cli/formats/format_table.h"
#include "client/cli/formats/load_window.h"

namespace eplb {

// ---- vllm-ascend, MindIE and verl: the expert map, and a record of a load of verl.

// {"moe_layer_count":L,"layer_list":[{"layer_id":0,"device_count":G,"device_list":[
//   {"device_id":0,"device_expert":[experts in slot order]}]}]}
// Layers and devices are in the order of their ids, from 0; with S % G != 0 the first devices
// hold one more. Counts and ids may be missing, as in verl's files. errors: without path, name
// layer and device.
absl::StatusOr<PlacementParts> ParseAscendPlacement(std::string_view bytes);
absl::StatusOr<std::string> WriteAscendPlacement(const Placement& placement,
                                                 const WriteOptions& options);

// True for an object with aggregated_load.
bool IsAscendLoad(const wire::JsonValue& value);

// {"aggregated_load":{"0":{"0":1,"1":5}}}: tokens by layer and expert. Experts without an entry got
// none, which is noted; LoadFile::layers has the layers' keys. errors: without path.
absl::StatusOr<LoadFile> AscendLoad(const wire::JsonValue& value);
absl::StatusOr<LoadFile> ParseAscendLoad(const std::string& path, std::string_view bytes);

// ---- DeepSeek's EPLB: the maps that rebalance_experts returns, and the load that it takes.

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
absl::StatusOr<LoadFile> ParseDeepseekLoad(const std::string& path, std::string_view bytes);

// ---- SGLang: the JSON of --init-expert-location. Its rows are the model's layers. A dense layer
// in front has a row, too: a map with the experts in order, and counts of 0.

// {"physical_to_logical_map":[L][S]}, all rows of the file, also as a file of torch.save. errors:
// without path.
absl::StatusOr<PlacementParts> ParseSglangPlacement(std::string_view bytes);
// With rows for the dense layers before and between options.layers; none if these are not known.
absl::StatusOr<std::string> WriteSglangPlacement(const Placement& placement,
                                                 const WriteOptions& options);

// True for an object with logical_count.
bool IsSglangLoad(const wire::JsonValue& value);

// {"logical_count":[L][E]}, or [steps][L][E] of which each step is a window, or such an array
// alone. errors: without path.
absl::StatusOr<LoadFile> SglangLoad(const wire::JsonValue& value);

// ---- TensorRT-LLM: the YAML of moe_config.load_balancer.

// num_slots, layer_updates_per_iter and initial_global_assignments, whose keys are the model's
// layer numbers: 3..60 for DeepSeek-V3, 1, 3, 5 and so on where every other layer is dense. The
// first two may be missing. errors: without path.
absl::StatusOr<PlacementParts> ParseTrtllmPlacement(std::string_view bytes);

// layer_updates_per_iter is 0: the placement stays as it is. errors: InvalidArgument naming
// --first-layer and --layers when the layers' numbers are unknown.
absl::StatusOr<std::string> WriteTrtllmPlacement(const Placement& placement,
                                                 const WriteOptions& options);

// ---- TensorRT-LLM: the directory of expert statistics that EXPERT_STATISTIC_PATH names.

// True for a directory with meta_info.json.
bool IsTrtllmStatistics(const std::string& path);

// meta_info.json {num_experts, num_experts_per_token[, ep_size]} and rank0.safetensors,
// rank1.safetensors, .. with int64 [num_experts] under "{iteration}_{layer}". Counts are summed
// over ranks; each iteration is a window; LoadFile::layers has the model's layer numbers, which may
// have gaps. errors, beginning with the file's path: NotFound; InvalidArgument: a rank without its
// file or with other keys than rank 0, an iteration with other layers than the first, a negative
// count, a sum above 2^63-1.
absl::StatusOr<LoadFile> ReadTrtllmStatistics(const std::string& path);

// Returns the ranks of the files in a directory whose names are a prefix, a rank and a suffix.
// errors: InvalidArgument.
absl::StatusOr<std::set<int32_t>> RanksOfFiles(const std::string& directory, const char* prefix,
                                               const char* suffix);

// ---- vLLM: JSON lines that open pull requests propose, with records of the load and a start map.
// vLLM 0.33.0 neither writes nor reads them.

// True for an object with record_type.
bool IsVllmRecord(const wire::JsonValue& value);

// The one eplb_initial_mapping, whose keys are MoE layers from 0; an eplb_load_meta beside it tells
// ranks, nodes and expert groups. errors: begin with `path`, name the line.
absl::StatusOr<PlacementParts> ParseVllmPlacement(const std::string& path, std::string_view bytes);
absl::StatusOr<std::string> WriteVllmPlacement(const Placement& placement,
                                               const WriteOptions& options);

// Each eplb_load_stats is a window: the loads of the slots, added up for the experts that the
// record's own p2l_map says they hold. Records of other types are skipped, with a note. errors:
// begin with `path`, name the line.
absl::StatusOr<LoadFile> ParseVllmLoad(const std::string& path, std::string_view bytes);

// ---- Tokens of experts, counted from a router's single choices.

// Counts the choices of a routing replay, integers [tokens, layers, top-k], as one window. A number
// below 0 is no expert. errors: InvalidArgument: no such array, an expert of `num_experts` or
// above, too many counts.
absl::StatusOr<LoadWindow> CountChoices(const Array& array, int32_t num_experts);

// Router traces of Megatron-Core: a file for each rank, in each line {"step","layer",
// "top_indices":[tokens][top-k]}, with "block" and "mtp_idx" if heads predict further tokens.

// True for a directory with files router_trace_rankN.jsonl.
bool HoldsRouterTraces(const std::string& path);
// True for the content of such a file.
bool IsRouterTrace(std::string_view bytes);

// Reads the file at `path`, or those in a directory, whose counts are summed over ranks. Each step
// is a window, and a layer that a step does not have got no tokens. Rows are the layers in order,
// the heads last; without heads LoadFile::layers has their numbers.
// errors, beginning with the file's path: as ReadRegularFile; InvalidArgument naming the line: no
// such record, an expert of `num_experts` or above, too many counts.
absl::StatusOr<LoadFile> ReadRouterTraces(const std::string& path,
                                          std::optional<int32_t> num_experts);

}  // namespace eplb
