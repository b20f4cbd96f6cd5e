// What `eplbctl explain` and `eplbctl top` show, as values: a job, its newest load window with what
// the GPUs got, the placement in force, and the decision that led to the placement.
#ifndef EPLB_CLIENT_CLI_DAEMON_EXPLANATION_H_
#define EPLB_CLIENT_CLI_DAEMON_EXPLANATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/daemon/query_client.h"
#include "placement/evaluate.h"
#include "placement/migration_plan.h"
#include "proto/wire/messages.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {

// A layer in the newest window, from Explanation::shown().
struct LayerFigures {
  int32_t layer = 0;
  std::optional<uint32_t> model_layer;  // the model's number, where the ranks said it
  double balancedness = 1;
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
  // What the GPUs got in that window; none when the daemon does not know what it ran under.
  std::optional<Evaluation> measured;
  std::optional<Evaluation> predicted;  // `body` under the load of that window
  std::optional<Evaluation> unmoved;    // the static layout under the same load
  std::vector<LayerFigures> layers;     // worst balanced first; empty without figures

  // The plan that led to the version in force; null when none is known.
  const v1::Plan* switched() const;
  // True when every step of the window ran under the placement in force.
  bool ran_in_force() const;
  // What happened where that is known, else what is predicted; null without a window.
  const Evaluation* shown() const;
  // "measured" or "predicted": which of the two shown() is.
  const char* shown_name() const { return measured ? "measured" : "predicted"; }
};

// errors: those of the questions but NotFound of placements and loads, which leave their fields
// empty; Internal when the daemon's answers do not fit together.
absl::StatusOr<Explanation> AskExplanation(const QueryOptions& options, const std::string& job);

// What the plan behind the placement in force moved between GPUs in a layer; none when the
// placement that it began from is not known.
std::optional<std::vector<Transfer>> TransfersOf(const Explanation& explanation, int32_t layer);

// "layer 3 (model layer 6)".
std::string LayerName(const v1::JobStatus& job, int32_t layer);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_EXPLANATION_H_
