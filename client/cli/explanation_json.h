// `eplbctl explain -o json`.
#ifndef EPLB_CLIENT_CLI_EXPLANATION_JSON_H_
#define EPLB_CLIENT_CLI_EXPLANATION_JSON_H_

#include <cstdint>
#include <string>

#include "client/cli/explanation.h"

namespace eplb::cli {

// Returns one line. layer, expert: < 0 for none.
// {"job","state","paused","pause_reason","waiting_for","version","settings":{..},"split",
// "measured_split","balancedness","balancedness_without_eplb","balancedness_static",
// "window":{"first_step","last_step"},"balancedness_predicted","prediction_error",
// "balancedness_seen","switched":plan|null,"newest":plan|null,
// "candidates":[{"name","in_use","windows","balancedness","net_seconds","realized"}],
// "load_window":{"first_step","last_step"},"layers_are","layers":[{"layer","model_layer",
// "balancedness","hottest_gpu","hottest_gpu_load","hottest_expert","hottest_expert_share",
// "hottest_expert_replicas"}]}
// "balancedness", its two counterfactuals and "window" describe the newest measured window and are
// null before the first one. "layers_are" is "measured" or "computed" (the current placement under
// the load of "load_window"). A layer adds {"gpu_loads":[..]|null, measured,
// "gpu_loads_computed":[..],"gpu_loads_before":[..]|null,"moved":[{"expert","from","to"}]|null}, an
// expert {"expert":{"expert","share","slots":[..],"gpus":[..],"gpus_before":[..]|null}}. With
// "split" "batch" GPU loads are those of an exact split of the whole window, which is the best.
std::string ExplanationToJson(const Explanation& explanation, int32_t layer, int32_t expert);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_EXPLANATION_JSON_H_
