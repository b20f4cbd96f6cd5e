// `eplbctl explain`: why is the placement as it is?
#ifndef EPLB_CLIENT_CLI_EXPLAIN_H_
#define EPLB_CLIENT_CLI_EXPLAIN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/flags.h"
#include "client/cli/query_client.h"
#include "client/cli/terminal.h"
#include "placement/evaluate.h"
#include "placement/migration_plan.h"
#include "proto/wire/messages.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {

// What `eplbctl explain` and `eplbctl top` show, as values: a job, its newest load window with what
// the GPUs got, the placement in force, and the decision that led to the placement.

// A layer in the newest window, from Explanation::shown().
struct LayerFigures {
  int32_t layer = 0;
  std::optional<uint32_t> model_layer;  // the model's number, where the ranks said it
  std::optional<double> balancedness;   // none without tokens
  int32_t hottest_gpu = 0;
  double hottest_gpu_load = 0;  // as a multiple of the mean
  int32_t hottest_expert = 0;
  double hottest_expert_share = 0;  // of the layer's tokens
  int32_t hottest_expert_replicas = 0;
};

struct Explanation {
  v1::JobStatus job;
  std::vector<v1::Plan> plans;                // newest first
  std::optional<wire::PlacementBody> body;    // in force
  std::optional<wire::PlacementBody> before;  // that this plan began from, while it is kept
  std::optional<AskedLoad> load;              // the newest complete window
  // What the GPUs got in that window; none when the daemon has no record of what it ran under.
  std::optional<Evaluation> measured;
  std::optional<Evaluation> computed;  // `body` under the load of that window
  std::optional<Evaluation> unmoved;   // the static layout under the same load
  std::vector<LayerFigures> layers;    // worst balanced first; empty without figures

  // The plan that led to the version in force; null when none is known.
  const v1::Plan* switched() const;
  // True when every step of the window ran under the placement in force.
  bool ran_in_force() const;
  // What happened where that is known, else what is computed; null without a window.
  const Evaluation* shown() const;
  // "measured" or "computed": which of the two shown() is.
  const char* shown_name() const { return measured ? "measured" : "computed"; }
};

// errors: those of the questions but NotFound of placements and loads, which leave their fields
// empty; Internal when the daemon's answers do not fit together.
absl::StatusOr<Explanation> AskExplanation(const QueryOptions& options, const std::string& job);

// What the plan behind the placement in force moved between GPUs in a layer; none when the
// placement that it began from is not known.
std::optional<std::vector<Transfer>> TransfersOf(const Explanation& explanation, int32_t layer);

// "layer 3 (model layer 6)".
std::string LayerName(const v1::JobStatus& job, int32_t layer);

struct ExplainOptions {
  QueryOptions query;
  std::string job;      // empty: the only one
  int32_t layer = -1;   // one layer's GPUs; < 0: all layers
  int32_t expert = -1;  // one expert of --layer
};

// The job: its state, its settings, the decision behind the placement in force, the newest
// decision, the candidates that its policy chooses among, its worst layers. A layer: its GPUs'
// loads before and after that decision, and what moved. An expert: its load, its replicas and their
// GPUs. JSON:
// {"job","state","paused","pause_reason",
// "waiting_for","version","settings":{..},"split","measured_split","balancedness",
// "balancedness_without_eplb","balancedness_static","window":{"first_step","last_step"},
// "balancedness_predicted","prediction_error","balancedness_seen","switched":plan|null,
// "newest":plan|null,
// "candidates":[{"name","in_use","windows","balancedness","net_seconds","realized"}],
// "load_window":{"first_step","last_step"},"layers_are","layers":[{"layer",
// "model_layer","balancedness","hottest_gpu","hottest_gpu_load","hottest_expert",
// "hottest_expert_share","hottest_expert_replicas"}]}. "balancedness", its two counterfactuals and
// "window" are of the newest measured window, null before the first such window; "layers_are" is
// "measured" or "computed" (the placement in force under the load of "load_window"). With --layer
// also {"gpu_loads":[..]|null, measured,"gpu_loads_computed":[..],"gpu_loads_before":[..]|null,
// "moved":[{"expert","from","to"}]|null}, with --expert also
// {"expert":{"expert","share","slots":[..],"gpus":[..],"gpus_before":[..]|null}}. With "split"
// "batch" GPU loads are computed: of an exact split of the whole window, the best there is.
Output RunExplain(const ExplainOptions& options, const Terminal& terminal);

void AddExplain(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_EXPLAIN_H_
