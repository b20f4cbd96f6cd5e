// The JSON of the daemon's answers, one line each, by the printer that eplbctl has (wire::ToJson).
#pragma once

#include <optional>
#include <span>
#include <string>

#include "server/http/api.h"

namespace eplb {

std::string JobToJson(v1::JobStatus job);
// with_ranks: false leaves "ranks" empty, which are most of a large job.
std::string JobsToJson(std::vector<v1::JobStatus> jobs, std::vector<v1::Refusal> refusals,
                       std::span<const std::string> warnings, bool with_ranks);
std::string PlacementBodyToJson(const std::string& job, const wire::PlacementBody& body);
// One layer: the expert of each slot, and the slot of each expert's primary.
std::string LayerToJson(const std::string& job, const wire::PlacementBody& body, int32_t layer);
// layer: only this one, as a matrix of one row. REQUIRES: it is a layer of the load.
std::string LoadToJson(const std::string& job, const core::WindowView& window,
                       std::optional<int32_t> layer);
// windows: oldest first.
std::string WindowsToJson(const std::string& job, std::vector<v1::Window> windows);
// Tokens of a window on GPUs: [layers][gpus], in equal shares of replicas, under the
// placements that its steps ran under and under the static layout.
std::string GpuLoadsToJson(const std::string& job, const WindowLoads& loads);
std::string TrafficToJson(const std::string& job, const Traffic& traffic);
std::string PlansToJson(const std::string& job, std::vector<v1::Plan> plans);
std::string EventsToJson(const std::string& job, std::vector<v1::JobEvent> events);
// {"error": text}
std::string ErrorToJson(std::string_view text);
// {"version": .., "grpc_version": ..}
std::string VersionToJson(const std::string& version, const std::string& grpc_version);

}  // namespace eplb
