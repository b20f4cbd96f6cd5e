// Which speeds of GPUs a job's decisions use, and from where they are known.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "placement/load.h"
#include "placement/topology.h"
#include "server/core/state/decision_context.h"
#include "server/core/values/views.h"

namespace eplb::v1 {
class JobStatus;
}  // namespace eplb::v1

namespace eplb::core {

// After a window completed: adds its step times to the job's estimate, unless gpu_speeds is off.
// Records "gpu_slow" and "gpu_recovered". Of ranks with the same GPU of different EP groups the
// slowest counts. Does nothing where the ranks record no step time, where rank 0 reports for all,
// and with pipeline stages, whose GPUs of one number are different GPUs.
void WatchGpuSpeeds(DecisionContext& context, Job& job);

// Before a solve on `load`: sets windows.speeds to what the settings say, null when all are equal.
// avoid_gpus goes before stated_speeds, and that before what was measured. Records "speeds_unused",
// once, when the policy knows no speeds or the settings do not fit the job.
// REQUIRES: the job has a run of the load's shape.
void RefreshSpeeds(DecisionContext& context, Job& job, const Load& load);

// The speed that stands for "least load there is": the tokens of the coldest experts that fill
// `gpu`'s slots, in relation to the mean of the GPUs that are not avoided. The upper quartile of
// the layers, so that in most layers the search can reach it and still balances the others; in
// kLeastAvoided..1, a multiple of 0.01.
inline constexpr double kLeastAvoided = 0.05;
double AvoidedSpeed(const Load& load, const Topology& topology, GpuId gpu, int32_t num_avoided);

// "; GPU loads are tokens / speed: GPU 3 0.82 (measured)"; empty when all are equal.
std::string SpeedsClause(const Job& job);

// Adds the GPUs that are slow, stated or avoided, rising. REQUIRES: the job has a run.
void ShowSpeeds(const Job& job, v1::JobStatus& status);

// Checks that a policy can follow the settings on this shape. errors: InvalidArgument with the
// setting: a GPU that the job does not have, all GPUs avoided, a hierarchy that the policy or the
// shape does not allow.
absl::Status CheckFits(const Settings& settings, const Topology& topology);

}  // namespace eplb::core
