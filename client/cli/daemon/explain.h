// `eplbctl explain`: why is the placement as it is?
#ifndef EPLB_CLIENT_CLI_DAEMON_EXPLAIN_H_
#define EPLB_CLIENT_CLI_DAEMON_EXPLAIN_H_

#include <cstdint>
#include <string>

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct ExplainOptions {
  QueryOptions query;
  std::string job;      // empty: the only one
  int32_t layer = -1;   // one layer's GPUs; < 0: all layers
  int32_t expert = -1;  // one expert of --layer
};

// The job: its state, its settings, the decision behind the placement in force, the newest
// decision, its worst layers. A layer: its GPUs' loads before and after that decision, and what
// moved. An expert: its load, its replicas and their GPUs. JSON:
// {"job","state","paused","pause_reason",
// "waiting_for","version","settings":{..},"balancedness","balancedness_static","window":{
// "first_step","last_step"},"balancedness_predicted","balancedness_seen","switched":plan|null,
// "newest":plan|null,"load_window":{"first_step","last_step"},"layers_are","layers":[{"layer",
// "model_layer","balancedness","hottest_gpu","hottest_gpu_load","hottest_expert",
// "hottest_expert_share","hottest_expert_replicas"}]}. "balancedness", "balancedness_static" and
// "window" are measured, null before the first such window; "layers_are" is "measured" or
// "predicted" (the placement in force under the load of "load_window"). With --layer also
// {"gpu_loads":[..]|null, measured,"gpu_loads_predicted":[..],"gpu_loads_before":[..]|null,
// "moved":[{"expert","from","to"}]|null}, with --expert also
// {"expert":{"expert","share","slots":[..],"gpus":[..],"gpus_before":[..]|null}}.
Output RunExplain(const ExplainOptions& options, const Terminal& terminal);

void AddExplain(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_EXPLAIN_H_
